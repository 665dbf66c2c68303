/* Inside of the file requests: what one op_*.c sees of files.c. An op is a struct that begins with struct kf_op, made
 * by its decoder and driven through its verbs. */
#ifndef KF_OPS_H
#define KF_OPS_H

#include "files.h"
#include "frames.h"
#include "paths.h"
#include "sha256.h"
#include "slice.h"

/* What one step has: where frames go, how long it may take, how much it may emit. */
struct kf_run {
    const struct kf_emitter *out;
    struct kf_slice slice;
    size_t emitted;
};

struct kf_verbs {
    enum kf_step (*step)(struct kf_op *op, struct kf_run *run);
    void (*close)(struct kf_op *op); /* release everything; runs as the agent */
    bool (*data)(struct kf_op *op, const uint8_t *data, size_t length, struct kf_run *run); /* WRITE only, else NULL */
    bool (*eof)(struct kf_op *op);                                                          /* WRITE only, else NULL */
    void (*credit)(struct kf_op *op, uint64_t limit);                                       /* READ only, else NULL */
};

struct kf_op {
    const struct kf_verbs *verbs;
    const struct kf_root *root;
    uint64_t id;
};

/* Each decodes one request: false is a breach of the schema; *op NULL with true is out of memory. A decoder copies what
 * it keeps. */
typedef bool kf_decoder(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **op);
kf_decoder kf_op_stat, kf_op_read, kf_op_write, kf_op_list, kf_op_make_dir, kf_op_remove, kf_op_rename, kf_op_symlink;

void kf_emit(const struct kf_op *op, struct kf_run *run, uint8_t type, const void *payload, size_t length);
/* The terminal frames; both return KF_DONE. Words NULL: those of the kind. */
enum kf_step kf_finish(const struct kf_op *op, struct kf_run *run, const void *payload, size_t length);
enum kf_step kf_fail(const struct kf_op *op, struct kf_run *run, uint8_t kind, int error, const char *words);
enum kf_step kf_fail_errno(const struct kf_op *op, struct kf_run *run, int error);
/* Is this step's time or output used up? */
bool kf_run_over(const struct kf_run *run);

/* Bytes of a request that outlive its payload. */
struct kf_text { uint8_t *at; size_t length; };
bool kf_text_copy(struct kf_text *text, const uint8_t *at, size_t length); /* false: no memory */

/* Records and items. */
enum { KF_HAS_TARGET = 1, KF_HAS_HASH = 2, KF_HAS_ENTRIES = 4, KF_HAS_TARGET_TYPE = 8 };
enum { KF_FILE = 1, KF_DIRECTORY, KF_LINK, KF_OTHER };

struct kf_record {
    struct stat st;
    uint8_t has;
    const char *target;
    size_t target_length;
    uint8_t hash[KF_HASH];
    uint64_t entries;
    uint8_t target_type;
};

uint8_t kf_type_of(mode_t mode);
void kf_put_record(struct kf_writer *w, const struct kf_record *record);
/* Read a link's text into buffer (PATH_MAX) and the record; without a target where it is no link any more. */
void kf_record_link(struct kf_record *record, int directory, const char *name, char *buffer);
/* The terminal OK whose payload is the record of an O_PATH descriptor. */
enum kf_step kf_finish_record(const struct kf_op *op, struct kf_run *run, int fd, const uint8_t *hash);

/* A batch of items, emitted as an ITEMS frame whenever it is full. */
struct kf_items {
    uint8_t *buffer;
    struct kf_writer w;
    uint32_t count;
};
bool kf_items_begin(struct kf_items *items); /* false: no memory */
void kf_items_record(struct kf_items *items, const struct kf_op *op, struct kf_run *run, const void *path,
                     size_t length, const struct kf_record *record);
void kf_items_error(struct kf_items *items, const struct kf_op *op, struct kf_run *run, const void *path, size_t length,
                    uint8_t kind, int error);
void kf_items_flush(struct kf_items *items, const struct kf_op *op, struct kf_run *run);
void kf_items_end(struct kf_items *items);

/* The hash of a file's content, read from a descriptor in slices. */
#define KF_DIGEST_LIMIT (4ull << 30)
enum kf_digest_step { KF_DIGEST_AGAIN, KF_DIGEST_READY, KF_DIGEST_TOO_LARGE, KF_DIGEST_FAILED /* errno */ };
struct kf_digest {
    int fd; /* owned; -1: none */
    uint64_t done, limit;
    struct kf_sha256 sha;
    uint8_t hash[KF_HASH]; /* when ready */
};
/* Reopen a regular file's O_PATH descriptor and begin; false with errno. */
bool kf_digest_begin(struct kf_digest *d, int path_fd, const struct stat *st, uint64_t limit);
enum kf_digest_step kf_digest_step(struct kf_digest *d, struct kf_slice *slice);
void kf_digest_end(struct kf_digest *d);

/* Names of temporary files: made by WRITE, left out of listings and claims. */
#define KF_TEMPORARY_NAME 17 /* ".kf-" 8 ".tmp" and the zero */
bool kf_is_temporary(const char *name);
/* Make an empty one in the directory (0600), open for writing and reading; -1 with errno. */
int kf_make_temporary(int directory, char name[KF_TEMPORARY_NAME]);

/* Rename to a name that must not exist: EEXIST where it does. Atomic where the file system can. */
int kf_rename_new(int from_dir, const char *from, int to_dir, const char *to);
/* Rename over what is there, or to a free name; the old file goes. EISDIR where a directory is there. */
int kf_rename_over(int dir, const char *from, const char *to);

#endif
