/* Output: from a program's pipe into the ring, one bounded read an event, so that a flood delays nobody. */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "super.h"

#define CHUNK 65536u

static uint8_t chunk[CHUNK];

static void on_output(struct watch *w, uint32_t events)
{
    (void)events;
    struct stream *s = OWNER_OF(w, struct stream, watch);
    stream_read(s);
    exec_check(s->exec);
}

static void arm(struct stream *s, bool on)
{
    if (s->armed == on || s->eof) {
        return;
    }
    s->armed = on;
    if (on) {
        s->watch.ready = on_output;
        loop_add(&s->watch, EPOLLIN);
    } else {
        loop_remove(&s->watch); /* not merely no events: a hung-up pipe would go on being reported */
    }
}

static void close_stream(struct stream *s)
{
    s->eof = true;
    s->armed = false;
    loop_close(&s->watch);
}

/* The offset that the slowest attached reader still needs of this stream; NEVER where nobody does. */
static uint64_t slowest(const struct exec *e, int which)
{
    uint64_t least = NEVER;
    LIST_EACH(l, spare, &e->readers) {
        struct request *r = OWNER_OF(l, struct request, by_use);
        bool follows = r->only == 0 && (r->streaming || r->closing);
        bool wants = follows && (!r->closing || r->sent[which] < r->until[which]);
        if (wants && r->sent[which] < least) {
            least = r->sent[which];
        }
    }
    return least;
}

static uint64_t room(const struct exec *e, int which)
{
    uint64_t unsent = slowest(e, which);
    return unsent == NEVER ? NEVER : ring_room(&e->out[which].ring, unsent);
}

bool exec_paused_by_reader(const struct exec *e)
{
    return (!e->out[0].eof && room(e, 0) == 0) || (!e->out[1].eof && room(e, 1) == 0);
}

void stream_pace(struct exec *e)
{
    for (int i = 0; i < 2; i++) {
        if (!e->out[i].eof && e->start == NULL) {
            arm(&e->out[i], room(e, i) > 0);
        }
    }
}

static void count_output(struct exec *e)
{
    if (e->idle_timeout != 0) {
        e->idle_deadline = kf.now + e->idle_timeout;
    }
    if (e->output_limit != 0 && !e->ended && e->out[0].ring.total + e->out[1].ring.total > e->output_limit) {
        exec_kill(e, OUTPUT_LIMITED, e->grace_ms);
    }
}

/* One read; false: nothing (more) to be had right now. */
static bool read_once(struct stream *s)
{
    struct exec *e = s->exec;
    int which = s == &e->out[1];
    uint64_t most = room(e, which);
    if (s->eof || most == 0) {
        return false;
    }
    ssize_t n = read(s->watch.fd, chunk, most < CHUNK ? (size_t)most : CHUNK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (n <= 0) {
        close_stream(s);
        exec_touch(e);
        return false;
    }
    ring_append(&s->ring, chunk, (size_t)n);
    count_output(e);
    if (!list_empty(&e->readers)) {
        exec_touch(e);
    }
    return true;
}

void stream_read(struct stream *s)
{
    read_once(s);
    if (!s->eof && s->armed && room(s->exec, s == &s->exec->out[1]) == 0) {
        arm(s, false);
    }
}

void stream_drain(struct stream *s)
{
    /* What the pipe can hold at most, so that a living writer cannot keep us here. */
    for (int i = 0; i < 20 && read_once(s); i++) {
    }
}
