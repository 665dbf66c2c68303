/* SHA-256 (FIPS 180-4) in plain C: eight rounds to a line, so that the registers rotate by name and not by moves. */
#include "sha256.h"

#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define INLINE inline __attribute__((always_inline)) /* so that the target of the caller holds for the body */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static INLINE uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static INLINE uint32_t big_endian(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, 4);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

/* One round: only d and h change; the caller renames instead of moving. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                      \
    do {                                                                                                      \
        uint32_t t = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + (g ^ (e & (f ^ g))) + K[i] + w[(i) & 15]; \
        d += t;                                                                                               \
        h = t + (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) | (c & (a | b)));                         \
    } while (0)

static INLINE void eight_rounds(uint32_t v[8], const uint32_t w[16], int i)
{
    ROUND(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], i);
    ROUND(v[7], v[0], v[1], v[2], v[3], v[4], v[5], v[6], i + 1);
    ROUND(v[6], v[7], v[0], v[1], v[2], v[3], v[4], v[5], i + 2);
    ROUND(v[5], v[6], v[7], v[0], v[1], v[2], v[3], v[4], i + 3);
    ROUND(v[4], v[5], v[6], v[7], v[0], v[1], v[2], v[3], i + 4);
    ROUND(v[3], v[4], v[5], v[6], v[7], v[0], v[1], v[2], i + 5);
    ROUND(v[2], v[3], v[4], v[5], v[6], v[7], v[0], v[1], i + 6);
    ROUND(v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[0], i + 7);
}

/* The next sixteen words of the schedule, in place. */
static INLINE void schedule(uint32_t w[16])
{
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        uint32_t x = w[(i + 1) & 15], y = w[(i + 14) & 15];
        w[i] += (turn(x, 7) ^ turn(x, 18) ^ x >> 3) + w[(i + 9) & 15] + (turn(y, 17) ^ turn(y, 19) ^ y >> 10);
    }
}

static INLINE void rounds(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    for (; blocks > 0; blocks--, data += 64) {
        uint32_t v[8], w[16];
        memcpy(v, state, sizeof v);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            w[i] = big_endian(data + 4 * i);
#pragma GCC unroll 4
        for (int i = 0; i < 64; i += 16) {
            if (i > 0)
                schedule(w);
            eight_rounds(v, w, i);
            eight_rounds(v, w, i + 8);
        }
        for (int i = 0; i < 8; i++)
            state[i] += v[i];
    }
}

static void compress_plain(uint32_t state[8], const uint8_t *data, size_t blocks) { rounds(state, data, blocks); }

#if defined(__x86_64__)
/* The same code with rotates that keep their source: a quarter faster. */
__attribute__((target("bmi2"))) static void compress_bmi2(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    rounds(state, data, blocks);
}

/* cpuid itself: not every compiler's run-time library has what __builtin_cpu_supports needs. */
static bool have_bmi2(void)
{
    static int known = -1;
    unsigned a, b, c, d;
    if (known < 0)
        known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 8);
    return known;
}
#endif

static void compress(uint32_t state[8], const uint8_t *data, size_t blocks)
{
#if defined(__x86_64__)
    if (have_bmi2()) {
        compress_bmi2(state, data, blocks);
        return;
    }
#endif
    compress_plain(state, data, blocks);
}

void kf_sha256_start(struct kf_sha256 *s)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->state, first, sizeof first);
    s->length = 0;
}

void kf_sha256_add(struct kf_sha256 *s, const void *data, size_t length)
{
    const uint8_t *at = data;
    size_t held = s->length % 64;
    s->length += length;
    if (held > 0) {
        size_t n = length < 64 - held ? length : 64 - held;
        memcpy(s->block + held, at, n);
        at += n;
        length -= n;
        if (held + n < 64)
            return;
        compress(s->state, s->block, 1);
    }
    compress(s->state, at, length / 64);
    if (length % 64)
        memcpy(s->block, at + length / 64 * 64, length % 64);
}

void kf_sha256_end(struct kf_sha256 *s, uint8_t hash[KF_HASH])
{
    uint64_t bits = s->length * 8;
    size_t held = s->length % 64;
    s->block[held++] = 0x80;
    if (held > 56) {
        memset(s->block + held, 0, 64 - held);
        compress(s->state, s->block, 1);
        held = 0;
    }
    memset(s->block + held, 0, 56 - held);
    for (int i = 0; i < 8; i++)
        s->block[56 + i] = (uint8_t)(bits >> (56 - 8 * i));
    compress(s->state, s->block, 1);
    for (int i = 0; i < 32; i++)
        hash[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}
