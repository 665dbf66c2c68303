/* The room of the sockets: the supervisor's alone, whatever mode it was found with; nobody else's directory is touched. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "super.h"

static unsigned mode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_mode & 07777 : 0;
}

/* Listen in ROOM/s while the sockets to dial are said to lie in `dials`; the mode that a room of 0777 then has. */
static unsigned mode_after(const char *room, const char *dials)
{
    char directory[64], where[64], socket[80];
    snprintf(directory, sizeof directory, "%s/s", room);
    snprintf(where, sizeof where, "%s/host", dials);
    snprintf(socket, sizeof socket, "%s/sock", directory);
    kf.config.socket_dir = directory;
    kf.config.dial_dir = where;
    CHECK(chmod(room, 0777) == 0);
    CHECK(links_listen());
    SAME(mode_of(directory), 0700);
    SAME(mode_of(socket), 0600);
    links_close();
    unsigned mode = mode_of(room);
    unlink(socket);
    rmdir(directory);
    return mode;
}

int main(void)
{
    char room[] = "/tmp/kf-links-XXXXXX";
    CHECK(mkdtemp(room) != NULL);
    kf.epoll = epoll_create1(EPOLL_CLOEXEC);
    SAME(mode_after(room, room), 0700);
    SAME(mode_after(room, "/run/kf"), 0777);
    SAME(mode_after(room, ""), 0777);
    rmdir(room);
    DONE();
}
