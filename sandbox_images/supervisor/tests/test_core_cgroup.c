/* Finding our cgroup and reading its figures, on fixtures of both versions and of the layouts that engines make. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cgroup.h"
#include "check.h"

static const char v1_groups[] = "12:pids:/docker/abc\n8:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n";
static const char v1_bind[] =
    "30 25 0:26 /docker/abc /sys/fs/cgroup/memory ro,nosuid shared:9 - cgroup cgroup rw,memory\n"
    "31 25 0:27 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    "32 25 0:28 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n";
static const char v1_host[] = "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
static const char v2_mounts[] = "29 25 0:25 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";

static void find(const char *mounts, const char *groups, const char *controller, const char *wanted)
{
    char out[256] = "";
    bool found = cgroup_find_dir(mounts, groups, controller, out, sizeof out);
    CHECK(found == (wanted != NULL));
    CHECK(wanted == NULL || strcmp(out, wanted) == 0);
}

static void directories(void)
{
    find(v1_bind, v1_groups, "memory", "/sys/fs/cgroup/memory");
    find(v1_bind, v1_groups, "cpuacct", "/sys/fs/cgroup/cpu,cpuacct");
    find(v1_bind, v1_groups, "cpu", "/sys/fs/cgroup/cpu,cpuacct");
    find(v1_bind, v1_groups, "blkio", NULL);
    find(v1_bind, v1_groups, "mem", NULL);
    find(v1_host, v1_groups, "memory", "/sys/fs/cgroup/memory/docker/abc");
    find(v1_host, "8:memory:/\n", "memory", "/sys/fs/cgroup/memory");
    find(v2_mounts, "0::/\n", NULL, "/sys/fs/cgroup");
    find(v2_mounts, "0::/user.slice/a\n", NULL, "/sys/fs/cgroup/user.slice/a");
    find(v2_mounts, v1_groups, "memory", NULL);
    find("", "", NULL, NULL);
    find("garbage\n - \n", "::\n:\n", NULL, NULL);
}

static void figures(void)
{
    const char events[] = "low 0\nhigh 0\nmax 3\noom 2\noom_kill 7\noom_group_kill 0\n";
    CHECK(cgroup_field(events, "oom_kill") == 7);
    CHECK(cgroup_field(events, "oom") == 2);
    CHECK(cgroup_field("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n", "oom_kill") == 4);
    CHECK(cgroup_field(events, "kill") == UINT64_MAX);
    CHECK(cgroup_number("123456\n") == 123456);
    CHECK(cgroup_number("max\n") == UINT64_MAX);
    CHECK(cgroup_number("") == UINT64_MAX);
}

static void put(const char *directory, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* What one system of each version shows; a peak that the kernel does not keep is not known. */
static void readers(void)
{
    char one[] = "/tmp/kf-cgroup-XXXXXX", two[] = "/tmp/kf-cgroup-XXXXXX";
    struct cgroup_figures f;
    CHECK(mkdtemp(one) != NULL && mkdtemp(two) != NULL);
    put(one, "cpuacct.usage", "1500000\n");
    put(one, "memory.usage_in_bytes", "4096\n");
    put(one, "memory.max_usage_in_bytes", "8192\n");
    put(one, "memory.limit_in_bytes", "9223372036854771712\n");
    put(one, "pids.current", "3\n");
    put(one, "pids.max", "512\n");
    cgroup_read(false, one, one, one, &f);
    CHECK(f.cpu_us == 1500 && f.memory == 4096 && f.memory_peak == 8192 && f.memory_limit == 9223372036854771712u);
    CHECK(f.pids == 3 && f.pids_limit == 512 && f.pids_peak == UINT64_MAX);
    put(two, "cpu.stat", "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n");
    put(two, "memory.current", "4096\n");
    put(two, "memory.peak", "8192\n");
    put(two, "memory.max", "max\n");
    put(two, "pids.current", "3\n");
    put(two, "pids.peak", "9\n");
    put(two, "pids.max", "max\n");
    cgroup_read(true, two, two, two, &f);
    CHECK(f.cpu_us == 1500 && f.memory == 4096 && f.memory_peak == 8192 && f.memory_limit == UINT64_MAX);
    CHECK(f.pids == 3 && f.pids_peak == 9 && f.pids_limit == UINT64_MAX);
    cgroup_read(true, one, one, one, &f);
    CHECK(f.cpu_us == UINT64_MAX && f.memory == UINT64_MAX && f.memory_limit == UINT64_MAX && f.pids == 3);
    cgroup_read(false, "", "", "", &f);
    CHECK(f.cpu_us == UINT64_MAX && f.memory_peak == UINT64_MAX && f.pids == UINT64_MAX);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s %s", one, two);
    CHECK(system(command) == 0);
}

int main(void)
{
    directories();
    figures();
    readers();
    DONE();
}
