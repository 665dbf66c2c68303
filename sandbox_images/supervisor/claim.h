/* The claim of a directory: how much lies beneath it, and one hash over all of it. */
#ifndef KF_CLAIM_H
#define KF_CLAIM_H

#include "ops.h"
#include "walk.h"

#define KF_CLAIM_ENTRIES 100000u  /* regular files */
#define KF_CLAIM_NAMES 1000000u   /* names looked at */
#define KF_CLAIM_BYTES (32u << 20) /* of lines kept for sorting */

enum kf_claim_step { KF_CLAIM_AGAIN, KF_CLAIM_READY, KF_CLAIM_FAILED /* kind, error */ };

struct kf_claim {
    struct kf_tree tree;
    struct kf_digest file; /* the file being hashed; fd -1: none */
    struct stat file_st;
    bool hashing;          /* false once the content is over KF_DIGEST_LIMIT: size and entries only */
    bool sorting;          /* the walk is done */
    uint64_t size, entries, names;
    uint8_t *lines;        /* u32 length, path, hash each */
    size_t used, room;
    uint32_t *heap;        /* offsets of lines, least path first */
    size_t heap_count, heap_room;
    struct kf_sha256 sha;
    uint8_t hash[KF_HASH]; /* when ready and hashing */
    uint8_t kind;
    int error;
};

/* Begin at an O_PATH descriptor of a directory (not taken); false with errno. kf_claim_end in either case. */
bool kf_claim_begin(struct kf_claim *c, int directory, bool skip_scratch);
enum kf_claim_step kf_claim_step(struct kf_claim *c, struct kf_slice *slice);
void kf_claim_end(struct kf_claim *c);

#endif
