/* The supervisor proper (mode init): what it is made of. One process, one thread, one loop that never blocks. */
#ifndef KF_SUPER_H
#define KF_SUPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "disk.h"
#include "files.h"
#include "frames.h"
#include "wanted.h"
#include "list.h"
#include "ring.h"
#include "shimproto.h"
#include "spill.h"

#define MS 1000000ull               /* nanoseconds */
#define SECOND 1000000000ull
#define NEVER UINT64_MAX
#define QUEUE_FULL (1024u * 1024u)  /* a channel with more than this queued gets nothing stepped for it */
#define STDIN_WINDOW 262144u
#define MAX_CHANNELS 32
#define MAX_REQUESTS 4096           /* outstanding on one channel */
#define MAX_EXECS 1024              /* running or with processes left */
#define KEPT_EXECS 256              /* ended ones */
#define MAX_KEEP (64ull * 1024 * 1024)
#define DRAIN_GRACE (50 * MS)
#define FREEZE_LIMIT (10 * SECOND)  /* without a word of the shim that kills */
#define STARTED_DELAY (2 * MS)      /* STARTED of a fast exec travels with its end, in one write */

/* ---- idle.c */
void idle_on_request(uint8_t type); /* before it is looked at */
void idle_check(void);

/* ---- loop.c: descriptors and time */

struct watch {
    int fd;
    void (*ready)(struct watch *w, uint32_t events);
};

void loop_add(struct watch *w, uint32_t events);
void loop_change(struct watch *w, uint32_t events);
void loop_remove(struct watch *w);             /* stop watching; the descriptor stays open */
void loop_close(struct watch *w);              /* stop watching and close */
void loop_free_later(void *memory);            /* freed at the end of the turn: events may still name it */
void loop_forget(void);                        /* the turn is over: free them */
uint64_t loop_clock(void);
int loop_run(void);

/* ---- channel.c: one byte stream to a host */

struct channel {
    struct link link;                          /* in super.channels */
    struct watch watch;
    struct dial *dial;                         /* the dialled socket that this is, or NULL */
    bool greeted, hello_waits, closed, want_write;
    uint64_t hello_id;
    uint8_t *in;
    size_t in_have;
    uint8_t *out;
    size_t out_from, out_to, out_room;
    struct link requests[64];                  /* outstanding, by id */
    size_t request_count;
    struct link ops;                           /* the file requests among them, in turn */
};

enum request_kind { REQUEST_OP, REQUEST_READER, REQUEST_KILL, REQUEST_SIGNAL, REQUEST_OWNER, REQUEST_EGRESS };

/* One outstanding request of a channel. */
struct request {
    struct link by_id;                         /* in channel.requests[] */
    struct link by_use;                        /* in channel.ops, exec.readers or exec.waiters */
    struct channel *channel;
    uint64_t id;
    uint8_t type;
    enum request_kind kind;
    struct kf_op *op;
    bool op_waits;
    struct exec *exec;
    /* a reader: EXEC, ATTACH or KEPT */
    bool streaming, closing;                   /* closing: ends once everything up to until[] was sent */
    uint64_t sent[2], limit[2], until[2];
    uint8_t only;                              /* KEPT: 1 or 2, the stream wanted; else 0 */
    struct owner_end *owner_end;
    struct claim *claim;
};

struct channel *channel_new(int fd, struct dial *dial);
void channel_close(struct channel *c);
bool channel_full(const struct channel *c);
void channel_send(struct channel *c, uint8_t type, uint64_t id, const void *payload, size_t length);
void channel_error(struct channel *c, uint64_t id, uint8_t kind, int error, const char *message);
/* Room for one frame of this payload size in the queue; the payload is filled in by the caller, at most once and at once. */
uint8_t *channel_reserve(struct channel *c, uint8_t type, uint64_t id, size_t length);
void channel_unreserve(struct channel *c, size_t length, size_t used); /* shorten the frame just reserved */
void channel_emit(void *channel, uint8_t type, uint64_t id, const void *payload, size_t length);
void channel_flush(struct channel *c);
void channels_flush(void);
void channels_greet(void);                     /* answer HELLOs that waited for the probe */

/* ---- outstanding.c */
bool channels_step(void);                      /* one slice for each channel that has file requests; true: more to do */
struct request *request_new(struct channel *c, uint8_t type, uint64_t id, enum request_kind kind);
struct request *request_find(struct channel *c, uint64_t id);
void request_free(struct request *r);

/* ---- requests.c: what each frame does; false ends the channel */
bool request_dispatch(struct channel *c, const struct kf_header *h, const uint8_t *payload);
void answer_hello(struct channel *c, uint64_t id);

/* ---- execs.c */

struct stream {
    struct watch watch;                        /* the pipe's read end */
    struct exec *exec;
    struct ring ring;
    struct link nap;                           /* in the list of floods left to fill their pipes */
    bool napping;
    bool armed, eof, flood;                    /* armed: watched now; eof: closed; flood: its pipe was widened */
};

struct input {
    struct watch watch;                        /* the pipe's write end */
    struct exec *exec;
    bool wanted, armed, eof, closed;           /* eof: the host has said so; closed: the pipe is */
    bool terminal, line_begun;                 /* a terminal's: the last byte ended no line */
    uint64_t accepted, granted, eof_at;
    struct spill spill;                        /* what the program has not read yet */
};

struct exec {
    struct link link;                          /* in super.execs */
    struct link ended_link;                    /* in super.ended, oldest first */
    struct link dirty_link;                    /* in super.dirty: readers to pump */
    struct link readers, waiters;
    uint64_t id;
    uint8_t mode;
    char owner[MAX_OWNER];
    uint32_t owner_length;
    struct start *start;                       /* what to start, until a shim has it */
    struct shim *shim;
    uint32_t serial;
    int retries;
    struct stream out[2];
    struct input in;
    int terminal;                              /* its program's side, open here until the leader ends; -1: none */
    uint64_t grace_ms, output_limit, idle_timeout;
    uint64_t created, started, deadline, idle_deadline, drain_deadline, started_due, freeze_deadline;
    bool started_told, leader_exited, ended, tree_empty, frozen, last_sent, listed, listing, kill_sent;
    bool killed_by_signal;                     /* the host sent SIGKILL by SIGNAL: not an OOM kill */
    uint64_t grace_ends;                       /* of our kill: should the shim not get to run by then, we freeze for it */
    uint8_t cause;                             /* ended_by of our own kill, 0: none */
    bool kill_failed;
    pid_t pid;
    int status;
    int32_t start_errno;
    uint32_t killed, survivors;
    uint64_t oom_before, oom_kills, duration_us;
    uint8_t ended_by;
    uint64_t end_total[2];
    struct disk_use disk;                      /* at its end */
    uint32_t *background;
    uint32_t background_count;
};

enum ended_by { EXITED = 1, SIGNALLED, TIMED_OUT, IDLE_TIMED_OUT, OUTPUT_LIMITED, PIDS_LIMITED, CANCELLED, OOM_KILLED,
                KILL_FAILED, DISK_LIMITED };

struct exec *exec_find(uint64_t id);
void exec_free(struct exec *e);
void exec_touch(struct exec *e);               /* its readers have something to look at */
void exec_kill(struct exec *e, uint8_t cause, uint64_t grace_ms);
void exec_check(struct exec *e);               /* has it ended? then say so */
void exec_timers(uint64_t now);
uint64_t exec_next_deadline(void);
void execs_shift(uint64_t by);                 /* time that did not count */
void execs_kill_all(void);                     /* orphaned, or ending: everything, at once */
bool execs_any_alive(void);
void execs_evict(void);                        /* keep no more than KEPT_EXECS ended ones */
uint8_t exec_state(const struct exec *e);
void exec_on_shim(struct exec *e, const struct shim_message *m, const uint8_t *more, size_t length);
void exec_shim_lost(struct exec *e);
void exec_ended(struct exec *e);               /* execend.c: fix how it ended, close its readers */
void exec_tree_gone(struct exec *e);           /* execend.c: ECHILD was said */
size_t exec_end_payload(const struct exec *e, const uint64_t totals[2], uint8_t *buffer, size_t size);

/* ---- execstart.c */
struct start {
    int argc, envc;
    char *strings;
    size_t length;
    int fds[4];                                /* cwd, stdin, stdout, stderr: the child's ends */
};
bool exec_request(struct channel *c, uint64_t id, const uint8_t *payload, size_t length);
void exec_begin(struct exec *e);               /* give it to a shim, or leave it waiting */
void execs_begin_waiting(void);
void start_free(struct start *s);

/* ---- terminals.c */
/* Open a terminal: ours[0] and ours[1] are its master, s->fds[1..3] the program's side. 0, or an error kind with errno. */
uint8_t terminal_open(struct start *s, const struct wanted *w, int ours[3]);
void terminal_release(struct exec *e);         /* no program of ours holds it open any more */
void resize_request(struct channel *c, uint64_t id, uint64_t exec_id, uint16_t rows, uint16_t columns);

/* ---- top.c */
void processes_request(struct channel *c, uint64_t id);

/* ---- streams.c and readers.c */
void stream_read(struct stream *s);            /* one bounded read */
void stream_drain(struct stream *s);           /* all that is there now */
void stream_close(struct stream *s);
void stream_pace(struct exec *e);              /* pause or resume reading, by what readers were sent */
bool readers_pump(void);                       /* true: more to do right away */
void readers_close(struct exec *e);            /* let the attached readers end at what is there now */
bool exec_paused_by_reader(const struct exec *e);
void reader_attach(struct request *r, struct exec *e);
void reader_window(struct request *r);
bool attach_request(struct channel *c, uint64_t id, struct kf_reader *r);
bool kept_request(struct channel *c, uint64_t id, struct kf_reader *r);

/* ---- stdin.c */
bool input_data(struct exec *e, uint64_t offset, const uint8_t *data, size_t length);
bool input_eof(struct exec *e, uint64_t offset);
void input_close(struct input *in);
void input_start(struct exec *e, int fd);
bool stdin_request(uint64_t id, struct kf_reader *r, bool eof);

/* ---- kills.c: freeze, pause, owners */
bool signal_everyone(int signal);              /* the only kill(-1): refuses unless we are PID 1 */
void freeze_begin(struct exec *e);
void freeze_end(struct exec *e);
void freeze_goes_on(struct exec *e);
void freeze_check(struct exec *e);
void freeze_expire(struct exec *e);
void pause_all(bool pause);
uint64_t paused_us(void); /* in all, the pause that holds included */
void kill_request(struct channel *c, uint64_t id, struct exec *e, uint64_t grace_ms);
void owner_request(struct channel *c, uint64_t id, const uint8_t *owner, uint32_t length, uint64_t grace_ms);
void waiters_answer(struct exec *e);           /* the tree is proved dead, or could not be */
void owner_drop(struct request *r);
void frozen_more(void);                        /* somebody needs everything stopped */
void frozen_less(void);                        /* and does not any more */

/* ---- relief.c: room at the pids limit */
void relief_begin(struct exec *waiting);       /* end the exec with the most processes; NULL: nobody waits for it */
void relief_answer(pid_t biggest);
void relief_check(void);
void relief_watch(void);
void relief_forget(const struct exec *e);

/* ---- shims.c: the pool */
struct shim {
    struct link link;                          /* in super.shims */
    struct watch watch;
    pid_t pid;
    bool ready, gone;
    struct exec *exec;                         /* NULL: idle */
};
bool shims_spawn(void);
struct shim *shim_take(void);                  /* an idle one, or a new one, or NULL with errno */
void shim_release(struct shim *s);
void shims_refill(void);
bool shims_short(void);
bool shim_send(struct shim *s, const struct shim_message *m);
bool shim_send_start(struct shim *s, const struct shim_message *m, const struct start *start);
struct shim *shim_any(void);
void shims_reap(void);

/* ---- egress.c: connections of programs, carried to a host that has claimed them */
#define EGRESS_WINDOW 262144u
struct claim;
bool egress_listen(uint64_t port);             /* on 127.0.0.1; 0: any free port */
uint16_t egress_port(void);                    /* 0: not asked for */
bool egress_request(struct channel *c, uint64_t id, struct kf_reader *r);
bool egress_follow_up(struct channel *c, const struct kf_header *h, struct kf_reader *r);
void egress_drop(struct claim *claim);         /* its channel is gone, or it was cancelled */
void egress_step(void);                        /* once a turn: what waited for room or descriptors */

/* ---- links.c: the listening socket and the dialled ones */
bool links_listen(void);
void links_dial(void);
void links_tick(uint64_t now);
void link_lost(struct dial *d);
void links_close(void);

/* ---- cgroup.c */
struct usage { uint64_t cpu_us, memory, memory_peak, memory_limit, pids, pids_peak, pids_limit, oom_kills; };
void cgroup_open(void);
void cgroup_usage(struct usage *u);
uint64_t cgroup_oom_kills(void);
uint64_t cgroup_forks_refused(void);           /* at the pids limit, so far */
bool cgroup_is_crowded(void);                  /* over 7/8 of the pids limit: somebody may be spinning at it */
bool cgroup_is_v2(void);
bool cgroup_is_readable(void);

/* ---- config.c */
struct config {
    const char *root, *home, *socket_dir, *dial_dir;
    bool have_user, seccomp, local;
    uid_t uid;
    gid_t gid;
    bool egress;
    uint64_t egress_port;
    uint64_t orphan_grace, idle_pause, nofile, fsize;
    enum disk_kind disk;
    uint64_t disk_bytes, disk_inodes;
    const char **env;
    size_t env_count;
};
bool config_read(struct config *config, int argc, char **argv);

/* ---- init.c */
struct super {
    struct config config;
    struct kf_root root;
    int epoll;
    uint64_t now, generation, last_heard, last_used, paused_since, paused_before; /* the last: how long in all, up to then */
    bool is_pid1, paused, idle_paused, terminating, orphaned, probe_done;
    int32_t can;
    bool warden;
    int null;                                  /* what an exec without stdin reads: ends at once */
    int freezers;                              /* execs being killed while everything is stopped */
    uint32_t controls;
    struct link channels, execs, ended, dirty, shims;
    size_t channel_count, alive_count, ended_count;
    uint32_t next_serial;
    uint64_t refill_at, exit_at, probe_deadline;
    int exit_code;
    bool leave;
};
extern struct super kf;
int init_main(int argc, char **argv);
void init_terminate(void);

int relay_main(int argc, char **argv);

#endif
