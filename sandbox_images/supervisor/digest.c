/* The hash of a file's content: read, never mapped, because the agent may truncate it meanwhile. */
#include "ops.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define CHUNK 32768u /* an eighth of a millisecond of hashing */

bool kf_digest_begin(struct kf_digest *d, int path_fd, const struct stat *st, uint64_t limit)
{
    d->fd = kf_reopen(path_fd, O_RDONLY, st);
    d->done = 0;
    d->limit = limit;
    kf_sha256_start(&d->sha);
    return d->fd >= 0;
}

enum kf_digest_step kf_digest_step(struct kf_digest *d, struct kf_slice *slice)
{
    static uint8_t chunk[CHUNK];
    do {
        ssize_t n = read(d->fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return KF_DIGEST_FAILED;
        if (n == 0) {
            kf_sha256_end(&d->sha, d->hash);
            return KF_DIGEST_READY;
        }
        d->done += (uint64_t)n;
        if (d->done > d->limit)
            return KF_DIGEST_TOO_LARGE;
        kf_sha256_add(&d->sha, chunk, (size_t)n);
    } while (!kf_slice_over(slice));
    return KF_DIGEST_AGAIN;
}

void kf_digest_end(struct kf_digest *d)
{
    if (d->fd >= 0)
        close(kf_find_take(&d->fd));
}
