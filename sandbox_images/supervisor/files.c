/* The life of a file request: decoded by its op_*.c, stepped as the agent, ended by exactly one terminal frame. */
#include "files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kinds.h"
#include "ops.h"

static kf_decoder *decoder_of(uint8_t type)
{
    switch (type) {
    case KF_STAT: return kf_op_stat;
    case KF_READ: return kf_op_read;
    case KF_WRITE: return kf_op_write;
    case KF_LIST: return kf_op_list;
    case KF_MAKE_DIR: return kf_op_make_dir;
    case KF_REMOVE: return kf_op_remove;
    case KF_RENAME: return kf_op_rename;
    case KF_SYMLINK: return kf_op_symlink;
    default: return NULL;
    }
}

bool kf_is_file_request(uint8_t type) { return decoder_of(type) != NULL; }

/* Out of memory is no breach of the schema: such a request lives for one step, to say so. */
static enum kf_step no_memory(struct kf_op *op, struct kf_run *run) { return kf_fail_errno(op, run, ENOMEM); }
static void close_nothing(struct kf_op *op) { free(op); }
static const struct kf_verbs out_of_memory = {.step = no_memory, .close = close_nothing};

struct kf_op *kf_op_new(const struct kf_root *root, uint8_t type, uint64_t id, const uint8_t *payload, size_t length)
{
    kf_decoder *decoder = decoder_of(type);
    struct kf_reader r = kf_reader(payload, length);
    struct kf_op *op = NULL;
    if (!decoder || !decoder(&r, root, type, &op))
        return NULL;
    if (!op) {
        op = calloc(1, sizeof *op);
        if (!op)
            return NULL;
        op->verbs = &out_of_memory;
    }
    op->root = root;
    op->id = id;
    return op;
}

/* Modes in requests are exact: the process's umask is out of the way while an op works. */
static mode_t enter(const struct kf_op *op)
{
    kf_as_agent(op->root);
    return umask(0);
}

static void leave(const struct kf_op *op, mode_t mask)
{
    umask(mask);
    kf_as_self(op->root);
}

enum kf_step kf_op_step(struct kf_op *op, const struct kf_emitter *out)
{
    struct kf_run run = {.out = out, .slice = kf_slice_of(KF_SLICE_NS)};
    mode_t mask = enter(op);
    enum kf_step step = op->verbs->step(op, &run);
    leave(op, mask);
    return step;
}

bool kf_op_data(struct kf_op *op, const uint8_t *data, size_t length, const struct kf_emitter *out)
{
    if (!op->verbs->data)
        return false;
    struct kf_run run = {.out = out, .slice = kf_slice_of(KF_SLICE_NS)};
    mode_t mask = enter(op);
    bool legal = op->verbs->data(op, data, length, &run);
    leave(op, mask);
    return legal;
}

bool kf_op_eof(struct kf_op *op) { return op->verbs->eof && op->verbs->eof(op); }

void kf_op_credit(struct kf_op *op, uint64_t limit)
{
    if (op->verbs->credit)
        op->verbs->credit(op, limit);
}

void kf_op_free(struct kf_op *op)
{
    const struct kf_root *root = op->root;
    kf_as_agent(root);
    op->verbs->close(op);
    kf_as_self(root);
}

void kf_emit(const struct kf_op *op, struct kf_run *run, uint8_t type, const void *payload, size_t length)
{
    run->out->emit(run->out->channel, type, op->id, payload, length);
    run->emitted += length;
}

bool kf_run_over(const struct kf_run *run)
{
    return run->emitted + KF_MAX_PAYLOAD > KF_STEP_BYTES || kf_slice_over(&run->slice);
}

enum kf_step kf_finish(const struct kf_op *op, struct kf_run *run, const void *payload, size_t length)
{
    kf_emit(op, run, KF_OK, payload, length);
    return KF_DONE;
}

enum kf_step kf_fail(const struct kf_op *op, struct kf_run *run, uint8_t kind, int error, const char *words)
{
    uint8_t payload[1100];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    if (!words)
        words = kf_words_of(kind);
    kf_put_u8(&w, kind);
    kf_put_u32(&w, (uint32_t)error);
    kf_put_bytes(&w, words, (uint32_t)strnlen(words, 1024));
    kf_emit(op, run, KF_ERROR, payload, kf_written(&w));
    return KF_DONE;
}

enum kf_step kf_fail_errno(const struct kf_op *op, struct kf_run *run, int error)
{
    return kf_fail(op, run, kf_kind_of(error), error, NULL);
}

bool kf_text_copy(struct kf_text *text, const uint8_t *at, size_t length)
{
    text->at = malloc(length ? length : 1);
    if (!text->at)
        return false;
    memcpy(text->at, at, length);
    text->length = length;
    return true;
}
