/* EXEC: what was decoded must lie within the payload, every argument and entry of it. */
#ifndef KF_FUZZ_EXEC_H
#define KF_FUZZ_EXEC_H

#include <stdlib.h>
#include <string.h>

#include "frames.h"
#include "wanted.h"

static inline void exec(const uint8_t *payload, size_t length)
{
    struct wanted w;
    const char *wrong;
    if (!wanted_decode(kf_reader(payload, length), &w, &wrong))
        return;
    struct kf_reader lists[] = {w.argv, w.env};
    uint32_t counts[] = {w.argc, w.envc}, n;
    for (int which = 0; which < 2; which++) {
        for (uint32_t i = 0; i < counts[which]; i++) {
            const uint8_t *bytes = kf_get_bytes(&lists[which], &n);
            if (!bytes || bytes < payload || bytes + n > payload + length || (!wrong && memchr(bytes, 0, n)))
                abort();
        }
    }
}

#endif
