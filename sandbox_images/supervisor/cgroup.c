/* Usage and evidence out of our own cgroup, version 1 or 2. A figure that cannot be read is NEVER (2^64-1). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cgroup.h"
#include "super.h"

#define PATH_SIZE 1024

static struct {
    bool v2, readable;
    char memory[PATH_SIZE], pids[PATH_SIZE], cpu[PATH_SIZE]; /* directories; the same one on v2; empty: none */
    int oom;                                                  /* kept open: read at each exec's start and end */
    int now, most;                                            /* pids.current, pids.max: read before a kill */
    int refused;                                              /* pids.events */
} group = {.oom = -1, .now = -1, .most = -1, .refused = -1};

static ssize_t slurp(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    ssize_t n = 0;
    while (fd >= 0 && have + 1 < size && (n = read(fd, buffer + have, size - 1 - have)) > 0) {
        have += (size_t)n;
    }
    if (fd >= 0) {
        close(fd);
    }
    buffer[have] = 0;
    return fd < 0 || n < 0 ? -1 : (ssize_t)have;
}

/* ---- where it is: /proc/self/mountinfo says what is mounted where, /proc/self/cgroup which group in it is ours */

/* The group's path for a controller of v1, or of v2 where `controller` is NULL; false: not listed. */
bool cgroup_own_path(const char *list, const char *controller, char *out, size_t size)
{
    for (const char *line = list; line != NULL && *line != 0; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *names = strchr(line, ':'), *path = names == NULL ? NULL : strchr(names + 1, ':');
        if (path == NULL) {
            continue;
        }
        size_t length = (size_t)(path - names - 1), wanted = controller == NULL ? 0 : strlen(controller);
        bool match = controller == NULL && length == 0;
        for (const char *at = names + 1; controller != NULL && at < path; at += strcspn(at, ",:") + 1) {
            match = match || (strcspn(at, ",:") == wanted && strncmp(at, controller, wanted) == 0);
        }
        if (match) {
            int n = snprintf(out, size, "%.*s", (int)strcspn(path + 1, "\n"), path + 1);
            return n >= 0 && (size_t)n < size;
        }
    }
    return false;
}

/* The directory of our group in one mountinfo line: mount point + (group's path without the mount's root). */
static bool line_to_dir(const char *line, const char *own, char *out, size_t size)
{
    char root[PATH_SIZE], point[PATH_SIZE];
    if (sscanf(line, "%*s %*s %*s %1023s %1023s", root, point) != 2) {
        return false;
    }
    size_t length = strlen(root);
    const char *rest = strcmp(root, "/") == 0 ? own : strncmp(own, root, length) == 0 ? own + length : "";
    int n = snprintf(out, size, "%s%s", point, strcmp(rest, "/") == 0 ? "" : rest);
    return n >= 0 && (size_t)n < size;
}

static bool has_option(const char *options, const char *wanted)
{
    size_t length = strlen(wanted);
    for (const char *at = options; *at != 0; at += strcspn(at, ",\n"), at += *at == ',') {
        if (strcspn(at, ",\n") == length && strncmp(at, wanted, length) == 0) {
            return true;
        }
        if (*at == '\n') {
            return false;
        }
    }
    return false;
}

bool cgroup_find_dir(const char *mounts, const char *groups, const char *controller, char *out, size_t size)
{
    char own[PATH_SIZE];
    if (!cgroup_own_path(groups, controller, own, sizeof own)) {
        return false;
    }
    for (const char *line = mounts; line != NULL && *line != 0; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *type = strstr(line, " - "), *end = strchr(line, '\n');
        char kind[32], options[PATH_SIZE];
        if (type == NULL || (end != NULL && type > end) || sscanf(type, " - %31s %*s %1023s", kind, options) != 2) {
            continue;
        }
        bool match = controller == NULL ? strcmp(kind, "cgroup2") == 0
                                        : strcmp(kind, "cgroup") == 0 && has_option(options, controller);
        if (match) {
            return line_to_dir(line, own, out, size);
        }
    }
    return false;
}

static bool readable(const char *directory, const char *file)
{
    char path[PATH_SIZE + 64];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    return access(path, R_OK) == 0;
}

/* What mountinfo says, else the usual place, else nothing. */
static void locate(const char *mounts, const char *groups, const char *controller, const char *usual, const char *file,
                   char *out)
{
    if (cgroup_find_dir(mounts, groups, controller, out, PATH_SIZE) && readable(out, file)) {
        return;
    }
    snprintf(out, PATH_SIZE, "%s", usual);
    if (!readable(out, file)) {
        out[0] = 0;
    }
}

void cgroup_open(void)
{
    static char mounts[262144], groups[8192];
    if (slurp("/proc/self/mountinfo", mounts, sizeof mounts) < 0 || slurp("/proc/self/cgroup", groups, sizeof groups) < 0) {
        return;
    }
    locate(mounts, groups, "memory", "/sys/fs/cgroup/memory", "memory.usage_in_bytes", group.memory);
    locate(mounts, groups, "pids", "/sys/fs/cgroup/pids", "cgroup.procs", group.pids);
    locate(mounts, groups, "cpuacct", "/sys/fs/cgroup/cpuacct", "cpuacct.usage", group.cpu);
    if (group.memory[0] == 0) {
        locate(mounts, groups, NULL, "/sys/fs/cgroup", "memory.events", group.memory);
        group.v2 = group.memory[0] != 0;
    }
    if (group.v2) {
        memcpy(group.pids, group.memory, sizeof group.pids);
        memcpy(group.cpu, group.memory, sizeof group.cpu);
    }
    group.readable = group.memory[0] != 0;
    char path[PATH_SIZE + 64];
    snprintf(path, sizeof path, "%s/%s", group.memory, group.v2 ? "memory.events" : "memory.oom_control");
    group.oom = group.readable ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (group.pids[0] != 0) {
        snprintf(path, sizeof path, "%s/pids.current", group.pids);
        group.now = open(path, O_RDONLY | O_CLOEXEC);
        snprintf(path, sizeof path, "%s/pids.max", group.pids);
        group.most = open(path, O_RDONLY | O_CLOEXEC);
        snprintf(path, sizeof path, "%s/pids.events", group.pids);
        group.refused = open(path, O_RDONLY | O_CLOEXEC);
    }
}

static uint64_t figure_at(int fd)
{
    char text[64];
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) {
        return NEVER;
    }
    text[n] = 0;
    return cgroup_number(text);
}

bool cgroup_is_crowded(void)
{
    uint64_t now = figure_at(group.now), most = figure_at(group.most);
    return now != NEVER && most != NEVER && most > 0 && now >= most - most / 8;
}

bool cgroup_is_v2(void) { return group.v2; }
bool cgroup_is_readable(void) { return group.readable; }

/* ---- figures */

uint64_t cgroup_field(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = text; line != NULL && *line != 0; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, name, length) == 0 && line[length] == ' ') {
            return strtoull(line + length + 1, NULL, 10);
        }
    }
    return NEVER;
}

uint64_t cgroup_number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    return end == text ? NEVER : value; /* "max" too: no limit */
}

static uint64_t figure(const char *directory, const char *file)
{
    char path[PATH_SIZE + 64], text[64];
    if (directory[0] == 0) {
        return NEVER;
    }
    snprintf(path, sizeof path, "%s/%s", directory, file);
    return slurp(path, text, sizeof text) <= 0 ? NEVER : cgroup_number(text);
}

static uint64_t event_at(int fd, const char *name)
{
    char text[512];
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) {
        return NEVER;
    }
    text[n] = 0;
    return cgroup_field(text, name);
}

uint64_t cgroup_oom_kills(void) { return event_at(group.oom, "oom_kill"); }
uint64_t cgroup_forks_refused(void) { return event_at(group.refused, "max"); }

void cgroup_read(bool v2, const char *memory, const char *pids, const char *cpu, struct cgroup_figures *out)
{
    char path[PATH_SIZE + 64], text[2048];
    if (v2) {
        snprintf(path, sizeof path, "%s/cpu.stat", cpu);
        out->cpu_us = slurp(path, text, sizeof text) > 0 ? cgroup_field(text, "usage_usec") : NEVER;
        out->memory = figure(memory, "memory.current");
        out->memory_peak = figure(memory, "memory.peak");
        out->memory_limit = figure(memory, "memory.max");
    } else {
        uint64_t ns = figure(cpu, "cpuacct.usage");
        out->cpu_us = ns == NEVER ? NEVER : ns / 1000;
        out->memory = figure(memory, "memory.usage_in_bytes");
        out->memory_peak = figure(memory, "memory.max_usage_in_bytes");
        out->memory_limit = figure(memory, "memory.limit_in_bytes");
    }
    out->pids = figure(pids, "pids.current");
    out->pids_peak = figure(pids, "pids.peak");
    out->pids_limit = figure(pids, "pids.max");
}

/* A kernel without memory.peak or pids.peak (all of version 1, for pids): the highest that we saw ourselves. */
static uint64_t seen_peak(uint64_t told, uint64_t now, uint64_t *seen)
{
    *seen = now != NEVER && now > *seen ? now : *seen;
    return told != NEVER || now == NEVER ? told : *seen;
}

void cgroup_usage(struct usage *u)
{
    static uint64_t memory_seen, pids_seen;
    struct cgroup_figures f;
    cgroup_read(group.v2, group.memory, group.pids, group.cpu, &f);
    *u = (struct usage){f.cpu_us, f.memory, seen_peak(f.memory_peak, f.memory, &memory_seen), f.memory_limit, f.pids,
                        seen_peak(f.pids_peak, f.pids, &pids_seen), f.pids_limit, cgroup_oom_kills()};
}
