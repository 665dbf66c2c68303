/* The smallest test runner: CHECK counts and prints what failed; DONE ends main. */
#ifndef KF_CHECK_H
#define KF_CHECK_H

#include <stdio.h>

static int checks_done, checks_failed;

#define CHECK(condition)                                                              \
    do {                                                                              \
        checks_done++;                                                                \
        if (!(condition)) {                                                           \
            checks_failed++;                                                          \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
        }                                                                             \
    } while (0)

/* For comparisons of numbers: shows both. */
#define SAME(got, wanted)                                                                                        \
    do {                                                                                                         \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                        \
        checks_done++;                                                                                           \
        if (got_ != wanted_) {                                                                                   \
            checks_failed++;                                                                                     \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_, wanted_);            \
        }                                                                                                        \
    } while (0)

#define DONE()                                                                        \
    do {                                                                              \
        printf("%s: %d checks, %d failed\n", __FILE__, checks_done, checks_failed);   \
        return checks_failed != 0;                                                    \
    } while (0)

#endif
