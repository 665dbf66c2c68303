/* What an EXEC frame asks for. */
#ifndef KF_WANTED_H
#define KF_WANTED_H

#include "frames.h"

#define MAX_OWNER 128

enum { MODE_STREAM = 1, MODE_STDIN = 2, MODE_TERMINAL = 4, MODE_ALL = 7 };

/* Points into the payload that it was decoded from. */
struct wanted {
    const uint8_t *owner, *cwd;
    uint32_t owner_length, cwd_length, argc, envc;
    uint8_t mode;                /* MODE_ bits */
    uint16_t rows, columns;      /* of the terminal */
    struct kf_reader argv, env; /* standing at the first item */
    uint64_t timeout_ms, idle_ms, grace_ms, keep[2], output_limit, limit[2];
};

/* False: the payload breaks the schema (end the channel). *wrong: it is well-formed, but no such program can be started,
 * and why; NULL: nothing is wrong. */
bool wanted_decode(struct kf_reader r, struct wanted *w, const char **wrong);

#endif
