/* A directory's claim: every regular file beneath is hashed as it is met; its line goes into a heap, and the lines come
 * out of the heap in order of their paths. A heap, not a sort at the end, because each step of it is short. */
#include "claim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kinds.h"

bool kf_claim_begin(struct kf_claim *c, int directory, bool skip_scratch)
{
    memset(c, 0, sizeof *c);
    c->file.fd = -1;
    c->hashing = true;
    kf_sha256_start(&c->sha);
    return kf_tree_begin(&c->tree, directory, UINT32_MAX, skip_scratch);
}

static enum kf_claim_step fail(struct kf_claim *c, uint8_t kind, int error)
{
    c->kind = kind;
    c->error = error;
    return KF_CLAIM_FAILED;
}

static enum kf_claim_step fail_errno(struct kf_claim *c, int error) { return fail(c, kf_kind_of(error), error); }

/* Does line a come before line b? By the bytes of their paths, the shorter first. */
static bool before(const struct kf_claim *c, uint32_t a, uint32_t b)
{
    uint32_t la, lb;
    memcpy(&la, c->lines + a, 4);
    memcpy(&lb, c->lines + b, 4);
    int order = memcmp(c->lines + a + 4, c->lines + b + 4, la < lb ? la : lb);
    return order < 0 || (order == 0 && la < lb);
}

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t t = *a;
    *a = *b;
    *b = t;
}

static void heap_add(struct kf_claim *c, uint32_t line)
{
    size_t i = c->heap_count++;
    c->heap[i] = line;
    for (; i > 0 && before(c, c->heap[i], c->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&c->heap[i], &c->heap[(i - 1) / 2]);
}

static uint32_t heap_take(struct kf_claim *c)
{
    uint32_t least = c->heap[0];
    c->heap[0] = c->heap[--c->heap_count];
    for (size_t i = 0;;) {
        size_t child = 2 * i + 1;
        if (child >= c->heap_count)
            return least;
        if (child + 1 < c->heap_count && before(c, c->heap[child + 1], c->heap[child]))
            child++;
        if (!before(c, c->heap[child], c->heap[i]))
            return least;
        swap(&c->heap[i], &c->heap[child]);
        i = child;
    }
}

/* Room for one more line of `size` bytes; false: out of memory. */
static bool grow(struct kf_claim *c, size_t size)
{
    if (c->used + size > c->room) {
        size_t room = (c->room ? c->room * 2 : 65536) + size;
        uint8_t *lines = realloc(c->lines, room);
        if (!lines)
            return false;
        c->lines = lines;
        c->room = room;
    }
    if (c->heap_count == c->heap_room) {
        size_t room = c->heap_room ? c->heap_room * 2 : 1024;
        uint32_t *heap = realloc(c->heap, room * sizeof *heap);
        if (!heap)
            return false;
        c->heap = heap;
        c->heap_room = room;
    }
    return true;
}

static enum kf_claim_step add_line(struct kf_claim *c)
{
    uint32_t length = (uint32_t)c->tree.length;
    size_t size = 4 + length + KF_HASH;
    if (c->used + size > KF_CLAIM_BYTES)
        return fail(c, KF_TOO_LARGE, 0);
    if (!grow(c, size))
        return fail_errno(c, ENOMEM);
    uint8_t *line = c->lines + c->used;
    memcpy(line, &length, 4);
    memcpy(line + 4, c->tree.path, length);
    memcpy(line + 4 + length, c->file.hash, KF_HASH);
    heap_add(c, (uint32_t)c->used);
    c->used += size;
    return KF_CLAIM_AGAIN;
}

/* Too much to hash in a claim: go on counting only. */
static void stop_hashing(struct kf_claim *c)
{
    kf_digest_end(&c->file);
    c->hashing = false;
    free(c->lines);
    c->lines = NULL;
    c->heap_count = 0;
}

static enum kf_claim_step count_file(struct kf_claim *c, uint64_t size)
{
    c->size = size > UINT64_MAX - c->size ? UINT64_MAX : c->size + size; /* sparse files of 8 EiB exist */
    return ++c->entries > KF_CLAIM_ENTRIES ? fail(c, KF_TOO_LARGE, 0) : KF_CLAIM_AGAIN;
}

static enum kf_claim_step open_file(struct kf_claim *c)
{
    if (c->hashing && (uint64_t)c->tree.st.st_size > KF_DIGEST_LIMIT - c->size)
        stop_hashing(c);
    if (!c->hashing)
        return count_file(c, (uint64_t)c->tree.st.st_size);
    int fd = kf_look(kf_tree_directory(&c->tree), c->tree.name, &c->file_st);
    if (fd < 0)
        return errno == ENOENT ? KF_CLAIM_AGAIN : fail_errno(c, errno);
    bool regular = S_ISREG(c->file_st.st_mode); /* it may have been replaced since it was listed */
    bool begun = regular && kf_digest_begin(&c->file, fd, &c->file_st, KF_DIGEST_LIMIT - c->size);
    int error = errno;
    close(fd);
    return regular && !begun ? fail_errno(c, error) : KF_CLAIM_AGAIN;
}

static enum kf_claim_step hash_file(struct kf_claim *c, struct kf_slice *slice)
{
    switch (kf_digest_step(&c->file, slice)) {
    case KF_DIGEST_AGAIN: return KF_CLAIM_AGAIN;
    case KF_DIGEST_FAILED: return fail_errno(c, errno);
    case KF_DIGEST_TOO_LARGE:
        stop_hashing(c);
        return count_file(c, (uint64_t)c->file_st.st_size);
    case KF_DIGEST_READY: break;
    }
    kf_digest_end(&c->file);
    enum kf_claim_step step = add_line(c);
    return step == KF_CLAIM_AGAIN ? count_file(c, c->file.done) : step;
}

static enum kf_claim_step next_entry(struct kf_claim *c)
{
    switch (kf_tree_next(&c->tree)) {
    case KF_TREE_UNSEEN:
    case KF_TREE_UNREADABLE:
    case KF_TREE_FAILED: return fail_errno(c, c->tree.error);
    case KF_TREE_END:
        if (c->tree.truncated)
            return fail(c, KF_TOO_LARGE, 0);
        c->sorting = true;
        return KF_CLAIM_AGAIN;
    case KF_TREE_ENTRY: break;
    }
    if (++c->names > KF_CLAIM_NAMES)
        return fail(c, KF_TOO_LARGE, 0);
    return S_ISREG(c->tree.st.st_mode) ? open_file(c) : KF_CLAIM_AGAIN;
}

/* The least line goes into the hash, as `path NUL hex LF`. */
static enum kf_claim_step hash_line(struct kf_claim *c)
{
    if (!c->hashing || c->heap_count == 0) {
        kf_sha256_end(&c->sha, c->hash);
        return KF_CLAIM_READY;
    }
    const uint8_t *line = c->lines + heap_take(c);
    uint32_t length;
    memcpy(&length, line, 4);
    char hex[2 * KF_HASH + 2] = {0};
    for (size_t i = 0; i < KF_HASH; i++) {
        hex[1 + 2 * i] = "0123456789abcdef"[line[4 + length + i] >> 4];
        hex[2 + 2 * i] = "0123456789abcdef"[line[4 + length + i] & 15];
    }
    hex[sizeof hex - 1] = '\n';
    kf_sha256_add(&c->sha, line + 4, length);
    kf_sha256_add(&c->sha, hex, sizeof hex);
    return KF_CLAIM_AGAIN;
}

enum kf_claim_step kf_claim_step(struct kf_claim *c, struct kf_slice *slice)
{
    for (;;) {
        bool hashed = c->file.fd >= 0;
        enum kf_claim_step step = c->sorting ? hash_line(c) : hashed ? hash_file(c, slice) : next_entry(c);
        if (step != KF_CLAIM_AGAIN || (hashed ? kf_slice_over(slice) : kf_slice_unit(slice)))
            return step;
    }
}

void kf_claim_end(struct kf_claim *c)
{
    kf_digest_end(&c->file);
    kf_tree_end(&c->tree);
    free(c->lines);
    free(c->heap);
    c->lines = NULL;
    c->heap = NULL;
}
