/* The loop: epoll, time, and memory that outlives the turn it was given up in. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "super.h"

#define EVENTS 64
#define LONGEST 1000u /* ms between two looks at the clock: what a gap is measured against */

static struct { void **all; size_t count, room; } later;

void loop_add(struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (epoll_ctl(kf.epoll, EPOLL_CTL_ADD, w->fd, &e) != 0) {
        abort(); /* a bug, or no kernel memory left: PID 1's end is the sandbox's end, and the host sees it */
    }
}

void loop_change(struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (epoll_ctl(kf.epoll, EPOLL_CTL_MOD, w->fd, &e) != 0) {
        abort();
    }
}

void loop_remove(struct watch *w) { epoll_ctl(kf.epoll, EPOLL_CTL_DEL, w->fd, NULL); }

void loop_close(struct watch *w)
{
    if (w->fd >= 0) {
        /* An explicit removal: another process may still hold the same open file, and epoll would go on naming it. */
        loop_remove(w);
        close(w->fd);
        w->fd = -1;
    }
    w->ready = NULL;
}

void loop_free_later(void *memory)
{
    if (later.count == later.room) {
        size_t room = later.room == 0 ? 64 : later.room * 2;
        void **all = realloc(later.all, room * sizeof *all);
        if (all == NULL) {
            return; /* leak rather than free what an event may still name */
        }
        later.all = all;
        later.room = room;
    }
    later.all[later.count++] = memory;
}

void loop_forget(void)
{
    while (later.count > 0) {
        free(later.all[--later.count]);
    }
}

uint64_t loop_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static int timeout_ms(bool busy)
{
    if (busy) {
        return 0;
    }
    uint64_t next = exec_next_deadline(), due = disk_due();
    next = due < next ? due : next;
    uint64_t wait = next <= kf.now ? 0 : (next - kf.now + MS - 1) / MS;
    if (shims_short()) {
        uint64_t refill = kf.refill_at <= kf.now ? 1 : (kf.refill_at - kf.now + MS - 1) / MS;
        wait = refill < wait ? refill : wait;
    }
    return (int)(wait < LONGEST ? wait : LONGEST);
}

/* Look at the clock; time that passed while we could not run (paused, suspended) counts for nobody. */
static void tell_time(int waited_ms)
{
    uint64_t now = loop_clock(), allowed = (uint64_t)waited_ms * MS + SECOND;
    if (now - kf.now > allowed) {
        uint64_t gap = now - kf.now - (uint64_t)waited_ms * MS;
        execs_shift(gap);
        kf.last_heard += gap;
        kf.last_used += gap;
    }
    kf.now = now;
}

static void timers(void)
{
    exec_timers(kf.now);
    links_tick(kf.now);
    idle_check();
    relief_check();
    relief_watch();
    if (!kf.probe_done && kf.now >= kf.probe_deadline) {
        kf.probe_done = true;
        channels_greet();
    }
    bool orphaned = kf.config.orphan_grace != 0 && !kf.orphaned && kf.now - kf.last_heard > kf.config.orphan_grace;
    if (orphaned) {
        kf.orphaned = true;
        execs_kill_all();
        if (kf.config.local) {
            init_terminate(); /* a plain child whose parent is gone has nothing left to wait for */
        }
    }
    if (kf.terminating && (!execs_any_alive() || kf.now >= kf.exit_at)) {
        kf.leave = true;
    }
}

int loop_run(void)
{
    bool busy = false;
    kf.now = kf.last_used = loop_clock();
    while (!kf.leave) {
        struct epoll_event events[EVENTS];
        int wait = timeout_ms(busy);
        int n = epoll_wait(kf.epoll, events, EVENTS, wait);
        if (n < 0 && errno != EINTR) {
            return 1;
        }
        tell_time(wait);
        for (int i = 0; i < n; i++) {
            struct watch *w = events[i].data.ptr;
            if (w->ready != NULL) {
                w->ready(w, events[i].events);
            }
        }
        timers();
        busy = channels_step();
        busy = readers_pump() || busy;
        egress_step();
        busy = disk_step() || busy;
        channels_flush();
        execs_evict();
        if (shims_short() && (n == 0 || kf.now >= kf.refill_at + 50 * MS) && kf.now >= kf.refill_at) {
            shims_refill();
        }
        loop_forget();
    }
    channels_flush();
    return kf.exit_code;
}
