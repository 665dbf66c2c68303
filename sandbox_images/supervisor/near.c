/* STAT's short way: thousands of names in one directory cost one call each, not one resolution each. It finds or it
 * does not; what a path is that it does not find, and why, the ordinary way says. */
#include "near.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* The directory's descriptor, resolved beneath the root as any path is; kept from the path before where it is the same. */
static int directory_of(struct kf_near *n, const struct kf_root *root, const char *text, size_t length)
{
    if (length == 0)
        return root->fd;
    if (n->dir >= 0 && n->length == length && memcmp(n->text, text, length) == 0)
        return n->dir;
    kf_near_end(n);
    memcpy(n->text, text, length);
    n->text[length] = '\0';
    n->length = length;
    n->dir = kf_open_beneath(root, n->text, O_DIRECTORY);
    return n->dir;
}

bool kf_near_look(struct kf_near *n, const struct kf_root *root, const uint8_t *path, size_t length, struct stat *st)
{
    char text[KF_NEAR_TEXT];
    if (!root->have_openat2 || length == 0 || length >= sizeof text || path[0] == '/' || memchr(path, '\0', length))
        return false;
    memcpy(text, path, length);
    text[length] = '\0';
    char *slash = strrchr(text, '/');
    const char *name = slash ? slash + 1 : text;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    int dir = directory_of(n, root, text, slash ? (size_t)(slash - text) : 0);
    return dir >= 0 && fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0 && !S_ISLNK(st->st_mode);
}

void kf_near_end(struct kf_near *n)
{
    if (n->dir >= 0)
        close(kf_find_take(&n->dir));
}
