/* Looking at one path after another where they share a directory; see near.c. */
#ifndef KF_NEAR_H
#define KF_NEAR_H

#include "paths.h"

#define KF_NEAR_TEXT 1024u

struct kf_near {
    int dir; /* O_PATH descriptor of the directory that `text` names; -1: none */
    size_t length;
    char text[KF_NEAR_TEXT];
};

/* `lstat` beneath the root, as the agent: true with `st` of anything but a link; false: ask the ordinary way. */
bool kf_near_look(struct kf_near *n, const struct kf_root *root, const uint8_t *path, size_t length, struct stat *st);
/* Let go of the directory: at each step's end, so that what was moved meanwhile is not looked at for longer. */
void kf_near_end(struct kf_near *n);

#endif
