/* A bounded memory of one output stream: its head, and a ring of its latest bytes, in a memfd that is never mapped. */
#ifndef KF_RING_H
#define KF_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The least ring that a streaming reader is paced by, however little the exec asked to keep. */
#define RING_LEAST 262144u

/* What a ring that may not grow any more still has for its latest bytes, outside all budget. */
#define RING_FLOOR 4096u

struct ring {
    int fd;              /* memfd, made at the first byte; -1 before */
    uint64_t extent;     /* bytes of memory it holds: never less, until it is freed */
    bool broken;         /* the memfd could not be made or written: bytes are counted and dropped */
    uint64_t head;       /* bytes of head kept for good */
    uint64_t keep_tail;  /* bytes of tail that were asked for */
    uint64_t tail;       /* bytes of tail that the ring really holds, >= keep_tail */
    uint64_t total;      /* bytes appended so far; the next byte's offset */
};

/* How much memory all rings together may hold. It is the sandbox's own, and with nobody to kill for it: past the limit
 * the kernel would kill PID 1 (tried: two execs that keep 64 MiB each, in a container of 128 MiB). */
void ring_budget(uint64_t bytes);
/* Is most of it used? Then what nobody needs any more should go. */
bool ring_budget_short(void);
/* Would appending `length` bytes stay within the budget? */
bool ring_affords(const struct ring *r, size_t length);
/* Where it would not: make do with the memory that is held. What is stored stays; head and tail end where they are. */
void ring_shrink(struct ring *r, size_t length);

void ring_init(struct ring *r, uint64_t keep);
void ring_free(struct ring *r);
void ring_append(struct ring *r, const uint8_t *data, size_t length);

/* The lowest offset >= from that is still held (r->total where none is); `whole`: all that the ring holds, not only what was asked to be kept. */
uint64_t ring_lowest(const struct ring *r, uint64_t from, bool whole);

/* Copy up to `size` bytes from `offset`, which ring_lowest gave; stops at an inner border. 0: unreadable. */
size_t ring_read(const struct ring *r, uint64_t offset, uint8_t *buffer, size_t size);

/* How many bytes may be appended without losing the byte at `unsent`. */
uint64_t ring_room(const struct ring *r, uint64_t unsent);

/* How many of the kept bytes are head, when `total` bytes were written: all of them where nothing was dropped. */
uint64_t ring_head_kept(const struct ring *r, uint64_t total);

#endif
