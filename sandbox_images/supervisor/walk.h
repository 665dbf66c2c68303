/* A walk over a directory tree: one entry per call, no recursion, no list of names, at most 200 open directories. */
#ifndef KF_WALK_H
#define KF_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define KF_TREE_LEVELS 200u
#define KF_TREE_BUFFER 8192u

/* An open directory and a buffer of its entries. */
struct kf_directory {
    int fd;
    size_t at, end;
    uint8_t *buffer;
};

/* Open for listing (a name in a directory, or "." of an O_PATH one), never through a link; false with errno. */
bool kf_directory_open(struct kf_directory *d, int directory, const char *name);
/* The next name ("." and ".." left out), valid until the next call; NULL: the end (errno 0) or errno. */
const char *kf_directory_next(struct kf_directory *d);
void kf_directory_close(struct kf_directory *d);

enum kf_tree_step {
    KF_TREE_ENTRY,      /* path, st */
    KF_TREE_UNSEEN,     /* an entry that cannot be looked at: path, error */
    KF_TREE_UNREADABLE, /* a directory, given as an entry before, that cannot be read: path, error */
    KF_TREE_END,
    KF_TREE_FAILED      /* no memory, no descriptors: error */
};

struct kf_tree {
    struct kf_directory levels[KF_TREE_LEVELS];
    size_t lengths[KF_TREE_LEVELS]; /* of the path of each level's directory */
    size_t count;
    uint32_t depth;
    bool skip_scratch; /* leave out .kinfold at the top */
    bool all;          /* kinfold's temporary files, too; set after kf_tree_begin */
    bool truncated;    /* something deeper than 200 levels was left out */
    bool enter;        /* the current entry is a directory to go into */
    char *path;        /* of the current entry, relative to the top, with a zero after it */
    size_t length;
    const char *name;  /* its last component */
    struct stat st;
    int error;
};

/* Begin at an O_PATH descriptor (not taken); false with errno. kf_tree_end in either case. */
bool kf_tree_begin(struct kf_tree *t, int directory, uint32_t depth, bool skip_scratch);
enum kf_tree_step kf_tree_next(struct kf_tree *t);
/* The open directory that holds the current entry. */
int kf_tree_directory(const struct kf_tree *t);
void kf_tree_end(struct kf_tree *t);

#endif
