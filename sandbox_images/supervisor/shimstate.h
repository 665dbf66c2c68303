/* One shim's state, shared by its three parts: starting up, killing, and the loop that obeys init. */
#ifndef KF_SHIMSTATE_H
#define KF_SHIMSTATE_H

#include "shim.h"

#define LOCAL_LIMIT_US 2000000u    /* repeated rounds, where nothing can be frozen */
#define FROZEN_BUDGET_US 1000000u
#define ROUNDS_US 20000u
#define WHOLE_SCAN_US 4000000u     /* all are stopped, so there are only so many; well below what init waits for a word */
#define AT_WORK_US 500000u
#define STUCK_LOOKS 1000u          /* looks, 2 ms apart and more, at which nobody had died: who waits gets to run as often */
#define STALLED_US 20000u          /* nobody has died for so long: somebody may have been missed */

enum phase { IDLE, RUNNING, GRACE, AWAIT_FREEZE, FROZEN, REPEAT, LAST };

struct shim_state {
    struct shim_options o;
    enum phase phase;
    uint32_t serial;
    pid_t leader;
    bool started_told, leader_reaped, leader_told;
    bool terminal;            /* the leader controls one */
    int leader_status;
    uint64_t reaped;          /* processes reaped so far */
    uint64_t deadline_us;     /* of the phase; 0: none */
    uint64_t reaped_seen, looked_us; /* at the last sign of dying while all are stopped */
    uint64_t told_us;         /* when init last heard that this goes on */
    uint32_t fruitless;       /* looks in a row at which nobody had died */
    uint32_t dying;           /* whom the last whole scan found alive, and sent KILL */
    bool crowded;             /* near the pids limit: a scan beside a fork bomb would take seconds */
    struct scan scan;
    struct { pid_t pid; uint64_t start; } *done; /* whom we sent KILL, so that nobody is counted twice */
    size_t done_count, done_room;
    int report[2];            /* the leader's errno, kept open: only a child that is not dumpable ever holds it */
    int children;             /* signalfd for SIGCHLD */
    char packet[sizeof(struct shim_message) + SHIM_INLINE];
};
extern struct shim_state me;

/* ---- shimkill.c */
void tell_with(struct shim_message m, const void *more, size_t length);
void tell(struct shim_message m);
bool reap(void);                       /* true: ECHILD, nobody is left */
void reap_and_tell(void);
bool is_dead(const struct process *p);
uint32_t signal_all(int signal, uint64_t budget_us); /* looks at every process there is */
bool kill_rounds(void);                /* true: ECHILD */
void on_kill(uint64_t grace_ms, bool crowded);
void frozen_begin(enum phase phase);
void on_deadline(void);

/* ---- shimsetup.c */
bool shim_set_up(int argc, char **argv);

#endif
