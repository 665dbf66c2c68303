/* tree MODE [leave]: processes that do not want to die; "ready" on stdout once they are there. Then the leader waits,
 * or with `leave` goes and leaves them. Every signal that can be ignored is. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void stay(void)
{
    for (;;) {
        pause();
    }
}

static void *forking(void *unused)
{
    for (;;) {
        if (fork() == 0) {
            usleep(1000);
            _exit(0);
        }
        while (waitpid(-1, 0, WNOHANG) > 0) {
        }
        usleep(500);
    }
    return unused;
}

static void daemons(void)
{
    for (int i = 0; i < 50; i++) {
        if (fork() == 0) {
            setsid();
            if (fork() != 0) {
                _exit(0);
            }
            setsid();
            stay();
        }
    }
}

static void stopped(void)
{
    for (int i = 0; i < 20; i++) {
        if (fork() == 0) {
            setsid();
            kill(getpid(), SIGSTOP);
            stay();
        }
    }
}

static void suspended(void)
{
    for (int i = 0; i < 10; i++) {
        if (fork() == 0) {
            setsid();
            if (vfork() == 0) {
                stay();
            }
            stay();
        }
    }
}

/* The main thread goes: the process shows Z, and its other thread goes on forking. */
static void headless(void)
{
    for (int i = 0; i < 5; i++) {
        if (fork() == 0) {
            pthread_t thread;
            signal(SIGCHLD, SIG_DFL);
            pthread_create(&thread, NULL, forking, NULL);
            syscall(SYS_exit, 0);
        }
    }
}

/* Siblings of the leader, some of which no plain wait sees. */
static void siblings(void)
{
    for (int i = 0; i < 60; i++) {
        if (syscall(SYS_clone, CLONE_PARENT | (i % 2 ? SIGCHLD : 0), 0, 0, 0, 0) == 0) {
            stay();
        }
    }
}

static void nested(void)
{
    if (fork() != 0) {
        return;
    }
    for (int depth = 0; depth < 40; depth++) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        if (fork() != 0) {
            stay();
        }
        setsid();
    }
    stay();
}

static void comets(void)
{
    for (int i = 0; i < 8; i++) {
        if (fork() == 0) {
            for (;;) {
                if (fork() != 0) {
                    _exit(0);
                }
                setsid();
            }
        }
    }
}

/* Nothing of ours is left in them: no environment, no name, no session, no parent. */
static void nameless(void)
{
    char *const argv[] = {"[kworker/0:1]", "600", NULL}, *const environment[] = {NULL};
    for (int i = 0; i < 20; i++) {
        if (fork() == 0) {
            setsid();
            if (fork() != 0) {
                _exit(0);
            }
            setsid();
            execve("/bin/sleep", argv, environment);
            _exit(1);
        }
    }
}

static void bomb(void)
{
    write(1, "ready\n", 6);
    for (;;) {
        fork();
    }
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*make)(void); } modes[] = {
        {"daemons", daemons}, {"stopped", stopped}, {"suspended", suspended}, {"headless", headless},
        {"siblings", siblings}, {"nested", nested}, {"comets", comets}, {"nameless", nameless},
        {"bomb", bomb},
    };
    for (int i = 1; i < 65; i++) {
        signal(i, SIG_IGN);
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].make();
        }
    }
    write(1, "ready\n", 6);
    if (argc > 2) {
        _exit(0);
    }
    stay();
}
