/* What concerns all execs at once: the freeze, the pause, the ends of an owner. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "super.h"

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

void frozen_more(void)
{
    if (kf.freezers++ == 0) {
        signal_everyone(SIGSTOP);
    }
}

void frozen_less(void)
{
    if (--kf.freezers == 0 && !kf.paused) {
        signal_everyone(SIGCONT);
        execs_begin_waiting();
    }
}

/* Stop everything, so that the shim can find and kill its own. */
void freeze_begin(struct exec *e)
{
    struct shim_message m = {.kind = kf.is_pid1 ? SHIM_FROZEN : SHIM_LAST, .serial = e->serial};
    if (e->frozen) {
        return; /* it was told already, and is at work */
    }
    if (kf.is_pid1) {
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

void freeze_goes_on(struct exec *e)
{
    if (e->freeze_deadline != NEVER) {
        e->freeze_deadline = kf.now + FREEZE_LIMIT;
    }
}

/* The shim was silent for too long; unless this process did not get to run either (starved, or its container paused). */
void freeze_check(struct exec *e)
{
    if (kf.now - e->freeze_deadline > SECOND) {
        freeze_goes_on(e);
    } else {
        freeze_expire(e);
    }
}

/* The shim does not find whom to kill: end everything that is the agent's. Every exec ends, and says so. */
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
        kf.paused_before += kf.now - kf.paused_since;
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

uint64_t paused_us(void) { return kf.paused_before + (kf.paused ? kf.now - kf.paused_since : 0); }

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
