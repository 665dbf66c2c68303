/* What init and a shim say to each other over their SOCK_SEQPACKET pair: one fixed header, sometimes bytes behind it. */
#ifndef KF_SHIMPROTO_H
#define KF_SHIMPROTO_H

#include <stdint.h>

/* A START whose strings are longer than this carries them in a memfd instead (a packet has a size limit). */
#define SHIM_INLINE 32768u
/* At most so many processes are listed as left behind. */
#define SHIM_MAX_PIDS 1024u

enum shim_kind {
    /* init to shim */
    SHIM_START = 1, /* a: argc, b: envc, n: bytes of NUL-ended strings; descriptors: cwd, stdin, stdout, stderr[, memfd] */
    SHIM_KILL,      /* n: grace in ms, b: 1 to freeze without trying rounds first: end every descendant, with proof */
    SHIM_SIGNAL,    /* a: signal, b: whom */
    SHIM_FROZEN,    /* every process of the agent is stopped now: kill yours */
    SHIM_LAST,      /* init has sent KILL to all of the agent's processes: reap, and say so or give up */
    SHIM_LIST,      /* name the living descendants */
    SHIM_BIGGEST,   /* which child of init has the most descendants? */
    /* shim to init */
    SHIM_READY = 32, /* a: CAN_ bits measured by the probe, b: 1 if it runs as the warden */
    SHIM_STARTED,    /* a: the leader's pid; left out where it ends within STARTED_WITHIN_MS and nobody streams */
    SHIM_NOT_STARTED,/* a: errno of fork */
    SHIM_EXITED,     /* the leader: a: wait status, b: 1 if nothing is left (ECHILD), n: start errno; killed */
    SHIM_EMPTY,      /* ECHILD: the tree is proved dead; killed */
    SHIM_FREEZE,     /* please freeze: three rounds did not do */
    SHIM_AT_WORK,    /* all are still stopped, and this one gets to run: at least every half second of its own looking */
    SHIM_STUCK,      /* all are stopped, and it finds nobody to kill, yet somebody is left */
    SHIM_FAILED,     /* a: survivors; killed */
    SHIM_SIGNALLED,  /* n: how many were signalled */
    SHIM_LISTED,     /* a: count, then that many u32 pids */
    SHIM_BIGGEST_IS, /* a: pid of that child of init or 0, n: its descendants */
};

#define STARTED_WITHIN_MS 2
enum { START_TELL_AT_ONCE = 1, START_TERMINAL = 2 /* stdin is a terminal that the program is to control */ };
enum { SIGNAL_LEADER, SIGNAL_ALL, SIGNAL_QUIETLY /* all, and no answer */ };
enum { CAN_CHANGE_UID = 1, CAN_FILTER = 2 };

struct shim_message {
    uint32_t kind;
    uint32_t serial; /* which exec is meant: a shim is used for many, one after another */
    int32_t a, b;
    uint32_t killed; /* processes that got KILL so far */
    int32_t pid;     /* EXITED: the leader's, which STARTED may not have told; START: START_ bits */
    uint64_t n;
};

#endif
