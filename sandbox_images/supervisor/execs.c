/* The execs: their records, their deadlines, and what their shims say about them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "super.h"

struct exec *exec_find(uint64_t id)
{
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *e = OWNER_OF(l, struct exec, link);
        if (e->id == id) {
            return e;
        }
    }
    return NULL;
}

uint8_t exec_state(const struct exec *e) { return !e->ended ? 1 : e->tree_empty ? 3 : 2; }

/* Forget an ended exec: its readers and waiters are told, its rings go. */
void exec_free(struct exec *e)
{
    LIST_EACH(l, spare, &e->readers) {
        struct request *r = OWNER_OF(l, struct request, by_use);
        channel_error(r->channel, r->id, KF_UNKNOWN_EXEC, 0, "the exec was forgotten");
        r->exec = NULL;
        request_free(r);
    }
    if (!list_empty(&e->ended_link)) {
        list_remove(&e->ended_link);
        kf.ended_count--;
    }
    relief_forget(e);
    list_remove(&e->link);
    list_remove(&e->dirty_link);
    for (int i = 0; i < 2; i++) {
        stream_close(&e->out[i]);
        ring_free(&e->out[i].ring);
    }
    input_close(&e->in);
    terminal_release(e);
    start_free(e->start);
    free(e->background);
    loop_free_later(e);
}

void execs_evict(void)
{
    LIST_EACH(l, spare, &kf.ended) {
        struct exec *e = OWNER_OF(l, struct exec, ended_link);
        if (kf.ended_count <= KEPT_EXECS && !ring_budget_short()) {
            return;
        }
        if (list_empty(&e->readers)) {
            exec_free(e);
        }
    }
}

bool execs_any_alive(void) { return kf.alive_count > 0; }

/* ---- killing */

void exec_kill(struct exec *e, uint8_t cause, uint64_t grace_ms)
{
    if (e->tree_empty) {
        return;
    }
    if (e->cause == 0 && !e->leader_exited) {
        e->cause = cause;
    }
    if (e->shim == NULL) {
        exec_tree_gone(e); /* it never started */
        exec_check(e);
        return;
    }
    struct shim_message m = {.kind = SHIM_KILL, .serial = e->serial, .b = cgroup_is_crowded(),
                             .n = grace_ms < 86400000 ? grace_ms : 86400000};
    e->kill_sent = true;
    e->kill_failed = false;
    if (!shim_send(e->shim, &m)) {
        exec_shim_lost(e);
    } else if (m.b && grace_ms == 0 && kf.is_pid1 && kf.root.change_uid && e->pid != 0) {
        freeze_begin(e); /* at once: the shim could only ask for it, and may not get to run for long */
    } else {
        uint64_t ends = kf.now + m.n * MS + MS;
        e->grace_ends = ends < e->grace_ends ? ends : e->grace_ends;
    }
}

void execs_kill_all(void)
{
    signal_everyone(9);
    LIST_EACH(l, spare, &kf.execs) {
        exec_kill(OWNER_OF(l, struct exec, link), CANCELLED, 0);
    }
}

/* The shim is gone, so nobody can prove anything about its processes any more: start again where none can be there,
 * else end every exec of the sandbox and say so. */
void exec_shim_lost(struct exec *e)
{
    struct shim *s = e->shim;
    bool before = s != NULL && !s->ready; /* it had not begun its work: nothing is run twice */
    e->shim = NULL;
    if (s != NULL) {
        s->exec = NULL;
        shim_release(s);
    }
    if (before && e->start != NULL && e->retries++ < 3 && e->cause == 0) {
        exec_begin(e);
        return;
    }
    if (before && e->start != NULL) {
        e->start_errno = e->cause == 0 ? ECHILD : 0;
    } else {
        e->kill_failed = true;
        e->survivors = 1;
        signal_everyone(9);
    }
    exec_tree_gone(e);
    exec_check(e);
}

/* ---- what a shim says */

static void on_started(struct exec *e, pid_t pid)
{
    e->pid = pid;
    start_free(e->start); /* the child's ends of the pipes with it, so that they can come to an end */
    e->start = NULL;
}

static void on_exited(struct exec *e, const struct shim_message *m)
{
    if (e->start != NULL) {
        on_started(e, m->pid);
    }
    e->leader_exited = true;
    e->status = m->a;
    e->start_errno = (int32_t)m->n;
    e->duration_us = (loop_clock() - e->started) / 1000;
    e->deadline = e->idle_deadline = NEVER;
    e->drain_deadline = kf.now + DRAIN_GRACE;
    terminal_release(e);
    stream_drain(&e->out[0]);
    stream_drain(&e->out[1]);
    if (m->b) {
        exec_tree_gone(e);
    }
}

static void on_not_started(struct exec *e, int error)
{
    struct shim *s = e->shim;
    e->shim = NULL;
    s->exec = NULL;
    shim_release(s);
    if (e->cause != 0) {
        exec_tree_gone(e);
    } else if (error == EAGAIN) {
        relief_begin(e);
    } else {
        e->start_errno = error;
        exec_tree_gone(e);
    }
}

static void on_listed(struct exec *e, const struct shim_message *m, const uint8_t *more, size_t length)
{
    uint32_t count = (uint32_t)m->a;
    if (!e->listing || length != count * sizeof *e->background) {
        return;
    }
    free(e->background);
    e->background = malloc(length + 1);
    if (e->background == NULL) {
        abort();
    }
    memcpy(e->background, more, length);
    e->background_count = count;
    e->listed = true;
}

static void on_signalled(struct exec *e, uint32_t count)
{
    LIST_EACH(l, spare, &e->waiters) {
        struct request *r = OWNER_OF(l, struct request, by_use);
        if (r->kind == REQUEST_SIGNAL) {
            uint8_t buffer[4];
            struct kf_writer w = kf_writer(buffer, sizeof buffer);
            kf_put_u32(&w, count);
            channel_send(r->channel, KF_OK, r->id, buffer, kf_written(&w));
            request_free(r);
            return;
        }
    }
}

void exec_on_shim(struct exec *e, const struct shim_message *m, const uint8_t *more, size_t length)
{
    e->killed = m->killed > e->killed ? m->killed : e->killed;
    switch (m->kind) {
    case SHIM_STARTED:
        on_started(e, m->a);
        e->started_due = kf.now + (e->mode & MODE_STREAM ? STARTED_DELAY : 0);
        stream_pace(e);
        exec_touch(e);
        break;
    case SHIM_NOT_STARTED: on_not_started(e, m->a); break;
    case SHIM_EXITED: on_exited(e, m); break;
    case SHIM_EMPTY: exec_tree_gone(e); break;
    case SHIM_FREEZE: freeze_begin(e); break;
    case SHIM_AT_WORK: freeze_goes_on(e); break;
    case SHIM_STUCK:
        if (e->freeze_deadline != NEVER) {
            freeze_expire(e);
        }
        break;
    case SHIM_FAILED:
        e->kill_failed = true;
        e->survivors = (uint32_t)m->a;
        freeze_end(e);
        waiters_answer(e);
        break;
    case SHIM_SIGNALLED: on_signalled(e, (uint32_t)m->n); break;
    case SHIM_LISTED: on_listed(e, m, more, length); break;
    default: break;
    }
    exec_check(e);
}

/* ---- time */

static void check_deadlines(struct exec *e, uint64_t now)
{
    if (!kf.paused && now >= e->deadline) {
        e->deadline = NEVER;
        exec_kill(e, TIMED_OUT, e->grace_ms);
    }
    if (!kf.paused && now >= e->idle_deadline) {
        if (exec_paused_by_reader(e)) {
            e->idle_deadline = now + e->idle_timeout; /* it may not write: that is not its idleness */
        } else {
            e->idle_deadline = NEVER;
            exec_kill(e, IDLE_TIMED_OUT, e->grace_ms);
        }
    }
    if (now >= e->drain_deadline) {
        exec_check(e);
        if (!e->ended && e->kill_sent && !e->tree_empty) {
            e->drain_deadline = NEVER; /* the proof is what is waited for; its arrival sets a new grace */
        }
    }
    if (now >= e->started_due) {
        exec_touch(e);
    }
    if (now >= e->grace_ends) {
        e->grace_ends = NEVER;
        if (!e->tree_empty && e->pid != 0 && kf.is_pid1 && kf.root.change_uid && cgroup_is_crowded()) {
            freeze_begin(e);
        }
    }
    if (now >= e->freeze_deadline) {
        freeze_check(e);
    }
}

void exec_timers(uint64_t now)
{
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *e = OWNER_OF(l, struct exec, link);
        if (!e->ended || !e->tree_empty) {
            check_deadlines(e, now);
        }
    }
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t exec_next_deadline(void)
{
    uint64_t next = NEVER;
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *e = OWNER_OF(l, struct exec, link);
        if (e->ended && e->tree_empty) {
            continue;
        }
        if (!kf.paused) {
            next = least(next, least(e->deadline, e->idle_deadline));
        }
        next = least(next, least(least(e->drain_deadline, e->grace_ends), least(e->started_due, e->freeze_deadline)));
    }
    return next;
}

static void shift(uint64_t *deadline, uint64_t by)
{
    if (*deadline != NEVER) {
        *deadline += by;
    }
}

void execs_shift(uint64_t by)
{
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *e = OWNER_OF(l, struct exec, link);
        shift(&e->deadline, by);
        shift(&e->idle_deadline, by);
        shift(&e->drain_deadline, by);
        shift(&e->freeze_deadline, by);
        shift(&e->grace_ends, by);
    }
}
