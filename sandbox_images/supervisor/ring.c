/* The output ring. pread and pwrite only: mapped pages would count as this process's own memory, and the kernel's
 * out-of-memory killer would choose PID 1 for what programs wrote (supervisor.md, hole D). */
#include "ring.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t budget = UINT64_MAX, held;

void ring_budget(uint64_t bytes) { budget = bytes; }

bool ring_budget_short(void) { return held > budget / 4 * 3; }

/* How far the memfd reaches once `length` more bytes are in it. */
static uint64_t extent_after(const struct ring *r, size_t length)
{
    uint64_t most = r->head + r->tail, wanted = r->total + length;
    wanted = wanted < most ? wanted : most;
    return wanted > r->extent ? wanted : r->extent;
}

bool ring_affords(const struct ring *r, size_t length)
{
    uint64_t more = extent_after(r, length) - r->extent;
    return r->broken || more == 0 || (held <= budget && more <= budget - held);
}

void ring_shrink(struct ring *r, size_t length)
{
    /* The ring has not come round yet, or it would not grow: all that it holds lies in order from 0 on. */
    if (ring_affords(r, length)) {
        return;
    }
    if (r->total < r->head) {
        r->head = r->total;
    }
    uint64_t used = r->total - r->head;
    r->tail = used > RING_FLOOR ? used : RING_FLOOR;
    r->keep_tail = r->keep_tail < r->tail ? r->keep_tail : r->tail;
}

void ring_init(struct ring *r, uint64_t keep)
{
    keep = keep < budget / 8 ? keep : budget / 8; /* one exec must not take what all are kept in */
    *r = (struct ring){.fd = -1, .head = keep - keep / 2, .keep_tail = keep / 2};
    r->tail = r->keep_tail < RING_LEAST ? RING_LEAST : r->keep_tail;
}

void ring_free(struct ring *r)
{
    if (r->fd >= 0) {
        close(r->fd);
    }
    held -= r->extent;
    r->extent = 0;
    r->fd = -1;
    r->broken = true;
}

static bool write_at(struct ring *r, const uint8_t *data, size_t length, uint64_t place)
{
    while (length > 0) {
        ssize_t n = pwrite(r->fd, data, length, (off_t)place);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        data += n;
        length -= (size_t)n;
        place += (uint64_t)n;
    }
    return true;
}

/* Store bytes that belong behind the head, at their place in the ring, wrapping as often as needed. */
static bool write_tail(struct ring *r, const uint8_t *data, size_t length, uint64_t offset)
{
    if (length > r->tail) {
        offset += length - r->tail;
        data += length - r->tail;
        length = (size_t)r->tail;
    }
    uint64_t place = (offset - r->head) % r->tail;
    size_t first = length < r->tail - place ? length : (size_t)(r->tail - place);
    return write_at(r, data, first, r->head + place) && write_at(r, data + first, length - first, r->head);
}

void ring_append(struct ring *r, const uint8_t *data, size_t length)
{
    uint64_t offset = r->total;
    if (r->broken || length == 0) {
        r->total += length;
        return;
    }
    uint64_t extent = extent_after(r, length);
    held += extent - r->extent;
    r->extent = extent;
    r->total += length;
    if (r->fd < 0) {
        r->fd = memfd_create("kf-output", MFD_CLOEXEC);
        if (r->fd < 0) {
            r->broken = true;
            return;
        }
    }
    size_t to_head = 0;
    if (offset < r->head) {
        to_head = length < r->head - offset ? length : (size_t)(r->head - offset);
    }
    bool good = write_at(r, data, to_head, offset);
    if (good && to_head < length) {
        good = write_tail(r, data + to_head, length - to_head, offset + to_head);
    }
    if (!good) {
        ring_free(r);
    }
}

uint64_t ring_lowest(const struct ring *r, uint64_t from, bool whole)
{
    if (r->broken || from >= r->total) {
        return r->total;
    }
    if (from < r->head) {
        return from;
    }
    uint64_t tail = whole ? r->tail : r->keep_tail;
    uint64_t bottom = r->total - r->head > tail ? r->total - tail : r->head;
    return from > bottom ? from : bottom;
}

size_t ring_read(const struct ring *r, uint64_t offset, uint8_t *buffer, size_t size)
{
    uint64_t place = offset, left = r->total - offset;
    if (offset < r->head) {
        left = r->head - offset < left ? r->head - offset : left;
    } else {
        uint64_t inner = (offset - r->head) % r->tail;
        place = r->head + inner;
        left = r->tail - inner < left ? r->tail - inner : left;
    }
    ssize_t n = pread(r->fd, buffer, size < left ? size : (size_t)left, (off_t)place);
    return n < 0 ? 0 : (size_t)n;
}

uint64_t ring_room(const struct ring *r, uint64_t unsent)
{
    uint64_t bottom = unsent > r->head ? unsent : r->head;
    uint64_t limit = bottom + r->tail;
    return limit > r->total ? limit - r->total : 0;
}

uint64_t ring_head_kept(const struct ring *r, uint64_t total)
{
    if (r->broken) {
        return 0; /* nothing is kept, so nothing of it is head */
    }
    return total <= r->head + r->keep_tail ? total : r->head;
}
