/* libFuzzer target: frames as a channel hands them over, one after another, to a supervisor that has one exec with a terminal: what
 * each request does with hostile numbers. Left to other targets, or out: EXEC and the files (they start and write
 * things), PROCESSES and USAGE (they read the machine). */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz_count.h"
#include "super.h"

#define OUR_EXEC 9u

static struct channel *channel;
static struct exec *ours;

static void add_exec(void)
{
    struct start s = {.fds = {-1, -1, -1, -1}};
    struct wanted w = {.mode = MODE_ALL, .rows = 24, .columns = 80};
    int fds[3] = {-1, -1, -1};
    ours = calloc(1, sizeof *ours);
    if (!ours || terminal_open(&s, &w, fds) != 0)
        abort();
    ours->id = OUR_EXEC;
    ours->mode = MODE_ALL;
    ours->terminal = s.fds[1];
    close(s.fds[2]), close(s.fds[3]);
    ours->deadline = ours->idle_deadline = ours->drain_deadline = ours->started_due = NEVER;
    ours->freeze_deadline = ours->grace_ends = NEVER;
    list_init(&ours->readers), list_init(&ours->waiters), list_init(&ours->ended_link), list_init(&ours->dirty_link);
    list_add(&kf.execs, &ours->link);
    kf.alive_count++;
    for (int i = 0; i < 2; i++) {
        ours->out[i].exec = ours;
        ours->out[i].watch.fd = fds[i + 1];
        ours->out[i].eof = fds[i + 1] < 0;
        ring_init(&ours->out[i].ring, 4096);
    }
    ours->in.exec = ours;
    ours->in.wanted = ours->in.terminal = true;
    ours->in.granted = STDIN_WINDOW;
    ours->in.watch.fd = -1;
    input_start(ours, fds[0]);
}

static void enter(void)
{
    int both[2];
    struct link *lists[] = {&kf.channels, &kf.execs, &kf.ended, &kf.dirty, &kf.shims};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        list_init(lists[i]);
    kf.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (kf.epoll < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both) != 0)
        abort();
    channel = channel_new(both[0], NULL);
    channel->greeted = true;
}

static bool is_left_out(uint8_t type)
{
    return type == KF_EXEC || type == KF_PROCESSES || type == KF_USAGE || kf_is_file_request(type) || type == KF_HELLO;
}

/* Everything that one input did is undone: the exec, what is outstanding, what is queued. */
static void leave(void)
{
    for (size_t i = 0; i < sizeof channel->requests / sizeof *channel->requests; i++) {
        LIST_EACH(l, spare, &channel->requests[i]) {
            request_free(OWNER_OF(l, struct request, by_id));
        }
    }
    if (channel->request_count != 0)
        abort();
    channel->out_from = channel->out_to = 0;
    if (kf.paused)
        pause_all(false);
    if (ours)
        exec_free(ours);
    kf.alive_count = 0;
    ours = NULL;
    loop_forget();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (channel == NULL)
        enter();
    add_exec();
    for (int i = 0; i < 8 && size >= KF_HEADER && ours; i++) {
        struct kf_header h;
        if (!kf_header_read(data, &h) || h.length > size - KF_HEADER || is_left_out(h.type))
            break;
        frames_count();
        if (!request_dispatch(channel, &h, data + KF_HEADER) || channel->closed)
            break;
        data += KF_HEADER + h.length;
        size -= KF_HEADER + h.length;
        ours = exec_find(OUR_EXEC); /* FORGET may have taken it */
        while (readers_pump()) {
        }
    }
    leave();
    return 0;
}
