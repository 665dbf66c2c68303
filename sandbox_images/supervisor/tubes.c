/* One connection of a program, carried as frames. What the program sends is read only as far as the host has granted and
 * the channel has room; what the host sends waits in a memfd where the program does not read. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "egress.h"

#define PIECE 65536u                /* read from one program in one turn, at most */
#define QUEUE_SHARE 262144u         /* with more than this queued for a host, no stream is read: execs come first */

/* ---- frames to the host */

static struct channel *channel_of(const struct claim *claim) { return claim->request->channel; }

bool claim_crowded(const struct claim *claim)
{
    const struct channel *c = channel_of(claim);
    return c->out_to - c->out_from > QUEUE_SHARE;
}

static void tell(const struct tube *t, uint8_t type)
{
    uint8_t payload[4];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_u32(&w, t->number);
    channel_send(channel_of(t->claim), type, t->claim->request->id, payload, kf_written(&w));
}

static void tell_room(const struct tube *t)
{
    uint8_t payload[12];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_u32(&w, t->number);
    kf_put_u64(&w, t->granted);
    channel_send(channel_of(t->claim), KF_EGRESS_ROOM, t->claim->request->id, payload, kf_written(&w));
}

/* ---- one connection */

/* Not watched at all where there is nothing to do: epoll names a connection that was cut again and again. */
static void arm(struct tube *t, uint32_t events)
{
    if (events == t->armed) {
        return;
    }
    if (t->armed == 0) {
        loop_add(&t->watch, events);
    } else if (events == 0) {
        loop_remove(&t->watch);
    } else {
        loop_change(&t->watch, events);
    }
    t->armed = events;
}

static void rearm(struct tube *t)
{
    bool more = !t->program_eof && t->sent < t->limit;
    bool room = !claim_crowded(t->claim);
    t->claim->held = t->claim->held || (more && !room);
    arm(t, (more && room ? EPOLLIN : 0u) | (t->spill.have > 0 ? EPOLLOUT : 0u));
}

/* Cut at once: the program reads a reset, not the end of something whole. */
void tube_cut(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

void tube_free(struct tube *t, bool cut)
{
    if (cut) {
        tube_cut(t->watch.fd);
    }
    loop_close(&t->watch);
    spill_free(&t->spill);
    list_remove(&t->link);
    t->claim->count--;
    loop_free_later(t);
}

void tube_end(struct tube *t, bool cut)
{
    tell(t, KF_EGRESS_GONE);
    tube_free(t, cut);
}

/* Where the last byte went each way, the stream is over. */
void tube_settle(struct tube *t)
{
    if (t->host_eof && !t->shut && t->spill.have == 0) {
        t->shut = true;
        shutdown(t->watch.fd, SHUT_WR);
    }
    if (t->shut && t->program_eof) {
        tube_end(t, false);
        return;
    }
    rearm(t);
}

/* What of these bytes the program's side takes now; -1: it never will again. */
static ssize_t push(const struct tube *t, const uint8_t *data, size_t length)
{
    ssize_t n;
    do {
        n = send(t->watch.fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 && errno == EAGAIN ? 0 : n;
}

static void grant(struct tube *t)
{
    uint64_t limit = t->accepted - t->spill.have + EGRESS_WINDOW;
    if (!t->host_eof && limit >= t->granted + EGRESS_WINDOW / 4) {
        t->granted = limit; /* not for every few bytes */
        tell_room(t);
    }
}

/* False: the stream is gone. */
static bool drain(struct tube *t)
{
    static uint8_t piece[PIECE];
    for (size_t round = 0; t->spill.have > 0 && round < EGRESS_WINDOW / PIECE; round++) {
        ssize_t n = push(t, piece, spill_peek(&t->spill, piece, sizeof piece));
        if (n < 0) {
            tube_end(t, true);
            return false;
        }
        if (n == 0) {
            break;
        }
        spill_drop(&t->spill, (size_t)n);
    }
    grant(t);
    return true;
}

/* One piece from the program, as far as the host has granted. False: the stream is gone. */
static bool take(struct tube *t)
{
    struct channel *c = channel_of(t->claim);
    size_t most = t->limit - t->sent < PIECE ? (size_t)(t->limit - t->sent) : PIECE;
    uint8_t *at = channel_reserve(c, KF_EGRESS_BYTES, t->claim->request->id, 4 + most);
    ssize_t n;
    do {
        n = recv(t->watch.fd, at + 4, most, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n <= 0) {
        int error = errno;
        c->out_to -= KF_HEADER + 4 + most;
        if (n < 0 && error != EAGAIN) {
            tube_end(t, true);
            return false;
        }
        if (n == 0) {
            t->program_eof = true;
            tell(t, KF_EGRESS_ENDED);
        }
        return true;
    }
    struct kf_writer w = kf_writer(at, 4);
    kf_put_u32(&w, t->number);
    channel_unreserve(c, 4 + most, 4 + (size_t)n);
    t->sent += (uint64_t)n;
    return true;
}

static void on_ready(struct watch *w, uint32_t events)
{
    struct tube *t = OWNER_OF(w, struct tube, watch);
    bool wants = !t->program_eof && t->sent < t->limit && !claim_crowded(t->claim);
    if ((events & EPOLLOUT) && !drain(t)) {
        return;
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && wants && !take(t)) {
        return;
    }
    if ((events & (EPOLLHUP | EPOLLERR)) && !wants && t->spill.have > 0) {
        tube_end(t, true); /* nobody is left to read what waits */
        return;
    }
    tube_settle(t);
}

bool tube_new(struct claim *claim, int fd)
{
    struct tube *t = calloc(1, sizeof *t);
    if (t == NULL) {
        tube_cut(fd);
        close(fd);
        return false;
    }
    t->watch = (struct watch){.fd = fd, .ready = on_ready};
    t->claim = claim;
    t->number = ++claim->next;
    t->limit = t->granted = EGRESS_WINDOW;
    spill_init(&t->spill, EGRESS_WINDOW);
    list_add(&claim->streams, &t->link);
    claim->count++;
    tell(t, KF_EGRESS_OPENED);
    rearm(t);
    return true;
}

struct tube *tube_find(struct claim *claim, uint32_t number)
{
    LIST_EACH(l, spare, &claim->streams) {
        struct tube *t = OWNER_OF(l, struct tube, link);
        if (t->number == number) {
            return t;
        }
    }
    return NULL;
}

bool tube_data(struct tube *t, const uint8_t *data, size_t length)
{
    if (length == 0 || t->host_eof || length > t->granted - t->accepted) {
        return false;
    }
    ssize_t n = 0;
    t->accepted += length;
    if (t->spill.have == 0) {
        n = push(t, data, length);
    }
    if (n < 0 || ((size_t)n < length && !spill_add(&t->spill, data + n, length - (size_t)n))) {
        tube_end(t, true);
        return true;
    }
    grant(t);
    tube_settle(t);
    return true;
}
