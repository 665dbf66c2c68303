/* Input: from the host to a program's stdin, by absolute offsets, with a window that opens as the program reads. What
 * the program has not read yet lies in a memfd that is never mapped: as our own memory, a few hundred programs that do
 * not read would make PID 1 the process that the kernel ends when memory is short (tried: 52 MB for 200). */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <termios.h>
#include <unistd.h>

#include "super.h"

static void grant(struct input *in)
{
    uint64_t limit = in->accepted - in->spill.have + STDIN_WINDOW;
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
        spill_free(&in->spill);
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
    if (n > 0) {
        in->line_begun = data[n - 1] != '\n' && data[n - 1] != '\r';
    }
    return n < 0 && errno == EAGAIN ? 0 : n;
}

/* A terminal has no end that could be closed without hanging it up, so its end of input is a key, as a person would
 * press it: twice where a line is begun, for the first only sends that off. True: it is said, or nobody can hear it. */
static bool end_terminal(struct input *in)
{
    struct termios now;
    if (tcgetattr(in->watch.fd, &now) != 0 || now.c_cc[VEOF] == _POSIX_VDISABLE) {
        return true;
    }
    const uint8_t keys[2] = {now.c_cc[VEOF], now.c_cc[VEOF]};
    size_t count = in->line_begun ? 2 : 1;
    ssize_t n = push(in, keys, count);
    in->line_begun = count == 2 && n == 0;
    return n < 0 || (size_t)n == count;
}

/* Give the program what waits for it. A closed stdin swallows the rest: a host that streams must not hang on it. */
static void drain(struct input *in)
{
    static uint8_t piece[65536];
    while (in->spill.have > 0) {
        ssize_t n = push(in, piece, spill_peek(&in->spill, piece, sizeof piece));
        if (n < 0) {
            input_close(in);
            break;
        }
        if (n == 0) {
            break;
        }
        spill_drop(&in->spill, (size_t)n);
    }
    grant(in);
    bool ending = in->spill.have == 0 && in->eof && !in->closed;
    if (ending && (!in->terminal || end_terminal(in))) {
        input_close(in);
    }
    arm(in, in->spill.have > 0 || ending);
}

static void on_room(struct watch *w, uint32_t events)
{
    (void)events;
    drain(OWNER_OF(w, struct input, watch));
}

void input_start(struct exec *e, int fd)
{
    e->in.watch = (struct watch){.fd = fd, .ready = on_room};
    spill_init(&e->in.spill, STDIN_WINDOW);
    if (!e->in.wanted) { /* a terminal without input: it ends at once, as it does without a terminal */
        e->in.eof = true;
        drain(&e->in);
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
    if (!in->closed && in->spill.have == 0) {
        n = push(in, data, length);
        if (n < 0) {
            input_close(in);
        }
    }
    if (!in->closed && (size_t)n < length && !spill_add(&in->spill, data + n, length - (size_t)n)) {
        input_close(in);
        exec_kill(e, CANCELLED, 0); /* never run on with a part of its input as if that were all */
        return true;
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

/* STDIN and STDIN_EOF; false ends the channel. */
bool stdin_request(uint64_t id, struct kf_reader *r, bool eof)
{
    uint64_t offset = kf_get_u64(r);
    size_t length = 0;
    const uint8_t *data = eof ? NULL : kf_get_rest(r, &length);
    if (!kf_reader_done(r)) {
        return false;
    }
    struct exec *e = exec_find(id);
    if (e == NULL || !e->in.wanted) {
        return true; /* it crossed the end of the exec */
    }
    return eof ? input_eof(e, offset) : input_data(e, offset, data, length);
}
