/* Egress: who has claimed the connections of programs, and one such connection. */
#ifndef KF_EGRESS_H
#define KF_EGRESS_H

#include "super.h"

struct claim {
    struct link link;                          /* in egress.claims, the newest last */
    struct request *request;
    struct link streams;
    uint32_t next, most, count;
    bool held;                                 /* a stream was not read for want of room in the channel */
};

/* One connection: `in` is from the program to the host, `out` the other way. */
struct tube {
    struct link link;                          /* in claim.streams */
    struct watch watch;
    struct claim *claim;
    uint32_t number, armed;
    uint64_t sent, limit;
    uint64_t accepted, granted;
    struct spill spill;
    bool program_eof, host_eof, shut;
};

/* ---- tubes.c */
bool claim_crowded(const struct claim *claim); /* its channel has enough to do: read no more for it */
bool tube_new(struct claim *claim, int fd);    /* the descriptor is the tube's, or closed */
struct tube *tube_find(struct claim *claim, uint32_t number);
bool tube_data(struct tube *t, const uint8_t *data, size_t length); /* false: more than was granted */
void tube_settle(struct tube *t);              /* go on with what can go on, or end */
void tube_end(struct tube *t, bool cut);       /* and tell the host */
void tube_free(struct tube *t, bool cut);
void tube_cut(int fd);                         /* its closing will be a reset */

#endif
