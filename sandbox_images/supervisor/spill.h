/* A bounded queue of bytes in a memfd that is never mapped: what somebody has not read yet must not be PID 1's memory. */
#ifndef KF_SPILL_H
#define KF_SPILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct spill {
    int fd;                                    /* a circle of `size` bytes, made when first needed; -1: none */
    size_t size, from, have;
};

void spill_init(struct spill *s, size_t size);
/* At most size - have bytes; false: no descriptor or no memory for them. */
bool spill_add(struct spill *s, const uint8_t *data, size_t length);
size_t spill_peek(const struct spill *s, uint8_t *piece, size_t size); /* the next bytes, as many as lie in one piece */
void spill_drop(struct spill *s, size_t length);                       /* the first of them are done with */
void spill_free(struct spill *s);

#endif
