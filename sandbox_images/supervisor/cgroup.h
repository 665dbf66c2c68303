/* The pure parts of the cgroup readers, apart so that tests can feed them fixtures of both versions. */
#ifndef KF_CGROUP_H
#define KF_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Our group's path out of /proc/self/cgroup; `controller` NULL: version 2. */
bool cgroup_own_path(const char *list, const char *controller, char *out, size_t size);
/* The directory of our group for a controller, out of /proc/self/mountinfo and /proc/self/cgroup. */
bool cgroup_find_dir(const char *mounts, const char *groups, const char *controller, char *out, size_t size);
/* The number behind `name ` at a line's start; 2^64-1 where there is none. */
uint64_t cgroup_field(const char *text, const char *name);
uint64_t cgroup_number(const char *text);

struct cgroup_figures { uint64_t cpu_us, memory, memory_peak, memory_limit, pids, pids_peak, pids_limit; };
/* The figures of a group whose directories these are; on version 2 all three are the same. */
void cgroup_read(bool v2, const char *memory, const char *pids, const char *cpu, struct cgroup_figures *out);

#endif
