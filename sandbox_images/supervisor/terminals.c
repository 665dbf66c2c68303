/* Terminals: where an exec asks for one, a master here and a program's side there take the place of its pipes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "super.h"

static bool set_size(int fd, uint16_t rows, uint16_t columns)
{
    const struct winsize size = {.ws_row = rows, .ws_col = columns};
    return ioctl(fd, TIOCSWINSZ, &size) == 0;
}

/* The program's side of a master; -1 with errno. */
static int open_peer(int master)
{
#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif
    const int flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
    int unlocked = 0;
    unsigned number;
    char path[32];
    if (ioctl(master, TIOCSPTLCK, &unlocked) != 0) {
        return -1;
    }
    int peer = ioctl(master, TIOCGPTPEER, flags);
    if (peer >= 0 || ioctl(master, TIOCGPTN, &number) != 0) {
        return peer;
    }
    snprintf(path, sizeof path, "/dev/pts/%u", number); /* a kernel that does not give it by itself */
    return open(path, flags | O_NOFOLLOW);
}

/* Backspace takes whole characters; all else is as the kernel has it. */
static bool speak_utf8(int fd)
{
    struct termios now;
    if (tcgetattr(fd, &now) != 0) {
        return false;
    }
    now.c_iflag |= IUTF8;
    return tcsetattr(fd, TCSANOW, &now) == 0;
}

static uint8_t why_not(int error)
{
    return error == ENOSPC || error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN ? KF_BUSY : KF_UNSUPPORTED;
}

/* The caller is the agent for file access meanwhile, so the program's side belongs to the agent. */
uint8_t terminal_open(struct start *s, const struct wanted *w, int ours[3])
{
    ours[1] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (ours[1] < 0 || (s->fds[1] = open_peer(ours[1])) < 0 || !speak_utf8(s->fds[1]) ||
        !set_size(ours[1], w->rows, w->columns)) {
        return why_not(errno);
    }
    s->fds[2] = fcntl(s->fds[1], F_DUPFD_CLOEXEC, 3);
    s->fds[3] = fcntl(s->fds[1], F_DUPFD_CLOEXEC, 3);
    ours[0] = fcntl(ours[1], F_DUPFD_CLOEXEC, 3);
    return s->fds[2] < 0 || s->fds[3] < 0 || ours[0] < 0 ? KF_BUSY : 0;
}

/* Until the leader ends we hold the program's side too: one that closes all of its own and comes back by /dev/tty
 * would otherwise find that we had taken the hang-up for the end. */
void terminal_release(struct exec *e)
{
    if (e->terminal >= 0) {
        close(e->terminal);
        e->terminal = -1;
    }
}

void resize_request(struct channel *c, uint64_t id, uint64_t exec_id, uint16_t rows, uint16_t columns)
{
    const struct exec *e = exec_find(exec_id);
    if (e == NULL) {
        channel_error(c, id, KF_UNKNOWN_EXEC, 0, "no such exec");
    } else if (!(e->mode & MODE_TERMINAL)) {
        channel_error(c, id, KF_INVALID, 0, "the exec has no terminal");
    } else if (rows == 0 || columns == 0) {
        channel_error(c, id, KF_INVALID, 0, "a terminal has at least one row and one column");
    } else if (e->leader_exited || e->tree_empty || e->out[0].eof) {
        channel_error(c, id, KF_ENDED, 0, "the exec has ended");
    } else if (!set_size(e->out[0].watch.fd, rows, columns)) {
        channel_error(c, id, KF_INTERNAL, errno, "the terminal does not take a size");
    } else {
        channel_send(c, KF_OK, id, NULL, 0);
    }
}
