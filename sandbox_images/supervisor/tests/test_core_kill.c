/* kill(-1) means the whole machine unless we are PID 1 of a container: it must refuse here. And the process scan, which
 * must name exactly our descendants, with a hidden one that shows as a zombie among them. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "shim.h"
#include "super.h"

static void everyone_is_not_ours_to_signal(void)
{
    CHECK(getpid() != 1);
    errno = 0;
    CHECK(!signal_everyone(SIGKILL));
    SAME(errno, EPERM);
    CHECK(!signal_everyone(SIGSTOP));
    CHECK(!signal_everyone(0));
}

static size_t ours(struct scan *scan)
{
    size_t count = 0;
    for (size_t i = 0; i < scan->count; i++) {
        count += scan->all[i].ours;
    }
    return count;
}

static const struct process *named(const struct scan *scan, pid_t pid)
{
    for (size_t i = 0; i < scan->count; i++) {
        if (scan->all[i].pid == pid) {
            return &scan->all[i];
        }
    }
    return NULL;
}

static void *stay(void *unused)
{
    while (pause() < 0) {
    }
    return unused;
}

/* A process whose main thread has left: its state reads Z, and it lives. */
static pid_t headless(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, stay, NULL);
        syscall(SYS_exit, 0);
    }
    return pid;
}

static pid_t nested(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        fork();
        for (;;) {
            pause();
        }
    }
    return pid;
}

static void a_scan_names_our_descendants_and_only_them(void)
{
    struct scan scan = {0};
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t a = nested(), b = headless();
    do {
        CHECK(scan_processes(&scan, 5000000));
    } while (ours(&scan) < 3 || named(&scan, b) == NULL || named(&scan, b)->state != 'Z');
    SAME(ours(&scan), 3);
    CHECK(strncmp(named(&scan, getpid())->name, "test_core_kill", 15) == 0);
    CHECK(named(&scan, getpid())->memory > 0);
    CHECK(scan_child_above(&scan, named(&scan, a), getpid()) == named(&scan, a));
    CHECK(scan_child_above(&scan, named(&scan, getpid()), getpid()) == NULL);
    CHECK(named(&scan, a)->ours && named(&scan, b)->ours && named(&scan, b)->threads == 2);
    CHECK(named(&scan, getpid()) != NULL && !named(&scan, getpid())->ours);
    CHECK(named(&scan, 1) == NULL || !named(&scan, 1)->ours);
    uint32_t count;
    CHECK(scan_biggest(&scan, getpid(), &count) == a);
    SAME(count, 2);
    struct process other = *named(&scan, a);
    other.start++; /* a pid that has been given to somebody else */
    CHECK(!scan_signal(&other, SIGKILL, false));
    for (size_t i = 0; i < scan.count; i++) {
        CHECK(!scan.all[i].ours || scan_signal(&scan.all[i], SIGKILL, false));
    }
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR) {
    }
    SAME(errno, ECHILD);
    CHECK(!scan_processes(&scan, 0) || scan.count <= 1);
    free(scan.all);
}

int main(void)
{
    everyone_is_not_ours_to_signal();
    a_scan_names_our_descendants_and_only_them();
    DONE();
}
