/* From errno to the error kinds of FRAMES.md, and to words for a person. */
#include "kinds.h"

#include <errno.h>

#include "frames.h"

uint8_t kf_kind_of(int error)
{
    switch (error) {
    case EXDEV:
    case ELOOP: return KF_PATH_ESCAPE;
    case ENOENT:
    case ESTALE: return KF_NOT_FOUND;
    case EISDIR: return KF_IS_DIRECTORY;
    case ENOTDIR: return KF_NOT_A_DIRECTORY;
    case ENXIO: return KF_NOT_REGULAR;
    case EACCES:
    case EPERM:
    case EROFS: return KF_PERMISSION_DENIED;
    case EFBIG: return KF_TOO_LARGE;
    case EEXIST:
    case ENOTEMPTY:
    /* Programs bring these about at will, by a lease or by renaming without end: an answer about the path, not about us. */
    case EBUSY:
    case EAGAIN:
    case ETXTBSY: return KF_CONFLICT;
    case ENAMETOOLONG:
    case EINVAL: return KF_INVALID;
    case ENOSPC:
    case EMLINK:
    case EDQUOT: return KF_NO_SPACE;
    case EMFILE:
    case ENFILE: return KF_BUSY;
    case ENOSYS:
    case EOPNOTSUPP: return KF_UNSUPPORTED;
    default: return KF_INTERNAL;
    }
}

const char *kf_words_of(uint8_t kind)
{
    switch (kind) {
    case KF_PATH_ESCAPE: return "the path leaves the workspace";
    case KF_NOT_FOUND: return "there is nothing at this path";
    case KF_IS_DIRECTORY: return "this is a directory";
    case KF_NOT_A_DIRECTORY: return "a directory is needed here";
    case KF_NOT_REGULAR: return "this is not a regular file";
    case KF_PERMISSION_DENIED: return "the agent's user may not do this";
    case KF_TOO_LARGE: return "this is too large";
    case KF_CONFLICT: return "what is there stands in the way";
    case KF_INVALID: return "the path or the request is not valid";
    case KF_NO_SPACE: return "no space is left";
    case KF_UNSUPPORTED: return "the file system does not support this";
    case KF_BUSY: return "busy; try again";
    default: return "the supervisor failed";
    }
}
