/* Mode connect: a relay between our stdin and stdout and the supervisor's socket. It never blocks: a peer that is gone
 * while the other side is full would else never be noticed (tried: such a relay stays for ever). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "super.h"

#define WARDEN 65533u
#define FLOW_SIZE 262144u

/* One direction: bytes read from `from` that `to` has not taken yet. */
struct flow {
    int from, to;
    bool ended; /* `from` is at its end */
    size_t start, have;
    uint8_t bytes[FLOW_SIZE];
};

static struct flow up, down;

static int dial(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path, sizeof address.sun_path, "%s/sock", directory);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (n < 0 || (size_t)n >= sizeof address.sun_path || fd < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        fprintf(stderr, "kinfold-supervisor: connect: %s/sock: %s\n", directory, strerror(errno));
        return -1;
    }
    return fd;
}

/* No more root from here on: going from uid 0 to the warden's empties every capability set. */
static bool become_warden(void)
{
    if (geteuid() != 0) {
        return true;
    }
    return syscall(SYS_setgroups, 0, NULL) == 0 && syscall(SYS_setresgid, WARDEN, WARDEN, WARDEN) == 0 &&
           syscall(SYS_setresuid, WARDEN, WARDEN, WARDEN) == 0 && prctl(PR_SET_DUMPABLE, 0) == 0;
}

/* False: the source failed. */
static bool fill(struct flow *f)
{
    if (f->have > 0 || f->ended) {
        return true;
    }
    ssize_t n = read(f->from, f->bytes, FLOW_SIZE);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    f->start = 0;
    f->have = (size_t)n;
    f->ended = n == 0;
    return true;
}

/* False: the destination is gone. */
static bool empty(struct flow *f)
{
    while (f->have > 0) {
        ssize_t n = write(f->to, f->bytes + f->start, f->have);
        if (n < 0) {
            return errno == EAGAIN || errno == EINTR;
        }
        f->start += (size_t)n;
        f->have -= (size_t)n;
    }
    return true;
}

static short when(bool wanted, short what) { return wanted ? what : 0; }

/* One wait and one move in each direction; false: the end. */
static bool turn(int socket)
{
    struct pollfd p[3] = {
        {.fd = 0, .events = when(up.have == 0, POLLIN)},
        {.fd = 1, .events = when(down.have > 0, POLLOUT)},
        {.fd = socket, .events = (short)(when(down.have == 0 && !down.ended, POLLIN) | when(up.have > 0, POLLOUT))},
    };
    if (poll(p, 3, -1) < 0) {
        return errno == EINTR;
    }
    bool good = fill(&up) && empty(&up) && fill(&down) && empty(&down);
    bool broken = (p[1].revents & (POLLERR | POLLNVAL)) != 0 || (p[2].revents & (POLLERR | POLLNVAL)) != 0 ||
                  (p[0].revents & (POLLERR | POLLNVAL)) != 0;
    if (!good || broken || up.ended) {
        return false; /* the host is gone: what it sent has been given to the socket, as far as that takes it */
    }
    /* Hung up, yet with bytes to be read: read on. Else the other side is gone for good. */
    bool stdin_over = (p[0].revents & POLLHUP) != 0 && (p[0].revents & POLLIN) == 0 && up.have == 0;
    return !stdin_over && !(down.ended && down.have == 0);
}

int relay_main(int argc, char **argv)
{
    const char *directory = "/run/kf/s";
    if (argc == 4 && strcmp(argv[2], "--socket") == 0) {
        directory = argv[3];
    } else if (argc != 2) {
        fputs("usage: kinfold-supervisor connect [--socket DIR]\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    int socket = dial(directory);
    if (socket < 0) {
        return 1;
    }
    if (!become_warden() || fcntl(0, F_SETFL, O_NONBLOCK) != 0 || fcntl(1, F_SETFL, O_NONBLOCK) != 0 ||
        fcntl(socket, F_SETFL, O_NONBLOCK) != 0) {
        fprintf(stderr, "kinfold-supervisor: connect: %s\n", strerror(errno));
        return 1;
    }
    up.from = 0;
    up.to = down.from = socket;
    down.to = 1;
    while (turn(socket)) {
    }
    return 0;
}
