/* What concerns all execs at once: the freeze, the pause, room at the pids limit, the ends of an owner. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "super.h"

#define RELIEF_LIMIT (1500 * MS)

/* Every process of the agent, atomically against fork. Only PID 1 may: anywhere else -1 means the whole machine. */
bool signal_everyone(int signal)
{
    if (getpid() != 1) {
        errno = EPERM;
        return false;
    }
    /* Real uid 0, effective uid the agent: it reaches the agent's processes and spares the warden's. */
    kf_as_agent(&kf.root);
    bool sent = kill(-1, signal) == 0 || errno == ESRCH;
    kf_as_self(&kf.root);
    return sent;
}

/* ---- freeze */

static void frozen_more(void)
{
    if (kf.freezers++ == 0) {
        signal_everyone(SIGSTOP);
    }
}

static void frozen_less(void)
{
    if (--kf.freezers == 0 && !kf.paused) {
        signal_everyone(SIGCONT);
        execs_begin_waiting();
    }
}

void freeze_begin(struct exec *e)
{
    struct shim_message m = {.kind = kf.is_pid1 ? SHIM_FROZEN : SHIM_LAST, .serial = e->serial};
    if (kf.is_pid1 && !e->frozen) {
        e->frozen = true;
        e->freeze_deadline = kf.now + FREEZE_LIMIT;
        frozen_more();
    }
    shim_send(e->shim, &m);
}

void freeze_end(struct exec *e)
{
    if (e->frozen) {
        e->frozen = false;
        e->freeze_deadline = NEVER;
        frozen_less();
    }
}

/* Two seconds were not enough: end everything that is the agent's. Every exec ends, and says so. */
void freeze_expire(struct exec *e)
{
    struct shim_message m = {.kind = SHIM_LAST, .serial = e->serial};
    e->freeze_deadline = NEVER;
    signal_everyone(SIGKILL);
    if (e->shim != NULL) {
        shim_send(e->shim, &m);
    }
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *other = OWNER_OF(l, struct exec, link);
        if (other != e && other->shim != NULL && !other->kill_sent) {
            exec_kill(other, CANCELLED, 0);
        }
    }
}

/* ---- pause */

static void signal_each(int signal)
{
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *e = OWNER_OF(l, struct exec, link);
        struct shim_message m = {.kind = SHIM_SIGNAL, .serial = e->serial, .a = signal, .b = SIGNAL_QUIETLY};
        if (e->shim != NULL) {
            shim_send(e->shim, &m);
        }
    }
}

void pause_all(bool pause)
{
    if (pause == kf.paused) {
        return;
    }
    kf.paused = pause;
    if (pause) {
        kf.paused_since = kf.now;
    } else {
        execs_shift(kf.now - kf.paused_since);
    }
    if (!kf.is_pid1 || !kf.root.change_uid) {
        signal_each(pause ? SIGSTOP : SIGCONT);
    } else if (kf.freezers == 0) {
        signal_everyone(pause ? SIGSTOP : SIGCONT);
    }
    if (!pause) {
        execs_begin_waiting();
    }
}

/* ---- relief at the pids limit */

static struct {
    struct exec *waiting, *victim;
    uint64_t deadline;
    bool active, frozen;
} relief;

static void relief_end(void)
{
    struct exec *waiting = relief.waiting;
    bool frozen = relief.frozen;
    relief.active = relief.frozen = false;
    relief.waiting = relief.victim = NULL;
    if (frozen) {
        frozen_less();
    }
    if (waiting != NULL && waiting->start != NULL && waiting->shim == NULL) {
        exec_begin(waiting);
    }
    execs_begin_waiting();
}

static void hopeless(struct exec *waiting)
{
    waiting->start_errno = EAGAIN;
    relief.waiting = NULL;
    exec_tree_gone(waiting);
    exec_check(waiting);
}

/* An exec cannot start for want of pids: stop everything, find who has the most processes, end that. */
void relief_begin(struct exec *waiting)
{
    if (relief.active) {
        return; /* relief_end() starts all that wait */
    }
    struct shim *s = shim_any();
    relief.active = true;
    relief.waiting = waiting;
    relief.victim = NULL;
    relief.deadline = kf.now + RELIEF_LIMIT;
    if (kf.is_pid1 && kf.root.change_uid) {
        relief.frozen = true;
        frozen_more();
    }
    struct shim_message m = {.kind = SHIM_BIGGEST};
    if (waiting->retries++ >= 3 || s == NULL || !shim_send(s, &m)) {
        hopeless(waiting);
        relief_end();
    }
}

void relief_answer(pid_t biggest)
{
    if (!relief.active || relief.victim != NULL) {
        return;
    }
    LIST_EACH(l, spare, &kf.shims) {
        struct shim *s = OWNER_OF(l, struct shim, link);
        if (s->pid == biggest && s->exec != NULL && s->exec != relief.waiting) {
            relief.victim = s->exec;
        }
    }
    if (relief.victim != NULL) {
        exec_kill(relief.victim, PIDS_LIMITED, 0);
    } else {
        if (relief.waiting != NULL) {
            hopeless(relief.waiting);
        }
        relief_end();
    }
}

/* Every turn: is the victim dead, or has it taken too long? (The waiting one then tries again.) */
void relief_check(void)
{
    bool dead = relief.active && relief.victim != NULL && relief.victim->tree_empty;
    if (dead || (relief.active && kf.now >= relief.deadline)) {
        relief_end();
    }
}

void relief_forget(const struct exec *e)
{
    relief.waiting = relief.waiting == e ? NULL : relief.waiting;
    if (relief.victim == e) {
        relief.victim = NULL;
        relief.deadline = 0;
    }
}

/* ---- KILL and END_OWNER */

static void answer_kill(struct request *r, const struct exec *e)
{
    uint8_t buffer[8];
    struct kf_writer w = kf_writer(buffer, sizeof buffer);
    kf_put_u32(&w, e->killed);
    kf_put_u32(&w, 0);
    if (e->tree_empty && !e->kill_failed) {
        channel_send(r->channel, KF_OK, r->id, buffer, kf_written(&w));
    } else {
        channel_error(r->channel, r->id, KF_KILL_FAILED, 0, "processes are left that could not be killed");
    }
}

void kill_request(struct channel *c, uint64_t id, struct exec *e, uint64_t grace_ms)
{
    if (e->tree_empty) {
        static const uint8_t none[8];
        channel_send(c, KF_OK, id, none, sizeof none);
        return;
    }
    struct request *r = request_new(c, KF_KILL, id, REQUEST_KILL);
    r->exec = e;
    list_add(&e->waiters, &r->by_use);
    exec_kill(e, CANCELLED, grace_ms);
}

static struct link owner_ends = {&owner_ends, &owner_ends};

struct owner_end {
    struct link link;
    struct request *request;
    uint32_t count, waiting;
    struct { uint64_t id; uint32_t killed, survivors; struct exec *exec; } each[];
};

void owner_drop(struct request *r)
{
    list_remove(&r->owner_end->link);
    loop_free_later(r->owner_end);
    r->owner_end = NULL;
}

static void owner_answer(struct owner_end *o)
{
    static uint8_t buffer[4 + MAX_EXECS * 16];
    struct kf_writer w = kf_writer(buffer, sizeof buffer);
    kf_put_u32(&w, o->count);
    for (uint32_t i = 0; i < o->count; i++) {
        kf_put_u64(&w, o->each[i].id);
        kf_put_u32(&w, o->each[i].killed);
        kf_put_u32(&w, o->each[i].survivors);
    }
    channel_send(o->request->channel, KF_OK, o->request->id, buffer, kf_written(&w));
    request_free(o->request);
}

static bool owned_and_alive(const struct exec *e, const uint8_t *owner, uint32_t length)
{
    return !e->tree_empty && e->owner_length == length && (length == 0 || memcmp(e->owner, owner, length) == 0);
}

void owner_request(struct channel *c, uint64_t id, const uint8_t *owner, uint32_t length, uint64_t grace_ms)
{
    struct owner_end *o = calloc(1, sizeof *o + MAX_EXECS * sizeof *o->each);
    if (o == NULL) {
        abort();
    }
    o->request = request_new(c, KF_END_OWNER, id, REQUEST_OWNER);
    o->request->owner_end = o;
    list_add(&owner_ends, &o->link);
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *e = OWNER_OF(l, struct exec, link);
        if (owned_and_alive(e, owner, length)) {
            o->each[o->count].id = e->id;
            o->each[o->count++].exec = e;
        }
    }
    o->waiting = o->count + 1; /* one for ourselves: an exec that never started ends inside exec_kill */
    for (uint32_t i = 0; i < o->count; i++) {
        if (o->each[i].exec != NULL) {
            exec_kill(o->each[i].exec, CANCELLED, grace_ms);
        }
    }
    if (--o->waiting == 0) {
        owner_answer(o);
    }
}

static void tell_owner(struct owner_end *o, const struct exec *e)
{
    for (uint32_t i = 0; i < o->count; i++) {
        if (o->each[i].exec == e) {
            o->each[i].exec = NULL;
            o->each[i].killed = e->killed;
            o->each[i].survivors = e->survivors;
            if (--o->waiting == 0) {
                owner_answer(o);
            }
            return;
        }
    }
}

void waiters_answer(struct exec *e)
{
    LIST_EACH(l, spare, &e->waiters) {
        struct request *r = OWNER_OF(l, struct request, by_use);
        if (r->kind == REQUEST_KILL) {
            answer_kill(r, e);
        } else {
            static const uint8_t none[4];
            channel_send(r->channel, KF_OK, r->id, none, sizeof none); /* a SIGNAL that crossed the end */
        }
        request_free(r);
    }
    LIST_EACH(m, spare2, &owner_ends) {
        tell_owner(OWNER_OF(m, struct owner_end, link), e);
    }
}
