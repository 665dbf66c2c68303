/* SHA-256 (FIPS 180-4), incremental. */
#ifndef KF_SHA256_H
#define KF_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define KF_HASH 32

struct kf_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes taken in so far */
    uint8_t block[64];
};

void kf_sha256_start(struct kf_sha256 *s);
void kf_sha256_add(struct kf_sha256 *s, const void *data, size_t length);
void kf_sha256_end(struct kf_sha256 *s, uint8_t hash[KF_HASH]);

#endif
