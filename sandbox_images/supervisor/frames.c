/* The frame format of FRAMES.md: explicit little-endian bytes, so neither alignment nor the host's order matters. */
#include "frames.h"

#include <string.h>

static uint64_t load(const uint8_t *at, size_t size)
{
    uint64_t v = 0;
    for (size_t i = size; i-- > 0;)
        v = v << 8 | at[i];
    return v;
}

static void store(uint8_t *at, uint64_t v, size_t size)
{
    for (size_t i = 0; i < size; i++, v >>= 8)
        at[i] = (uint8_t)v;
}

bool kf_header_read(const uint8_t bytes[KF_HEADER], struct kf_header *out)
{
    out->length = (uint32_t)load(bytes, 4);
    out->type = bytes[4];
    out->id = load(bytes + 8, 8);
    return out->length <= KF_MAX_PAYLOAD && load(bytes + 5, 3) == 0 && out->id != 0;
}

void kf_header_write(uint8_t bytes[KF_HEADER], uint32_t length, uint8_t type, uint64_t id)
{
    memset(bytes, 0, KF_HEADER);
    store(bytes, length, 4);
    bytes[4] = type;
    store(bytes + 8, id, 8);
}

struct kf_reader kf_reader(const uint8_t *payload, size_t length)
{
    static const uint8_t none[1];
    if (!payload) {
        payload = none; /* an empty payload may come as NULL; pointer sums on NULL are undefined */
        length = 0;
    }
    return (struct kf_reader){.at = payload, .end = payload + length, .ok = true};
}

/* The next `length` bytes, or NULL with ok = false. */
static const uint8_t *take(struct kf_reader *r, size_t length)
{
    if (!r->ok || (size_t)(r->end - r->at) < length) {
        r->ok = false;
        return NULL;
    }
    const uint8_t *at = r->at;
    r->at += length;
    return at;
}

static uint64_t get(struct kf_reader *r, size_t size)
{
    const uint8_t *at = take(r, size);
    return at ? load(at, size) : 0;
}

uint8_t kf_get_u8(struct kf_reader *r) { return (uint8_t)get(r, 1); }
uint16_t kf_get_u16(struct kf_reader *r) { return (uint16_t)get(r, 2); }
uint32_t kf_get_u32(struct kf_reader *r) { return (uint32_t)get(r, 4); }
uint64_t kf_get_u64(struct kf_reader *r) { return get(r, 8); }

bool kf_get_bool(struct kf_reader *r)
{
    uint8_t v = kf_get_u8(r);
    if (v > 1)
        r->ok = false;
    return v == 1;
}

const uint8_t *kf_get_bytes(struct kf_reader *r, uint32_t *length)
{
    uint32_t n = kf_get_u32(r);
    const uint8_t *at = take(r, n);
    *length = at ? n : 0;
    return at;
}

const uint8_t *kf_get_raw(struct kf_reader *r, size_t length) { return take(r, length); }

const uint8_t *kf_get_rest(struct kf_reader *r, size_t *length)
{
    *length = r->ok ? (size_t)(r->end - r->at) : 0;
    return take(r, *length);
}

uint32_t kf_get_count(struct kf_reader *r, size_t least_item_size)
{
    uint32_t n = kf_get_u32(r);
    size_t left = (size_t)(r->end - r->at);
    if (!r->ok || (uint64_t)n * (least_item_size ? least_item_size : 1) > left) {
        r->ok = false;
        return 0;
    }
    return n;
}

bool kf_reader_done(const struct kf_reader *r) { return r->ok && r->at == r->end; }

struct kf_writer kf_writer(void *buffer, size_t size)
{
    uint8_t *start = buffer;
    return (struct kf_writer){.start = start, .at = start, .end = start + size, .ok = true};
}

/* Room for `length` more bytes, or NULL with ok = false. */
static uint8_t *room(struct kf_writer *w, size_t length)
{
    if (!w->ok || (size_t)(w->end - w->at) < length) {
        w->ok = false;
        return NULL;
    }
    uint8_t *at = w->at;
    w->at += length;
    return at;
}

static void put(struct kf_writer *w, uint64_t v, size_t size)
{
    uint8_t *at = room(w, size);
    if (at)
        store(at, v, size);
}

void kf_put_u8(struct kf_writer *w, uint8_t v) { put(w, v, 1); }
void kf_put_u16(struct kf_writer *w, uint16_t v) { put(w, v, 2); }
void kf_put_u32(struct kf_writer *w, uint32_t v) { put(w, v, 4); }
void kf_put_u64(struct kf_writer *w, uint64_t v) { put(w, v, 8); }

void kf_put_raw(struct kf_writer *w, const void *data, size_t length)
{
    uint8_t *at = room(w, length);
    if (at && length)
        memcpy(at, data, length);
}

void kf_put_bytes(struct kf_writer *w, const void *data, uint32_t length)
{
    kf_put_u32(w, length);
    kf_put_raw(w, data, length);
}

size_t kf_written(const struct kf_writer *w) { return (size_t)(w->at - w->start); }
