/* Decoding EXEC, apart from acting on it, so that it can be fuzzed alone. */
#include "wanted.h"

#include <string.h>

/* Step over `count` byte strings; true: none holds a NUL (which no program could be given). */
static bool skip_strings(struct kf_reader *r, uint32_t count, bool want_equals)
{
    bool good = true;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length;
        const uint8_t *s = kf_get_bytes(r, &length);
        good = good && s != NULL && memchr(s, 0, length) == NULL;
        if (good && want_equals) {
            good = length > 0 && s[0] != '=' && memchr(s, '=', length) != NULL;
        }
    }
    return good;
}

bool wanted_decode(struct kf_reader r, struct wanted *w, const char **wrong)
{
    *w = (struct wanted){0};
    w->owner = kf_get_bytes(&r, &w->owner_length);
    w->mode = kf_get_u8(&r);
    w->rows = kf_get_u16(&r);
    w->columns = kf_get_u16(&r);
    w->argc = kf_get_count(&r, 4);
    w->argv = r;
    bool argv_good = skip_strings(&r, w->argc, false);
    w->envc = kf_get_count(&r, 4);
    w->env = r;
    bool env_good = skip_strings(&r, w->envc, true);
    w->cwd = kf_get_bytes(&r, &w->cwd_length);
    w->timeout_ms = kf_get_u64(&r);
    w->idle_ms = kf_get_u64(&r);
    w->grace_ms = kf_get_u64(&r);
    w->keep[0] = kf_get_u64(&r);
    w->keep[1] = kf_get_u64(&r);
    w->output_limit = kf_get_u64(&r);
    w->limit[0] = kf_get_u64(&r);
    w->limit[1] = kf_get_u64(&r);
    if (!kf_reader_done(&r)) {
        return false;
    }
    *wrong = w->argc == 0 ? "the command is empty"
           : !argv_good ? "an argument holds a NUL byte"
           : !env_good ? "an environment entry is not NAME=VALUE, or holds a NUL byte"
           : w->owner_length > MAX_OWNER ? "an owner has at most 128 bytes"
           : w->mode > MODE_ALL ? "unknown mode bits"
           : w->mode & MODE_TERMINAL && (w->rows == 0 || w->columns == 0) ? "a terminal has at least one row and one column"
           : NULL;
    return true;
}
