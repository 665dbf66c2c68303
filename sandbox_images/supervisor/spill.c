/* A bounded queue of bytes in a memfd that is never mapped. */
#include "spill.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void spill_init(struct spill *s, size_t size) { *s = (struct spill){.fd = -1, .size = size}; }

bool spill_add(struct spill *s, const uint8_t *data, size_t length)
{
    if (s->fd < 0) {
        s->fd = memfd_create("kf-input", MFD_CLOEXEC);
    }
    for (size_t done = 0; done < length;) {
        size_t at = (s->from + s->have) % s->size;
        size_t piece = s->size - at < length - done ? s->size - at : length - done;
        if (pwrite(s->fd, data + done, piece, (off_t)at) != (ssize_t)piece) {
            return false;
        }
        s->have += piece;
        done += piece;
    }
    return true;
}

size_t spill_peek(const struct spill *s, uint8_t *piece, size_t size)
{
    size_t length = s->size - s->from < s->have ? s->size - s->from : s->have;
    length = length < size ? length : size;
    if (length > 0 && pread(s->fd, piece, length, (off_t)s->from) != (ssize_t)length) {
        abort(); /* it was written there, and nobody else has it */
    }
    return length;
}

void spill_drop(struct spill *s, size_t length)
{
    s->from = (s->from + length) % s->size;
    s->have -= length;
}

void spill_free(struct spill *s)
{
    if (s->fd >= 0) {
        close(s->fd);
    }
    s->fd = -1;
    s->have = 0;
}
