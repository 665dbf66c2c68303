/* How an exec ends: when, by what evidence, and what its terminal frame says. */
#include <stdlib.h>
#include <sys/wait.h>

#include "super.h"

static bool streams_done(const struct exec *e) { return e->out[0].eof && e->out[1].eof; }

static void close_pipes(struct exec *e)
{
    for (int i = 0; i < 2; i++) {
        stream_close(&e->out[i]);
    }
    input_close(&e->in);
}

/* ECHILD was said (or nothing ever ran): no process of this exec exists any more. */
void exec_tree_gone(struct exec *e)
{
    struct shim *s = e->shim;
    if (e->tree_empty) {
        return;
    }
    e->tree_empty = true;
    e->grace_ends = NEVER;
    kf.alive_count--;
    freeze_end(e);
    if (e->start != NULL) {
        start_free(e->start);
        e->start = NULL;
    }
    e->shim = NULL;
    if (s != NULL) {
        s->exec = NULL;
        shim_release(s);
    }
    terminal_release(e);
    stream_drain(&e->out[0]);
    stream_drain(&e->out[1]);
    e->drain_deadline = e->drain_deadline == NEVER ? kf.now + DRAIN_GRACE : e->drain_deadline;
    waiters_answer(e);
}

/* Settle the record of an exec of which nothing is left, once. */
static void retire(struct exec *e)
{
    if (!list_empty(&e->ended_link)) {
        return;
    }
    close_pipes(e);
    list_add(&kf.ended, &e->ended_link);
    kf.ended_count++;
    e->background_count = 0;
    e->drain_deadline = NEVER;
    readers_close(e);
}

/* May its end be told? The leader is gone, our kill is proved, and its output was read (or its grace is over). */
static bool may_end(struct exec *e)
{
    bool stopped = e->leader_exited || e->tree_empty;
    if (e->kill_failed && e->kill_sent) {
        return true;
    }
    if (!stopped || (e->kill_sent && !e->tree_empty)) {
        return false;
    }
    if (streams_done(e) || e->listing) {
        return true;
    }
    if (exec_paused_by_reader(e)) {
        e->drain_deadline = kf.now + DRAIN_GRACE; /* what waits in the pipe is still wanted: the grace starts when it moves */
        return false;
    }
    return kf.now >= e->drain_deadline;
}

void exec_check(struct exec *e)
{
    if (e->ended) {
        bool over = streams_done(e) || (kf.now >= e->drain_deadline && !exec_paused_by_reader(e));
        if (e->tree_empty && over) {
            retire(e);
        } else if (e->tree_empty && kf.now >= e->drain_deadline) {
            e->drain_deadline = kf.now + DRAIN_GRACE;
        }
        return;
    }
    if (!may_end(e)) {
        return;
    }
    if (!e->tree_empty && !e->listed && !e->kill_failed) {
        struct shim_message m = {.kind = SHIM_LIST, .serial = e->serial};
        if (!e->listing) {
            e->listing = true;
            shim_send(e->shim, &m);
        }
        e->drain_deadline = NEVER;
        return; /* LISTED or EMPTY comes at once */
    }
    exec_ended(e);
    if (e->tree_empty) {
        retire(e);
    }
}

static uint8_t judge(const struct exec *e)
{
    bool by_signal = e->leader_exited && WIFSIGNALED(e->status);
    bool oom_like = (by_signal && WTERMSIG(e->status) == 9 && !e->killed_by_signal) ||
                    (e->leader_exited && WIFEXITED(e->status) && WEXITSTATUS(e->status) == 137);
    if (e->kill_failed) {
        return KILL_FAILED;
    }
    if (e->cause != 0) {
        return e->cause;
    }
    if (e->oom_kills > 0 && oom_like) {
        return OOM_KILLED;
    }
    return by_signal ? SIGNALLED : EXITED;
}

void exec_ended(struct exec *e)
{
    uint64_t oom_now = cgroup_oom_kills();
    e->ended = true;
    e->oom_kills = e->oom_before != NEVER && oom_now != NEVER && oom_now > e->oom_before ? oom_now - e->oom_before : 0;
    if (e->start_errno != 0 && !e->leader_exited) {
        e->leader_exited = true; /* the fork itself failed: told like any program that cannot start */
        e->status = 126 << 8;
    }
    if (!e->leader_exited) {
        e->duration_us = e->started == 0 ? 0 : (kf.now - e->started) / 1000;
    }
    e->ended_by = judge(e);
    e->disk = disk_now();
    e->deadline = e->idle_deadline = e->drain_deadline = e->started_due = NEVER;
    e->end_total[0] = e->out[0].ring.total;
    e->end_total[1] = e->out[1].ring.total;
    readers_close(e);
}

size_t exec_end_payload(const struct exec *e, const uint64_t totals[2], uint8_t *buffer, size_t size)
{
    bool exited = e->leader_exited && WIFEXITED(e->status);
    bool signalled = e->leader_exited && WIFSIGNALED(e->status);
    struct kf_writer w = kf_writer(buffer, size);
    kf_put_u8(&w, e->ended_by);
    kf_put_u8(&w, exited);
    kf_put_u32(&w, exited ? (uint32_t)WEXITSTATUS(e->status) : 0);
    kf_put_u32(&w, signalled ? (uint32_t)WTERMSIG(e->status) : 0);
    kf_put_u64(&w, totals[0]);
    kf_put_u64(&w, totals[1]);
    kf_put_u64(&w, ring_head_kept(&e->out[0].ring, totals[0]));
    kf_put_u64(&w, ring_head_kept(&e->out[1].ring, totals[1]));
    kf_put_u32(&w, e->killed);
    kf_put_u32(&w, e->ended_by == KILL_FAILED ? e->survivors : 0);
    kf_put_u32(&w, e->background_count);
    for (uint32_t i = 0; i < e->background_count; i++) {
        kf_put_u32(&w, e->background[i]);
    }
    kf_put_u64(&w, e->oom_kills);
    kf_put_u64(&w, e->duration_us);
    kf_put_u32(&w, (uint32_t)e->start_errno);
    kf_put_u64(&w, e->disk.bytes);
    kf_put_u64(&w, e->disk.bytes_peak);
    kf_put_u64(&w, e->disk.bytes_limit);
    kf_put_u64(&w, e->disk.inodes);
    kf_put_u64(&w, e->disk.inodes_limit);
    return kf_written(&w);
}
