/* How many frames a fuzz target was given: an input holds several, and libFuzzer counts inputs. Told at the end. */
#ifndef KF_FUZZ_COUNT_H
#define KF_FUZZ_COUNT_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t frames_seen;

static void frames_tell(void) { fprintf(stderr, "stat::frames: %" PRIu64 "\n", frames_seen); }

static inline void frames_count(void)
{
    if (frames_seen++ == 0)
        atexit(frames_tell);
}

#endif
