/* From the bytes of a requested path to a descriptor beneath the root, and never to anything else. */
#ifndef KF_PATHS_H
#define KF_PATHS_H

#include <sys/stat.h>

#include "files.h"
#include "slice.h"

#define KF_MAX_PATH 65536u
#define KF_MAX_LINKS 40u
#define KF_MAX_RETRIES 128u

enum {
    KF_FOLLOW = 1, /* a link as the last component is followed */
    KF_ENTRY = 2,  /* find the directory and the name in it; nothing there is no error */
    KF_MAKE = 4,   /* make missing directories on the way (0755) */
    KF_WALK = 8,   /* walk component by component, so that `depth` is known */
};

enum kf_found { KF_FIND_AGAIN, KF_FOUND, KF_FIND_FAILED };

struct kf_level { dev_t device; ino_t inode; };

/* One resolution in progress. Zero it (kf_find_begin does), step it, use the result, kf_find_end it. */
struct kf_find {
    const struct kf_root *root;
    unsigned flags;
    const uint8_t *path; /* as requested; stays the caller's, who keeps it alive */
    size_t length;

    /* the result */
    int fd;         /* O_PATH descriptor of what is there; -1: nothing (KF_ENTRY only) */
    int dir;        /* KF_ENTRY: O_PATH descriptor of the directory that holds it */
    char name[256]; /* KF_ENTRY: its name there; "" where the path ends in "." or "..", or is the root */
    struct stat st; /* of fd */
    bool slash;     /* the path ends in a slash */
    size_t depth;   /* KF_WALK: levels between the root and `dir` */
    bool was_link;  /* KF_WALK: the path names a link, this one; fd is what it leads to */
    dev_t link_device;
    ino_t link_inode;
    uint8_t kind;   /* why it failed */
    int error;

    /* the walk */
    bool walking;
    int here; /* the directory where the walk stands; -1: the root itself */
    struct kf_level *levels;
    size_t level_room;
    uint8_t *text; /* what is left to walk: text[at..end), its last `own` bytes not from a link */
    size_t at, end, own;
    unsigned links, restarts;
};

void kf_find_begin(struct kf_find *f, const struct kf_root *root, const uint8_t *path, size_t length, unsigned flags);
enum kf_found kf_find_step(struct kf_find *f, struct kf_slice *slice);
/* Take the result's descriptor out, so that kf_find_end leaves it open. */
int kf_find_take(int *fd);
void kf_find_end(struct kf_find *f);

/* Shared by the kernel's way (paths.c) and the walk (paths_walk.c). */
enum kf_found kf_find_walk(struct kf_find *f, struct kf_slice *slice);
enum kf_found kf_find_fail(struct kf_find *f, int error);
enum kf_found kf_find_at_directory(struct kf_find *f, int directory); /* the path ends here; takes the descriptor */
int kf_look(int directory, const char *name, struct stat *st);        /* O_PATH, never through a link; -1 with errno */

/* One call of openat2: an O_PATH descriptor beneath the root; -1 with errno. */
int kf_open_beneath(const struct kf_root *root, const char *path, int flags);

/* Strip the mount path off an absolute path: the rest (relative, maybe empty), or NULL where it lies elsewhere. */
const uint8_t *kf_beneath(const struct kf_root *root, const uint8_t *path, size_t *length);

/* Open for real what an O_PATH descriptor of a regular file stands for; -1 with errno. Never blocks. */
int kf_reopen(int path_fd, int flags, const struct stat *expected);

#endif
