/* What each frame from a host does. Every handler decodes its payload to the last byte first; one that does not fit the
 * schema returns false, which ends the channel and nothing else. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "super.h"

#ifndef KF_BUILD
#define KF_BUILD "unknown"
#endif

static void send_ok(struct channel *c, uint64_t id) { channel_send(c, KF_OK, id, NULL, 0); }

static bool refuse(struct channel *c, uint64_t id, uint8_t kind, const char *message)
{
    channel_error(c, id, kind, 0, message);
    return true;
}

void answer_hello(struct channel *c, uint64_t id)
{
    uint8_t buffer[4096 + 256];
    struct kf_writer w = kf_writer(buffer, sizeof buffer);
    kf_put_u16(&w, KF_VERSION);
    kf_put_u64(&w, kf.generation);
    kf_put_u32(&w, (uint32_t)getpid());
    kf_put_u32(&w, kf.root.change_uid ? kf.root.uid : geteuid());
    kf_put_u32(&w, kf.root.change_uid ? kf.root.gid : getegid());
    kf_put_u32(&w, kf.controls | (kf.root.change_uid && kf.can & CAN_CHANGE_UID ? 2u : 0u) | (kf.warden ? 4u : 0u) |
                       (kf.config.seccomp && kf.can & CAN_FILTER ? 16u : 0u));
    kf_put_bytes(&w, kf.root.mount, (uint32_t)strlen(kf.root.mount));
    kf_put_bytes(&w, KF_BUILD, (uint32_t)strlen(KF_BUILD));
    channel_send(c, KF_OK, id, buffer, kf_written(&w));
}

static bool on_hello(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint16_t version = kf_get_u16(r);
    uint32_t flags = kf_get_u32(r);
    if (!kf_reader_done(r) || version != KF_VERSION || flags != 0 || c->greeted) {
        return false;
    }
    c->greeted = true;
    if (kf.probe_done) {
        answer_hello(c, id);
    } else {
        c->hello_waits = true;
        c->hello_id = id;
    }
    return true;
}

static bool on_ping(struct channel *c, uint64_t id, struct kf_reader *r)
{
    size_t length;
    const uint8_t *bytes = kf_get_rest(r, &length);
    if (length > 64) {
        return false;
    }
    channel_send(c, KF_OK, id, bytes, length);
    return true;
}

static bool on_credit(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint8_t which = kf_get_u8(r);
    uint64_t limit = kf_get_u64(r);
    if (!kf_reader_done(r) || which > 2) {
        return false;
    }
    struct request *q = request_find(c, id);
    if (q == NULL) {
        return true;
    }
    if (q->kind == REQUEST_OP) {
        kf_op_credit(q->op, limit);
        q->op_waits = false;
    } else if (q->kind == REQUEST_READER && q->only == 0 && which > 0) {
        if (limit > q->limit[which - 1]) {
            q->limit[which - 1] = limit;
            exec_touch(q->exec);
        }
    }
    return true;
}

static bool on_signal(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint64_t exec_id = kf_get_u64(r);
    int32_t signal = (int32_t)kf_get_u32(r);
    bool all = kf_get_bool(r);
    if (!kf_reader_done(r)) {
        return false;
    }
    struct exec *e = exec_find(exec_id);
    if (e == NULL) {
        return refuse(c, id, KF_UNKNOWN_EXEC, "no such exec");
    }
    if (signal < 1 || signal > 64) {
        return refuse(c, id, KF_INVALID, "a signal is a number from 1 to 64");
    }
    struct shim_message m = {.kind = SHIM_SIGNAL, .serial = e->serial, .a = signal, .b = all};
    if (e->tree_empty || e->shim == NULL || !shim_send(e->shim, &m)) {
        uint8_t none[4] = {0};
        channel_send(c, KF_OK, id, none, sizeof none);
        return true;
    }
    e->killed_by_signal = e->killed_by_signal || signal == 9;
    struct request *q = request_new(c, KF_SIGNAL, id, REQUEST_SIGNAL);
    q->exec = e;
    list_add(&e->waiters, &q->by_use);
    return true;
}

static bool on_kill(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint64_t exec_id = kf_get_u64(r), grace_ms = kf_get_u64(r);
    if (!kf_reader_done(r)) {
        return false;
    }
    struct exec *e = exec_find(exec_id);
    if (e == NULL) {
        return refuse(c, id, KF_UNKNOWN_EXEC, "no such exec");
    }
    kill_request(c, id, e, grace_ms);
    return true;
}

static bool on_resize(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint64_t exec_id = kf_get_u64(r);
    uint16_t rows = kf_get_u16(r), columns = kf_get_u16(r);
    if (!kf_reader_done(r)) {
        return false;
    }
    resize_request(c, id, exec_id, rows, columns);
    return true;
}

static bool on_processes(struct channel *c, uint64_t id)
{
    processes_request(c, id);
    return true;
}

static bool on_forget(struct kf_reader *r)
{
    struct kf_reader twice = *r;
    uint32_t count = kf_get_count(r, 8);
    for (uint32_t i = 0; i < count; i++) {
        kf_get_u64(r);
    }
    if (!kf_reader_done(r)) {
        return false;
    }
    kf_get_count(&twice, 8);
    for (uint32_t i = 0; i < count; i++) {
        struct exec *e = exec_find(kf_get_u64(&twice));
        if (e != NULL && exec_state(e) == 3) {
            exec_free(e);
        }
    }
    return true;
}

static bool on_end_owner(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint32_t length;
    const uint8_t *owner = kf_get_bytes(r, &length);
    uint64_t grace_ms = kf_get_u64(r);
    if (!kf_reader_done(r)) {
        return false;
    }
    owner_request(c, id, owner, length, grace_ms);
    return true;
}

static bool on_usage(struct channel *c, uint64_t id)
{
    struct usage u;
    uint8_t buffer[128];
    struct disk_use d = disk_now();
    uint64_t running = 0;
    cgroup_usage(&u);
    LIST_EACH(l, spare, &kf.execs) {
        running += exec_state(OWNER_OF(l, struct exec, link)) != 3;
    }
    const uint64_t all[] = {u.cpu_us, u.memory, u.memory_peak, u.memory_limit, u.pids, u.pids_peak, u.pids_limit,
                            u.oom_kills, running, d.bytes, d.bytes_peak, d.bytes_limit, d.inodes, d.inodes_limit,
                            kf.paused, paused_us()};
    struct kf_writer w = kf_writer(buffer, sizeof buffer);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        kf_put_u64(&w, all[i]);
    }
    channel_send(c, KF_OK, id, buffer, kf_written(&w));
    return true;
}

static bool on_execs(struct channel *c, uint64_t id)
{
    static uint8_t buffer[KF_MAX_PAYLOAD];
    struct kf_writer w = kf_writer(buffer, sizeof buffer);
    uint32_t count = 0;
    LIST_EACH(l, spare, &kf.execs) {
        count++;
    }
    kf_put_u32(&w, count);
    LIST_EACH(m, spare2, &kf.execs) {
        struct exec *e = OWNER_OF(m, struct exec, link);
        kf_put_u64(&w, e->id);
        kf_put_u8(&w, exec_state(e));
        kf_put_bytes(&w, e->owner, e->owner_length);
        kf_put_u64(&w, e->out[0].ring.total);
        kf_put_u64(&w, e->out[1].ring.total);
        kf_put_u64(&w, (kf.now - e->created) / MS);
    }
    if (!w.ok) {
        return refuse(c, id, KF_INTERNAL, "the list of execs does not fit a frame");
    }
    channel_send(c, KF_OK, id, buffer, kf_written(&w));
    return true;
}

static bool on_cancel(struct channel *c, uint64_t id)
{
    struct request *q = request_find(c, id);
    if (q != NULL) {
        request_free(q);
        channel_error(c, id, KF_CANCELLED, 0, "cancelled by the host");
    }
    return true;
}

static bool on_write_data(struct channel *c, uint64_t id, const uint8_t *payload, size_t length, bool eof)
{
    struct request *q = request_find(c, id);
    if (q == NULL) {
        return true; /* it crossed the WRITE's own failure */
    }
    if (q->kind != REQUEST_OP || (eof && length != 0)) {
        return false;
    }
    const struct kf_emitter out = {.channel = c, .emit = channel_emit};
    q->op_waits = false;
    return eof ? kf_op_eof(q->op) : kf_op_data(q->op, payload, length, &out);
}

static bool on_file(struct channel *c, const struct kf_header *h, const uint8_t *payload)
{
    struct kf_op *op = kf_op_new(&kf.root, h->type, h->id, payload, h->length);
    if (op == NULL) {
        return false;
    }
    struct request *q = request_new(c, h->type, h->id, REQUEST_OP);
    q->op = op;
    list_add(&c->ops, &q->by_use);
    return true;
}

/* Frames that belong to a request which is there already: no reply of their own. */
static bool is_follow_up(uint8_t type)
{
    return type == KF_STDIN || type == KF_STDIN_EOF || type == KF_CREDIT || type == KF_FORGET || type == KF_CANCEL ||
           type == KF_WDATA || type == KF_WDATA_EOF || (type > KF_EGRESS && type <= KF_EGRESS_CLOSE);
}

static bool follow_up(struct channel *c, const struct kf_header *h, const uint8_t *payload)
{
    struct kf_reader r = kf_reader(payload, h->length);
    switch (h->type) {
    case KF_STDIN: return stdin_request(h->id, &r, false);
    case KF_STDIN_EOF: return stdin_request(h->id, &r, true);
    case KF_CREDIT: return on_credit(c, h->id, &r);
    case KF_FORGET: return on_forget(&r);
    case KF_CANCEL: return h->length == 0 && on_cancel(c, h->id);
    case KF_WDATA: return on_write_data(c, h->id, payload, h->length, false);
    case KF_EGRESS_DATA:
    case KF_EGRESS_EOF:
    case KF_EGRESS_CREDIT:
    case KF_EGRESS_CLOSE: return egress_follow_up(c, h, &r);
    default: return on_write_data(c, h->id, payload, h->length, true);
    }
}

static bool pause_or_resume(struct channel *c, uint64_t id, bool pause)
{
    pause_all(pause);
    send_ok(c, id);
    return true;
}

bool request_dispatch(struct channel *c, const struct kf_header *h, const uint8_t *payload)
{
    struct kf_reader r = kf_reader(payload, h->length);
    if (h->type == KF_HELLO || !c->greeted) {
        return h->type == KF_HELLO && on_hello(c, h->id, &r);
    }
    if (is_follow_up(h->type)) {
        return follow_up(c, h, payload);
    }
    idle_on_request(h->type);
    if (request_find(c, h->id) != NULL) {
        return false;
    }
    if (c->request_count >= MAX_REQUESTS) {
        return refuse(c, h->id, KF_BUSY, "4096 requests are outstanding on this channel: wait for some to end");
    }
    if (kf_is_file_request(h->type)) {
        return on_file(c, h, payload);
    }
    switch (h->type) {
    case KF_PING: return on_ping(c, h->id, &r);
    case KF_EXEC: return exec_request(c, h->id, payload, h->length);
    case KF_ATTACH: return attach_request(c, h->id, &r);
    case KF_SIGNAL: return on_signal(c, h->id, &r);
    case KF_KILL: return on_kill(c, h->id, &r);
    case KF_RESIZE: return on_resize(c, h->id, &r);
    case KF_PROCESSES: return h->length == 0 && on_processes(c, h->id);
    case KF_END_OWNER: return on_end_owner(c, h->id, &r);
    case KF_PAUSE: return h->length == 0 && pause_or_resume(c, h->id, true);
    case KF_RESUME: return h->length == 0 && pause_or_resume(c, h->id, false);
    case KF_USAGE: return h->length == 0 && on_usage(c, h->id);
    case KF_EXECS: return h->length == 0 && on_execs(c, h->id);
    case KF_EGRESS: return egress_request(c, h->id, &r);
    case KF_KEPT: return kept_request(c, h->id, &r);
    default: return false;
    }
}
