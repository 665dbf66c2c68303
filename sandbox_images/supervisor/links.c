/* Where channels come from: the root-only socket that relays connect to, and the host's sockets that we dial. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "super.h"

#define MOST_DIALS 8
#define WARDEN 65533u
#define RESCAN SECOND
#define LONGEST_NAME 64

struct dial {
    char name[LONGEST_NAME + 1];
    bool connected, seen;
    uint64_t since;
};

static struct watch listener = {.fd = -1}, notifier = {.fd = -1};
static struct dial dials[MOST_DIALS];
static int dial_dir = -1;
static uint64_t next_scan;

/* ---- listening */

static bool is_trusted(int fd)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && (peer.uid == 0 || peer.uid == WARDEN);
}

static void on_connection(struct watch *w, uint32_t events)
{
    (void)events;
    int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 && is_trusted(fd)) {
        channel_new(fd, NULL);
    } else if (fd >= 0) {
        close(fd);
    }
}

/* Where the socket and the dialled ones lie in one directory, it is the engine's tmpfs for them and nobody else's. The
 * engine makes it 0700; should the image have had its say (an engine copies the mode of what it covers), do it again. */
static bool close_room(const char *directory)
{
    const char *slash = strrchr(directory, '/'), *dials = strrchr(kf.config.dial_dir, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - directory);
    if (length == 0 || dials == NULL || (size_t)(dials - kf.config.dial_dir) != length ||
        memcmp(directory, kf.config.dial_dir, length) != 0) {
        return true;
    }
    char room[PATH_MAX];
    struct stat st;
    int n = snprintf(room, sizeof room, "%.*s", (int)length, directory);
    if (n < 0 || (size_t)n >= sizeof room || stat(room, &st) != 0) {
        return true; /* mkdir of what lies in it says what is wrong */
    }
    return (st.st_mode & 077) == 0 || chmod(room, 0700) == 0;
}

bool links_listen(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *directory = kf.config.socket_dir;
    int n = snprintf(address.sun_path, sizeof address.sun_path, "%s/sock", directory);
    if (n < 0 || (size_t)n >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (!close_room(directory)) {
        return false;
    }
    if ((mkdir(directory, 0700) != 0 && errno != EEXIST) || chmod(directory, 0700) != 0) {
        return false;
    }
    unlink(address.sun_path); /* of an earlier start of this container */
    listener = (struct watch){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), .ready = on_connection};
    if (listener.fd < 0 || bind(listener.fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0600) != 0 || listen(listener.fd, 16) != 0) {
        return false;
    }
    loop_add(&listener, EPOLLIN);
    return true;
}

/* ---- dialling */

static void connect_to(struct dial *d)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    /* By way of the directory's descriptor: its own path may be longer than a socket address. */
    int n = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", dial_dir, d->name);
    if (n < 0 || (size_t)n >= sizeof address.sun_path) {
        return;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    d->connected = true;
    d->since = kf.now;
    if (channel_new(fd, d) == NULL) {
        d->connected = false;
    }
}

static struct dial *dial_for(const char *name)
{
    struct dial *unused = NULL;
    for (size_t i = 0; i < MOST_DIALS; i++) {
        if (strcmp(dials[i].name, name) == 0) {
            return &dials[i];
        }
        if (dials[i].name[0] == 0 && unused == NULL) {
            unused = &dials[i];
        }
    }
    if (unused != NULL) {
        strcpy(unused->name, name);
    }
    return unused;
}

/* Look at every socket file of the directory and connect to those that we are not connected to; true: one is left so. */
static bool scan_dir(void)
{
    int fd = openat(dial_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (directory == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return true;
    }
    bool missing = false;
    for (size_t i = 0; i < MOST_DIALS; i++) {
        dials[i].seen = false;
    }
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        struct stat st;
        if (strlen(entry->d_name) > LONGEST_NAME ||
            fstatat(dial_dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(st.st_mode)) {
            continue;
        }
        struct dial *d = dial_for(entry->d_name);
        if (d != NULL) {
            d->seen = true;
            if (!d->connected) {
                connect_to(d);
            }
            missing = missing || !d->connected;
        }
    }
    closedir(directory);
    for (size_t i = 0; i < MOST_DIALS; i++) {
        if (!dials[i].seen && !dials[i].connected) {
            dials[i].name[0] = 0;
        }
    }
    return missing;
}

static void on_change(struct watch *w, uint32_t events)
{
    char names[4096];
    (void)events;
    while (read(w->fd, names, sizeof names) > 0) {
    }
    next_scan = 0;
}

/* Open the directory once it is there, and watch it where the kernel lets us. */
static bool open_dir(void)
{
    if (dial_dir >= 0) {
        return true;
    }
    dial_dir = open(kf.config.dial_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dial_dir < 0) {
        return false;
    }
    notifier = (struct watch){.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), .ready = on_change};
    if (notifier.fd >= 0 &&
        inotify_add_watch(notifier.fd, kf.config.dial_dir, IN_CREATE | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR) >= 0) {
        loop_add(&notifier, EPOLLIN);
    }
    return true;
}

void links_dial(void)
{
    next_scan = kf.now + RESCAN;
    if (!kf.terminating && open_dir() && !scan_dir() && notifier.fd >= 0) {
        next_scan = kf.now + 10 * RESCAN; /* nothing is missing, and inotify tells what comes */
    }
}

void links_tick(uint64_t now)
{
    if (now >= next_scan) {
        links_dial();
    }
}

/* Dial again at once if it was a real connection; one that is refused again and again waits for the next scan. */
void link_lost(struct dial *d)
{
    d->connected = false;
    next_scan = kf.now + RESCAN < next_scan ? kf.now + RESCAN : next_scan;
    if (kf.now - d->since > 50 * MS) {
        next_scan = 0;
    }
}

void links_close(void)
{
    loop_close(&listener);
}
