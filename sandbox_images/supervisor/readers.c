/* Readers: requests (EXEC, ATTACH, KEPT) that are sent an exec's output out of its rings, and its end. */
#include <string.h>

#include "super.h"

#define FRAME_DATA (KF_MAX_PAYLOAD - 9)
#define TURN_BYTES (512u * 1024u)

void exec_touch(struct exec *e)
{
    if (list_empty(&e->dirty_link)) {
        list_add(&kf.dirty, &e->dirty_link);
    }
}

static void close_at(struct request *r, const uint64_t until[2])
{
    r->closing = true;
    memcpy(r->until, until, sizeof r->until);
}

static void totals(const struct exec *e, uint64_t out[2])
{
    out[0] = e->out[0].ring.total;
    out[1] = e->out[1].ring.total;
}

/* A reader of an exec that has ended ends at once with what is there; one that streams what was left running follows it. */
void reader_attach(struct request *r, struct exec *e)
{
    uint64_t now[2];
    totals(e, now);
    r->exec = e;
    list_add(&e->readers, &r->by_use);
    if (r->only != 0) {
        int i = r->only - 1;
        uint64_t most = r->limit[i], end = now[i];
        r->sent[i] = ring_lowest(&e->out[i].ring, r->sent[i], true);
        now[!i] = 0;
        now[i] = r->sent[i] < end && end - r->sent[i] > most ? r->sent[i] + most : end;
        close_at(r, now);
    } else if (e->ended && (exec_state(e) == 3 || !r->streaming)) {
        close_at(r, now);
    }
    if (r->type == KF_ATTACH && e->in.wanted) {
        reader_window(r);
    }
    stream_pace(e);
    exec_touch(e);
}

void readers_close(struct exec *e)
{
    uint64_t now[2];
    totals(e, now);
    LIST_EACH(l, spare, &e->readers) {
        struct request *r = OWNER_OF(l, struct request, by_use);
        if (!r->closing) {
            close_at(r, now);
        }
    }
    exec_touch(e);
}

void reader_window(struct request *r)
{
    uint8_t buffer[9];
    struct kf_writer w = kf_writer(buffer, sizeof buffer);
    kf_put_u8(&w, 0);
    kf_put_u64(&w, r->exec->in.granted);
    channel_send(r->channel, KF_WINDOW, r->id, buffer, kf_written(&w));
}

static void tell_started(struct exec *e, struct request *r)
{
    if (r->type == KF_EXEC && !e->started_told && e->pid != 0) {
        uint8_t buffer[4];
        struct kf_writer w = kf_writer(buffer, sizeof buffer);
        kf_put_u32(&w, (uint32_t)e->pid);
        channel_send(r->channel, KF_STARTED, r->id, buffer, kf_written(&w));
        e->started_told = true;
        e->started_due = NEVER;
    }
}

/* Send one stream's bytes as far as credit, ring and queue allow; true: stopped only by the turn's budget. */
static bool pump(struct request *r, int which)
{
    struct exec *e = r->exec;
    struct ring *ring = &e->out[which].ring;
    bool held = r->streaming && r->only == 0;
    uint64_t end = r->closing ? r->until[which] : r->streaming ? ring->total : 0;
    end = held && r->limit[which] < end ? r->limit[which] : end;
    uint64_t budget = TURN_BYTES;
    while (r->sent[which] < end && budget > 0 && !channel_full(r->channel)) {
        uint64_t at = ring_lowest(ring, r->sent[which], held || r->only != 0);
        r->sent[which] = at;
        if (at >= end) {
            break;
        }
        size_t most = end - at < FRAME_DATA ? (size_t)(end - at) : FRAME_DATA;
        tell_started(e, r);
        uint8_t *payload = channel_reserve(r->channel, KF_OUTPUT, r->id, 9 + most);
        struct kf_writer w = kf_writer(payload, 9);
        kf_put_u8(&w, (uint8_t)(which + 1));
        kf_put_u64(&w, at);
        size_t n = ring_read(ring, at, payload + 9, most);
        if (n > 0) {
            channel_unreserve(r->channel, 9 + most, 9 + n);
        } else {
            r->channel->out_to -= KF_HEADER + 9 + most; /* a frame without a byte is none */
        }
        r->sent[which] = at + (n > 0 ? n : most);
        budget -= n < budget ? n : budget;
    }
    return budget == 0 && r->sent[which] < end;
}

static void send_end(struct request *r)
{
    uint8_t buffer[256 + 4 * SHIM_MAX_PIDS];
    size_t length;
    if (r->only != 0) {
        struct kf_writer w = kf_writer(buffer, sizeof buffer);
        kf_put_u8(&w, exec_state(r->exec));
        kf_put_u64(&w, r->exec->out[r->only - 1].ring.total);
        length = kf_written(&w);
    } else {
        if (r->exec->start_errno == 0) {
            tell_started(r->exec, r);
        }
        length = exec_end_payload(r->exec, r->until, buffer, sizeof buffer);
    }
    channel_send(r->channel, KF_OK, r->id, buffer, length);
    r->exec = NULL; /* its end must not pace the exec any more than it did */
    request_free(r);
}

/* A reader at its end is done when each stream was sent up to `until`; KEPT and whole readers need no credit. */
static bool finished(const struct request *r)
{
    return r->closing && r->sent[0] >= r->until[0] && r->sent[1] >= r->until[1];
}

static bool pump_exec(struct exec *e)
{
    bool more = false;
    LIST_EACH(l, spare, &e->readers) {
        struct request *r = OWNER_OF(l, struct request, by_use);
        if (e->started_due <= kf.now) {
            tell_started(e, r);
        }
        more = pump(r, 0) || more;
        more = pump(r, 1) || more;
        /* What ends because the sandbox does is the sandbox's loss, which the channel's end tells, not the exec's end. */
        if (finished(r) && !channel_full(r->channel) && !kf.terminating) {
            send_end(r);
        }
    }
    stream_pace(e);
    return more;
}

bool readers_pump(void)
{
    struct link now;
    bool more = false;
    if (list_empty(&kf.dirty)) {
        return false;
    }
    now = kf.dirty; /* take the whole list: what becomes dirty meanwhile is for the next turn */
    now.next->prev = now.prev->next = &now;
    list_init(&kf.dirty);
    while (!list_empty(&now)) {
        struct exec *e = OWNER_OF(now.next, struct exec, dirty_link);
        list_remove(&e->dirty_link);
        if (pump_exec(e)) {
            exec_touch(e);
            more = true;
        }
        exec_check(e);
    }
    return more || !list_empty(&kf.dirty);
}

/* ---- ATTACH and KEPT; false ends the channel */

bool attach_request(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint64_t exec_id = kf_get_u64(r);
    bool streaming = kf_get_bool(r);
    uint64_t v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = kf_get_u64(r);
    }
    if (!kf_reader_done(r)) {
        return false;
    }
    struct exec *e = exec_find(exec_id);
    if (e == NULL) {
        channel_error(c, id, KF_UNKNOWN_EXEC, 0, "no such exec");
        return true;
    }
    struct request *q = request_new(c, KF_ATTACH, id, REQUEST_READER);
    q->streaming = streaming;
    memcpy(q->sent, v, sizeof q->sent);
    memcpy(q->limit, v + 2, sizeof q->limit);
    reader_attach(q, e);
    return true;
}

bool kept_request(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint64_t exec_id = kf_get_u64(r);
    uint8_t which = kf_get_u8(r);
    uint64_t offset = kf_get_u64(r);
    uint32_t most = kf_get_u32(r);
    if (!kf_reader_done(r) || which < 1 || which > 2) {
        return false;
    }
    struct exec *e = exec_find(exec_id);
    if (e == NULL) {
        channel_error(c, id, KF_UNKNOWN_EXEC, 0, "no such exec");
        return true;
    }
    struct request *q = request_new(c, KF_KEPT, id, REQUEST_READER);
    q->only = which;
    q->sent[which - 1] = offset;
    q->limit[which - 1] = most;
    reader_attach(q, e);
    return true;
}
