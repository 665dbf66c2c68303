/* The requests outstanding on a channel, by id, and the file requests among them, a slice of each in turn. */
#include <stdlib.h>

#include "super.h"

static struct link *slot(struct channel *c, uint64_t id)
{
    return &c->requests[(id ^ id >> 7) % (sizeof c->requests / sizeof *c->requests)];
}

struct request *request_new(struct channel *c, uint8_t type, uint64_t id, enum request_kind kind)
{
    struct request *r = calloc(1, sizeof *r);
    if (r == NULL) {
        abort();
    }
    r->channel = c;
    r->type = type;
    r->id = id;
    r->kind = kind;
    list_init(&r->by_use);
    list_add(slot(c, id), &r->by_id);
    c->request_count++;
    return r;
}

struct request *request_find(struct channel *c, uint64_t id)
{
    LIST_EACH(l, spare, slot(c, id)) {
        struct request *r = OWNER_OF(l, struct request, by_id);
        if (r->id == id) {
            return r;
        }
    }
    return NULL;
}

void request_free(struct request *r)
{
    struct exec *e = r->exec;
    list_remove(&r->by_id);
    list_remove(&r->by_use);
    r->channel->request_count--;
    if (r->op != NULL) {
        kf_op_free(r->op);
    }
    if (r->owner_end != NULL) {
        owner_drop(r);
    }
    if (r->claim != NULL) {
        egress_drop(r->claim);
    }
    loop_free_later(r);
    if (e != NULL && r->kind == REQUEST_READER) {
        stream_pace(e); /* a reader less: nothing may pause the program now */
        exec_touch(e);
    }
}

/* ---- file requests, in turn */

void channel_emit(void *channel, uint8_t type, uint64_t id, const void *payload, size_t length)
{
    channel_send(channel, type, id, payload, length);
}

/* One slice for the channel's first op that can run; it then goes to the end of the line. */
static bool step_one(struct channel *c)
{
    const struct kf_emitter out = {.channel = c, .emit = channel_emit};
    bool more = false, stepped = false;
    struct link *last = c->ops.prev;
    LIST_EACH(l, spare, &c->ops) {
        struct request *r = OWNER_OF(l, struct request, by_use);
        if (!r->op_waits && stepped) {
            return true;
        }
        if (!r->op_waits) {
            stepped = true;
            enum kf_step step = kf_op_step(r->op, &out);
            if (step == KF_DONE) {
                request_free(r);
            } else {
                r->op_waits = step == KF_WAIT;
                more = more || step == KF_AGAIN;
                list_remove(&r->by_use);
                list_add(&c->ops, &r->by_use);
            }
        }
        if (l == last) {
            break;
        }
    }
    return more;
}

bool channels_step(void)
{
    bool more = false;
    LIST_EACH(l, spare, &kf.channels) {
        struct channel *c = OWNER_OF(l, struct channel, link);
        if (!channel_full(c) && !list_empty(&c->ops)) {
            more = step_one(c) || more;
        }
    }
    return more;
}
