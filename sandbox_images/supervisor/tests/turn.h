/* One turn of the supervisor's loop over what is ready now, without its clocks: for tests that hold the other ends. */
#ifndef KF_TURN_H
#define KF_TURN_H

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "super.h"

static inline bool turn_begin(void)
{
    struct link *lists[] = {&kf.channels, &kf.execs, &kf.ended, &kf.dirty, &kf.shims};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        list_init(lists[i]);
    }
    kf.epoll = epoll_create1(EPOLL_CLOEXEC);
    kf.now = loop_clock();
    kf.probe_done = true;
    return kf.epoll >= 0;
}

/* Until nothing is ready any more; memory that was given up is kept, so that a test may look at it. */
static inline void turns(void)
{
    for (int quiet = 0; quiet < 2;) {
        struct epoll_event events[64];
        int n = epoll_wait(kf.epoll, events, 64, 0);
        for (int i = 0; i < n; i++) {
            struct watch *w = events[i].data.ptr;
            if (w->ready != NULL) {
                w->ready(w, events[i].events);
            }
        }
        egress_step();
        channels_flush();
        quiet = n > 0 ? 0 : quiet + 1;
    }
}

/* A channel whose other end is given back. */
static inline int turn_channel(struct channel **out)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0 ||
        (*out = channel_new(pair[0], NULL)) == NULL) {
        abort();
    }
    (*out)->greeted = true;
    return pair[1];
}

#endif
