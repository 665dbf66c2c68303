/* Inside a shim: its options, the process scan, the leader, and the killing. */
#ifndef KF_SHIM_H
#define KF_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shimproto.h"

#define WARDEN 65533u

struct shim_options {
    int socket;
    uid_t uid;        /* the agent */
    gid_t gid;
    bool change_uid;  /* false in --local mode */
    bool seccomp;
    bool probe;       /* measure what is possible here and say so in READY */
    uint64_t nofile;  /* 0: leave as it is */
    uint64_t fsize;
};

/* ---- procscan.c */

struct process {
    pid_t pid, parent;
    uint64_t start;   /* clock ticks since boot: with the pid it names one process */
    uint32_t threads;
    uint32_t under;   /* descendants, counted by scan_biggest */
    uint64_t memory;  /* pages resident */
    uint64_t ticks;   /* of the processor, its own and the system's for it */
    char state;
    char name[16];    /* as the program calls itself: any bytes but NUL */
    bool ours;        /* a descendant of the scanning process */
};

struct scan { struct process *all; size_t count, room; };

/* Read every process of this pid namespace and mark the caller's descendants; false: `budget_us` ran out first. */
bool scan_processes(struct scan *scan, uint64_t budget_us);
/* Only the caller's descendants, from parents to children: as long as they are few it costs little beside thousands of
 * others, but it may miss who moves meanwhile. False: this kernel does not tell children (use scan_processes). */
bool scan_descendants(struct scan *scan, uint64_t budget_us);
/* The child of `parent` that `p` is, or is beneath; NULL where it is neither. */
const struct process *scan_child_above(const struct scan *scan, const struct process *p, pid_t parent);
/* The child of `parent` with the most processes beneath and including itself; 0 where it has none. */
pid_t scan_biggest(struct scan *scan, pid_t parent, uint32_t *count);
/* Send a signal to exactly this process, by pidfd and only if it is still the one scanned; false: it was not sent.
 * `frozen`: every process of the agent is stopped, so the pid alone will do. */
bool scan_signal(const struct process *p, int signal, bool frozen);

/* ---- leader.c */

struct leader_spec {
    int argc, envc;
    const char *strings;    /* argv, then env, each NUL-ended */
    size_t length;
    int cwd, in, out, err;  /* descriptors, closed by the caller after the start */
    bool terminal;          /* `in` is one: the program becomes its session's leader */
    int report;             /* where the child writes its errno if it cannot start */
};

/* Fork and start the program; its pid, or -1 with errno. A program that cannot start writes an i32 errno to `report`. */
pid_t leader_start(const struct shim_options *o, const struct leader_spec *spec);
/* Become the agent for good, with no capability at all; false with errno. */
bool become_agent(uid_t uid, gid_t gid);
/* Fork a child that becomes the agent and installs the filter; CAN_ bits of what worked. */
int32_t leader_probe(const struct shim_options *o);

/* ---- seccomp.c */

/* Install the deny filter on the calling process (no_new_privs must be set); false with errno. */
bool seccomp_install(void);

/* ---- promptness.c */

/* Ask the scheduler for short turns that come soon. Old kernels do not know it. */
void be_prompt(void);
/* For a program: usual turns, and this niceness. */
void be_modest(int nice);

uint64_t shim_now_us(void);
int shim_main(int argc, char **argv);

#endif
