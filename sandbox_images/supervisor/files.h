/* File requests: everything that touches the workspace. Pure state machines, stepped by the main loop, so that no
 * request (a million entries, a huge digest) holds up another. files.c owns them; init.c calls them. */
#ifndef KF_FILES_H
#define KF_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Where the files are and whose they are; set up once by init.c, read everywhere. */
struct kf_root {
    int fd;             /* O_PATH|O_DIRECTORY descriptor of the root, held for life */
    const char *mount;  /* the absolute path that means the root in requests: "/workspace" */
    uid_t uid;          /* the agent */
    gid_t gid;
    bool change_uid;    /* false in --local mode */
    bool have_openat2;  /* probed once by kf_files_probe */
};

void kf_files_probe(struct kf_root *root);

/* Become the agent for file access (effective ids only) and back; both check and abort the process on failure.
 * The only two places that change ids for file operations (as_agent() of the design). */
void kf_as_agent(const struct kf_root *root);
void kf_as_self(const struct kf_root *root);

/* Open a directory beneath the root for an exec's cwd, links followed, as the agent (call between as_agent/as_self).
 * Returns a descriptor (O_PATH|O_DIRECTORY|O_CLOEXEC) or -1 with *kind (FRAMES.md error kinds) and errno. */
int kf_open_dir(const struct kf_root *root, const char *path, size_t length, uint8_t *kind);

/* How a step hands bytes out. kf_emit copies the frame into the channel's queue; the op emits at most
 * KF_STEP_BYTES a step. */
#define KF_STEP_BYTES (512 * 1024)
struct kf_emitter {
    void *channel;
    void (*emit)(void *channel, uint8_t type, uint64_t id, const void *payload, size_t length);
};

enum kf_step {
    KF_AGAIN,  /* more to do: step again when the loop comes round and the channel has room */
    KF_WAIT,   /* waits for the host (WDATA, CREDIT): step again after kf_op_data / kf_op_credit */
    KF_DONE    /* the terminal frame was emitted: free it */
};

struct kf_op; /* one file request in progress */

/* Is this request type one of ours (STAT READ WRITE LIST MAKE_DIR REMOVE RENAME SYMLINK)? */
bool kf_is_file_request(uint8_t type);
/* Decode and begin; NULL: the payload breaks the schema (end the channel). */
struct kf_op *kf_op_new(const struct kf_root *root, uint8_t type, uint64_t id, const uint8_t *payload, size_t length);
/* Do a bounded slice of work (about 1 ms or KF_STEP_BYTES) with the agent's effective uid, switched inside. */
enum kf_step kf_op_step(struct kf_op *op, const struct kf_emitter *out);
/* WDATA / WDATA_EOF for a WRITE; false: illegal here (end the channel). Data is written to the temporary file at once. */
bool kf_op_data(struct kf_op *op, const uint8_t *data, size_t length, const struct kf_emitter *out);
bool kf_op_eof(struct kf_op *op);
void kf_op_credit(struct kf_op *op, uint64_t limit);
/* Give up (CANCEL, channel gone): removes a temporary file, closes descriptors, emits nothing. */
void kf_op_free(struct kf_op *op);

#endif
