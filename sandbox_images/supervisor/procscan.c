/* Find descendants in /proc. A scan only says whom to signal; it never proves that nobody is left (a process may be
 * between two directory reads, and one whose main thread has gone shows Z and runs on). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

uint64_t shim_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* The n-th space-separated field behind the command's closing parenthesis; field 0 is the state. */
static const char *field(const char *at, int n)
{
    while (n-- > 0 && at != NULL) {
        at = strchr(at, ' ');
        at = at == NULL ? NULL : at + 1;
    }
    return at;
}

/* Read one process's line; the command may hold spaces and parentheses, so the last ')' counts. */
static bool read_process(pid_t pid, struct process *out)
{
    char path[32], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) {
        return false;
    }
    line[n] = 0;
    const char *rest = strrchr(line, ')');
    if (rest == NULL || rest[1] != ' ') {
        return false;
    }
    rest += 2;
    const char *parent = field(rest, 1), *times = field(rest, 11), *threads = field(rest, 17), *start = field(rest, 19);
    const char *memory = field(rest, 21), *name = memchr(line, '(', (size_t)n);
    if (parent == NULL || times == NULL || threads == NULL || start == NULL || memory == NULL || name == NULL) {
        return false;
    }
    *out = (struct process){.pid = pid, .parent = atoi(parent), .state = rest[0],
                            .threads = (uint32_t)strtoul(threads, NULL, 10), .start = strtoull(start, NULL, 10),
                            .memory = strtoull(memory, NULL, 10)};
    char *next;
    out->ticks = strtoull(times, &next, 10);
    out->ticks += strtoull(next, NULL, 10);
    size_t length = (size_t)(rest - 2 - (name + 1));
    memcpy(out->name, name + 1, length < sizeof out->name - 1 ? length : sizeof out->name - 1);
    return true;
}

static bool remember(struct scan *scan, const struct process *p)
{
    if (scan->count == scan->room) {
        size_t room = scan->room == 0 ? 256 : scan->room * 2;
        struct process *all = realloc(scan->all, room * sizeof *all);
        if (all == NULL) {
            return false;
        }
        scan->all = all;
        scan->room = room;
    }
    scan->all[scan->count++] = *p;
    return true;
}

static int by_pid(const void *a, const void *b)
{
    pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
    return (x > y) - (x < y);
}

static struct process *find(const struct scan *scan, pid_t pid)
{
    struct process key = {.pid = pid};
    return scan->count == 0 ? NULL : bsearch(&key, scan->all, scan->count, sizeof key, by_pid);
}

/* Does the chain of parents from `p` reach `ancestor`? Bounded: a racy snapshot might hold a circle. */
static bool descends(const struct scan *scan, const struct process *p, pid_t ancestor)
{
    for (size_t depth = 0; p != NULL && depth <= scan->count; depth++) {
        if (p->parent == ancestor) {
            return true;
        }
        const struct process *parent = find(scan, p->parent);
        if (parent != NULL && parent->ours && ancestor == getpid()) {
            return true;
        }
        p = parent;
    }
    return false;
}

bool scan_processes(struct scan *scan, uint64_t budget_us)
{
    uint64_t until = shim_now_us() + budget_us;
    scan->count = 0;
    DIR *proc = opendir("/proc");
    if (proc == NULL) {
        return false;
    }
    bool complete = true;
    struct dirent *entry;
    while ((entry = readdir(proc)) != NULL) {
        struct process p;
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') {
            continue;
        }
        if (read_process(atoi(entry->d_name), &p) && !remember(scan, &p)) {
            complete = false;
            break;
        }
        if (shim_now_us() > until) { /* at every one: beside a spinning bomb each may take milliseconds */
            complete = false;
            break;
        }
    }
    closedir(proc);
    qsort(scan->all, scan->count, sizeof *scan->all, by_pid);
    pid_t self = getpid();
    for (size_t i = 0; i < scan->count; i++) {
        scan->all[i].ours = descends(scan, &scan->all[i], self);
    }
    return complete;
}

/* Append the processes that one thread of `parent` has as its children. False: this kernel does not tell. */
static bool add_children(struct scan *scan, pid_t parent, const char *thread)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)parent, thread);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return errno != ENOENT || access("/proc/thread-self/children", F_OK) == 0; /* it may have ended */
    }
    setvbuf(file, text, _IOFBF, sizeof text);
    int pid;
    bool room = true;
    while (room && fscanf(file, "%d", &pid) == 1) {
        struct process p;
        if (read_process(pid, &p)) {
            p.ours = true;
            room = remember(scan, &p);
        }
    }
    fclose(file);
    return true;
}

/* The same for each thread of `parent`. */
static bool add_children_of_all(struct scan *scan, pid_t parent)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)parent);
    DIR *tasks = opendir(path);
    bool told = true;
    struct dirent *entry;
    while (tasks != NULL && told && (entry = readdir(tasks)) != NULL) {
        told = entry->d_name[0] == '.' || add_children(scan, parent, entry->d_name);
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return told;
}

bool scan_descendants(struct scan *scan, uint64_t budget_us)
{
    uint64_t until = shim_now_us() + budget_us;
    scan->count = 0;
    bool told = add_children_of_all(scan, getpid());
    for (size_t i = 0; told && i < scan->count && shim_now_us() < until; i++) {
        told = add_children_of_all(scan, scan->all[i].pid);
    }
    if (scan->count > 0) {
        qsort(scan->all, scan->count, sizeof *scan->all, by_pid);
    }
    return told;
}

static struct process *child_above(const struct scan *scan, struct process *at, pid_t parent)
{
    for (size_t depth = 0; at != NULL && at->parent != parent && depth <= scan->count; depth++) {
        at = find(scan, at->parent);
    }
    return at != NULL && at->parent == parent ? at : NULL;
}

const struct process *scan_child_above(const struct scan *scan, const struct process *p, pid_t parent)
{
    return child_above(scan, find(scan, p->pid), parent);
}

pid_t scan_biggest(struct scan *scan, pid_t parent, uint32_t *count)
{
    struct process *biggest = NULL;
    for (size_t i = 0; i < scan->count; i++) {
        struct process *at = child_above(scan, &scan->all[i], parent);
        if (at == NULL) {
            continue;
        }
        at->under++;
        if (biggest == NULL || at->under > biggest->under) {
            biggest = at;
        }
    }
    *count = biggest == NULL ? 0 : biggest->under;
    return biggest == NULL ? 0 : biggest->pid;
}

bool scan_signal(const struct process *p, int signal, bool frozen)
{
    if (frozen) {
        return kill(p->pid, signal) == 0; /* all are stopped and only we reap: no pid can change hands */
    }
    struct process now;
    int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (fd < 0 && errno != ENOSYS) {
        return false;
    }
    bool same = read_process(p->pid, &now) && now.start == p->start;
    bool sent = false;
    if (same && fd >= 0) {
        sent = syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0) == 0;
    } else if (same) {
        sent = kill(p->pid, signal) == 0; /* an old kernel: a narrow race is left, none without pidfds */
    }
    if (fd >= 0) {
        close(fd);
    }
    return sent;
}
