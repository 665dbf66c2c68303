/* A slice of time: how long one step of a file request may hold the loop. */
#ifndef KF_SLICE_H
#define KF_SLICE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define KF_SLICE_NS 250000u

struct kf_slice {
    uint64_t until; /* monotonic nanoseconds */
    unsigned units;
};

static inline uint64_t kf_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline struct kf_slice kf_slice_of(uint64_t ns) { return (struct kf_slice){.until = kf_now_ns() + ns}; }

/* After a piece of work of a few microseconds: is the slice over? The clock is read at every 16th. */
static inline bool kf_slice_unit(struct kf_slice *s) { return ++s->units % 16 == 0 && kf_now_ns() >= s->until; }

/* After a piece of work of a tenth of a millisecond or more. */
static inline bool kf_slice_over(const struct kf_slice *s) { return kf_now_ns() >= s->until; }

#endif
