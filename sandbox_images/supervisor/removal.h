/* Removing a tree: no recursion, any depth, never through a link. */
#ifndef KF_REMOVAL_H
#define KF_REMOVAL_H

#include "ops.h"
#include "walk.h"

#define KF_REMOVAL_OPEN 190u              /* directories kept open; deeper ones are reached again by ".." */
#define KF_REMOVAL_BYTES (64u << 20)      /* of names and levels */
#define KF_REMOVAL_RESTARTS 16u           /* when somebody moves directories about meanwhile */
#define KF_REMOVAL_RESCANS 64u            /* when somebody makes files meanwhile */

struct kf_removal_level {
    struct kf_directory directory; /* fd -1: closed for want of descriptors */
    struct kf_level identity;
    char *name;                    /* in the directory above */
    unsigned rescans;
    bool opened_up;                /* its mode was widened already */
};

struct kf_removal {
    int top_dir; /* holds the tree; the caller's */
    struct kf_removal_level *levels;
    size_t count, room, bytes;
    unsigned restarts;
    uint64_t removed;
    uint8_t kind;
    int error;
};

enum kf_removal_step { KF_REMOVAL_AGAIN, KF_REMOVAL_READY, KF_REMOVAL_FAILED /* kind, error */ };

enum kf_removal_step kf_removal_begin(struct kf_removal *r, int directory, const char *name);
enum kf_removal_step kf_removal_step(struct kf_removal *r, struct kf_slice *slice);
void kf_removal_end(struct kf_removal *r);

#endif
