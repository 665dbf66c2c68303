/* Output: from a program's pipe into the ring, one bounded read an event, so that a flood delays nobody. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "super.h"

#define CHUNK 65536u
#define READS 4                /* reads an event: one turn's bound for one stream */
#define FLOOD (2u << 20)       /* bytes that make a stream a flood */
#define FLOOD_PIPE 524288      /* and what its pipe then holds: fewer turns for each byte */
#define NAP_NS 200000          /* how long a flood's emptied pipe is left to fill */
#define MOST_FLOODS 8          /* pipe memory is counted for all of root's pipes on the machine */

static uint8_t chunk[CHUNK];

/* A flood in small writes would wake us for each of them, and we would preempt the writer each time (tried: 8 KiB a
 * turn, a fifth of the speed). So a flood's pipe, once empty, is left alone for a moment and then read without epoll. */
static struct link naps = {&naps, &naps};
static struct watch alarm_clock = {.fd = -1};
static void on_alarm(struct watch *w, uint32_t events);

static void on_output(struct watch *w, uint32_t events)
{
    (void)events;
    struct stream *s = OWNER_OF(w, struct stream, watch);
    stream_read(s);
    exec_check(s->exec);
}

static void arm(struct stream *s, bool on)
{
    if (s->armed == on || s->eof || (on && s->napping)) {
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

static unsigned floods;

static void close_stream(struct stream *s)
{
    floods -= s->flood;
    s->flood = false;
    if (s->napping) {
        s->napping = false;
        list_remove(&s->nap);
    }
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

static void widen(struct stream *s)
{
    if (!s->flood && s->ring.total > FLOOD && floods < MOST_FLOODS && s->exec->terminal < 0) {
        s->flood = fcntl(s->watch.fd, F_SETPIPE_SZ, FLOOD_PIPE) > 0;
        floods += s->flood;
    }
}

/* One read; false: nothing (more) to be had right now. */
static bool read_once(struct stream *s)
{
    struct exec *e = s->exec;
    int which = s == &e->out[1];
    ring_shrink(&s->ring, CHUNK); /* before the room is measured: a reader must not lose what a smaller ring drops */
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
    widen(s);
    if (!list_empty(&e->readers)) {
        exec_touch(e);
    }
    return (size_t)n == CHUNK;
}

void stream_close(struct stream *s)
{
    if (!s->eof) {
        close_stream(s);
    }
}

static void set_alarm(void)
{
    const struct itimerspec soon = {.it_value = {.tv_nsec = NAP_NS}};
    if (alarm_clock.fd < 0) {
        alarm_clock = (struct watch){.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), .ready = on_alarm};
        if (alarm_clock.fd < 0) {
            abort();
        }
        loop_add(&alarm_clock, EPOLLIN);
    }
    timerfd_settime(alarm_clock.fd, 0, &soon, NULL);
}

static void nap(struct stream *s)
{
    arm(s, false);
    s->napping = true;
    if (list_empty(&naps)) {
        set_alarm();
    }
    list_add(&naps, &s->nap);
}

/* One bounded helping; true: the pipe still held as much as was taken at the last read. */
static bool take(struct stream *s)
{
    bool full = true;
    for (int i = 0, most = floods > 1 ? 1 : READS; i < most && full; i++) { /* several floods: the innocent wait for all */
        full = read_once(s);
    }
    count_output(s->exec);
    return full;
}

void stream_read(struct stream *s)
{
    bool full = take(s);
    bool room_left = room(s->exec, s == &s->exec->out[1]) > 0;
    if (!s->eof && s->armed && !room_left) {
        arm(s, false);
    } else if (!s->eof && s->flood && !full && s->armed) {
        nap(s);
    }
}

static void wake_up(struct stream *s)
{
    uint64_t before = s->ring.total;
    s->napping = false;
    list_remove(&s->nap);
    bool full = take(s);
    if (s->eof || room(s->exec, s == &s->exec->out[1]) == 0) {
        return;
    }
    if (full || s->ring.total == before) {
        arm(s, true); /* more at once, or a pause in the flood: epoll knows best */
    } else {
        nap(s);
    }
}

static void on_alarm(struct watch *w, uint32_t events)
{
    uint64_t count;
    struct link now;
    (void)events;
    if (read(w->fd, &count, sizeof count) < 0 || list_empty(&naps)) {
        return;
    }
    now = naps;
    now.next->prev = now.prev->next = &now;
    list_init(&naps);
    while (!list_empty(&now)) {
        struct stream *s = OWNER_OF(now.next, struct stream, nap);
        wake_up(s);
        exec_check(s->exec);
    }
}

void stream_drain(struct stream *s)
{
    /* What a pipe holds at most, a short read between; so a living writer cannot keep us here. */
    for (int i = 0; i < 8 && !s->eof; i++) {
        uint64_t before = s->ring.total;
        read_once(s);
        if (s->ring.total == before) {
            break;
        }
    }
}
