/* A channel: bytes in, frames out, requests outstanding. A peer that does not read costs a bounded queue, and no more
 * is read from it or stepped for it until it does. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "super.h"

#define IN_SIZE (KF_HEADER + KF_MAX_PAYLOAD)
#define SMALL 65536u
#define SEND_BUFFER 1048576 /* what the kernel may hold of ours: at its default, host and supervisor take turns */

static void on_ready(struct watch *w, uint32_t events);

struct channel *channel_new(int fd, struct dial *dial)
{
    struct channel *c = calloc(1, sizeof *c);
    uint8_t *in = malloc(IN_SIZE);
    if (c == NULL || in == NULL || kf.channel_count >= MAX_CHANNELS) {
        free(c);
        free(in);
        close(fd);
        return NULL;
    }
    int size = SEND_BUFFER;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size); /* as far as the host's wmem_max goes */
    c->in = in;
    c->dial = dial;
    c->watch = (struct watch){.fd = fd, .ready = on_ready};
    for (size_t i = 0; i < sizeof c->requests / sizeof *c->requests; i++) {
        list_init(&c->requests[i]);
    }
    list_init(&c->ops);
    list_add(&kf.channels, &c->link);
    kf.channel_count++;
    loop_add(&c->watch, EPOLLIN);
    return c;
}

void channel_close(struct channel *c)
{
    if (c->closed) {
        return;
    }
    c->closed = true;
    for (size_t i = 0; i < sizeof c->requests / sizeof *c->requests; i++) {
        LIST_EACH(l, spare, &c->requests[i]) {
            request_free(OWNER_OF(l, struct request, by_id));
        }
    }
    loop_close(&c->watch);
    list_remove(&c->link);
    kf.channel_count--;
    free(c->in);
    free(c->out);
    c->in = c->out = NULL;
    if (c->dial != NULL) {
        link_lost(c->dial);
    }
    loop_free_later(c);
}

/* ---- output */

bool channel_full(const struct channel *c) { return c->out_to - c->out_from > QUEUE_FULL; }

static uint8_t *room(struct channel *c, size_t length)
{
    if (c->out_room - c->out_to < length && c->out_from > 0) {
        memmove(c->out, c->out + c->out_from, c->out_to - c->out_from);
        c->out_to -= c->out_from;
        c->out_from = 0;
    }
    if (c->out_room - c->out_to < length) {
        size_t wanted = c->out_room == 0 ? 16384 : c->out_room;
        while (wanted - c->out_to < length) {
            wanted *= 2;
        }
        uint8_t *out = realloc(c->out, wanted);
        if (out == NULL) {
            abort();
        }
        c->out = out;
        c->out_room = wanted;
    }
    return c->out + c->out_to;
}

uint8_t *channel_reserve(struct channel *c, uint8_t type, uint64_t id, size_t length)
{
    uint8_t *at = room(c, KF_HEADER + length);
    kf_header_write(at, (uint32_t)length, type, id);
    c->out_to += KF_HEADER + length;
    return at + KF_HEADER;
}

void channel_unreserve(struct channel *c, size_t length, size_t used)
{
    uint8_t *at = c->out + c->out_to - length - KF_HEADER;
    struct kf_header h;
    kf_header_read(at, &h);
    kf_header_write(at, (uint32_t)used, h.type, h.id);
    c->out_to -= length - used;
}

void channel_send(struct channel *c, uint8_t type, uint64_t id, const void *payload, size_t length)
{
    if (c->closed) {
        return;
    }
    uint8_t *at = channel_reserve(c, type, id, length);
    if (length > 0) {
        memcpy(at, payload, length);
    }
}

void channel_error(struct channel *c, uint64_t id, uint8_t kind, int error, const char *message)
{
    uint8_t buffer[1100];
    size_t length = strlen(message);
    struct kf_writer w = kf_writer(buffer, sizeof buffer);
    kf_put_u8(&w, kind);
    kf_put_u32(&w, (uint32_t)error);
    kf_put_bytes(&w, message, (uint32_t)(length < 1024 ? length : 1024));
    channel_send(c, KF_ERROR, id, buffer, kf_written(&w));
}

static void want_write(struct channel *c, bool want)
{
    bool read = !channel_full(c);
    c->want_write = want;
    loop_change(&c->watch, (want ? EPOLLOUT : 0u) | (read ? EPOLLIN : 0u));
}

/* Everything there is room for again: let its readers go on. */
static void wake(struct channel *c)
{
    for (size_t i = 0; i < sizeof c->requests / sizeof *c->requests; i++) {
        LIST_EACH(l, spare, &c->requests[i]) {
            struct request *r = OWNER_OF(l, struct request, by_id);
            if (r->kind == REQUEST_READER) {
                exec_touch(r->exec);
            }
        }
    }
}

void channel_flush(struct channel *c)
{
    bool was_full = channel_full(c);
    while (c->out_from < c->out_to) {
        ssize_t n = send(c->watch.fd, c->out + c->out_from, c->out_to - c->out_from, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            break;
        }
        if (n < 0) {
            channel_close(c);
            return;
        }
        c->out_from += (size_t)n;
    }
    bool left = c->out_from < c->out_to;
    if (!left) {
        c->out_from = c->out_to = 0;
        if (c->out_room > 4 * SMALL && list_empty(&c->ops) && c->request_count == 0) {
            free(c->out); /* PID 1 stays small between bursts */
            c->out = NULL;
            c->out_room = 0;
        }
    }
    if (left != c->want_write || (was_full && !channel_full(c))) {
        want_write(c, left);
    }
    if (was_full && !channel_full(c)) {
        wake(c);
    }
}

void channels_flush(void)
{
    LIST_EACH(l, spare, &kf.channels) {
        struct channel *c = OWNER_OF(l, struct channel, link);
        if (c->out_from < c->out_to && !c->want_write) {
            channel_flush(c);
        }
    }
}

void channels_greet(void)
{
    LIST_EACH(l, spare, &kf.channels) {
        struct channel *c = OWNER_OF(l, struct channel, link);
        if (c->hello_waits) {
            c->hello_waits = false;
            answer_hello(c, c->hello_id);
        }
    }
}

/* ---- input */

/* Handle the complete frames in the buffer; false: an illegal one. */
static bool parse(struct channel *c)
{
    size_t at = 0;
    while (c->in_have - at >= KF_HEADER && !c->hello_waits && !c->closed) {
        struct kf_header h;
        if (!kf_header_read(c->in + at, &h)) {
            return false;
        }
        if (c->in_have - at < KF_HEADER + h.length) {
            break;
        }
        if (!request_dispatch(c, &h, c->in + at + KF_HEADER)) {
            return false;
        }
        at += KF_HEADER + h.length;
    }
    if (c->closed) {
        return true;
    }
    c->in_have -= at;
    memmove(c->in, c->in + at, c->in_have);
    return true;
}

static void read_some(struct channel *c)
{
    ssize_t n = 0;
    if (c->in_have < IN_SIZE) {
        n = recv(c->watch.fd, c->in + c->in_have, IN_SIZE - c->in_have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n <= 0) {
            channel_close(c);
            return;
        }
        c->in_have += (size_t)n;
        kf.last_heard = kf.now;
        kf.orphaned = false;
    }
    if (!parse(c)) {
        channel_close(c);
    }
}

static void on_ready(struct watch *w, uint32_t events)
{
    struct channel *c = OWNER_OF(w, struct channel, watch);
    if (events & EPOLLOUT) {
        channel_flush(c);
    }
    if (!c->closed && (events & EPOLLIN)) {
        read_some(c);
        if (!c->closed && channel_full(c)) {
            want_write(c, true);
        }
    } else if (!c->closed && (events & (EPOLLHUP | EPOLLERR))) {
        channel_close(c);
    }
}
