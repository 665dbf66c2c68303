/* Input: from the host to a program's stdin, by absolute offsets, with a window that opens as the program reads. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "super.h"

static void grant(struct input *in)
{
    uint64_t limit = in->accepted - in->have + STDIN_WINDOW;
    if (in->eof || limit < in->granted + STDIN_WINDOW / 4) {
        return; /* not for every few bytes */
    }
    in->granted = limit;
    LIST_EACH(l, spare, &in->exec->readers) {
        struct request *r = OWNER_OF(l, struct request, by_use);
        if (r->only == 0) {
            reader_window(r);
        }
    }
}

void input_close(struct input *in)
{
    if (!in->closed) {
        in->closed = true;
        loop_close(&in->watch);
        free(in->buffer);
        in->buffer = NULL;
        in->have = 0;
    }
}

static void arm(struct input *in, bool on)
{
    if (in->armed != on && !in->closed) {
        in->armed = on;
        if (on) {
            loop_add(&in->watch, EPOLLOUT);
        } else {
            loop_remove(&in->watch);
        }
    }
}

/* Write some; how much went, or -1 where the program will never read again. */
static ssize_t push(struct input *in, const uint8_t *data, size_t length)
{
    ssize_t n;
    do {
        n = write(in->watch.fd, data, length);
    } while (n < 0 && errno == EINTR);
    return n < 0 && errno == EAGAIN ? 0 : n;
}

/* Give the program what waits for it. A closed stdin swallows the rest: a host that streams must not hang on it. */
static void drain(struct input *in)
{
    while (in->have > 0) {
        size_t piece = STDIN_WINDOW - in->from < in->have ? STDIN_WINDOW - in->from : in->have;
        ssize_t n = push(in, in->buffer + in->from, piece);
        if (n < 0) {
            input_close(in);
            break;
        }
        if (n == 0) {
            break;
        }
        in->from = (in->from + (size_t)n) % STDIN_WINDOW;
        in->have -= (size_t)n;
    }
    grant(in);
    if (in->have == 0 && in->eof) {
        input_close(in);
    }
    arm(in, in->have > 0);
}

static void on_room(struct watch *w, uint32_t events)
{
    (void)events;
    drain(OWNER_OF(w, struct input, watch));
}

void input_start(struct exec *e, int fd) { e->in.watch = (struct watch){.fd = fd, .ready = on_room}; }

static void keep(struct input *in, const uint8_t *data, size_t length)
{
    if (in->buffer == NULL) {
        in->buffer = malloc(STDIN_WINDOW);
        if (in->buffer == NULL) {
            abort();
        }
    }
    for (size_t done = 0; done < length;) {
        size_t at = (in->from + in->have) % STDIN_WINDOW;
        size_t piece = STDIN_WINDOW - at < length - done ? STDIN_WINDOW - at : length - done;
        memcpy(in->buffer + at, data + done, piece);
        in->have += piece;
        done += piece;
    }
}

bool input_data(struct exec *e, uint64_t offset, const uint8_t *data, size_t length)
{
    struct input *in = &e->in;
    if (offset > in->accepted || offset + length > in->granted) {
        return false; /* a gap, or more than was granted */
    }
    if (offset + length <= in->accepted || in->eof) {
        return true; /* a resend */
    }
    data += in->accepted - offset;
    length -= (size_t)(in->accepted - offset);
    in->accepted += length;
    ssize_t n = 0;
    if (!in->closed && in->have == 0) {
        n = push(in, data, length);
        if (n < 0) {
            input_close(in);
        }
    }
    if (!in->closed && (size_t)n < length) {
        keep(in, data + n, length - (size_t)n);
    }
    drain(in);
    return true;
}

bool input_eof(struct exec *e, uint64_t offset)
{
    struct input *in = &e->in;
    if (offset > in->accepted) {
        return false;
    }
    if (offset == in->accepted && !in->eof) {
        in->eof = true;
        drain(in);
    }
    return true;
}
