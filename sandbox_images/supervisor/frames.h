/* The frame format of FRAMES.md: types, a bounds-checked reader and a writer. No I/O, no allocation of unknown size. */
#ifndef KF_FRAMES_H
#define KF_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KF_HEADER 16
#define KF_MAX_PAYLOAD 262144u
#define KF_VERSION 1

enum kf_type {
    KF_HELLO = 0x01, KF_PING = 0x02, KF_PROCESSES = 0x03,
    KF_EXEC = 0x10, KF_ATTACH, KF_STDIN, KF_STDIN_EOF, KF_CREDIT, KF_SIGNAL, KF_KILL, KF_RESIZE, KF_FORGET, KF_END_OWNER,
    KF_PAUSE, KF_RESUME, KF_USAGE, KF_EXECS, KF_KEPT, KF_CANCEL,
    KF_STAT = 0x20, KF_READ, KF_WRITE, KF_LIST, KF_WDATA, KF_WDATA_EOF,
    KF_MAKE_DIR = 0x27, KF_REMOVE, KF_RENAME, KF_SYMLINK,
    KF_EGRESS = 0x30, KF_EGRESS_DATA, KF_EGRESS_EOF, KF_EGRESS_CREDIT, KF_EGRESS_CLOSE,
    KF_OK = 0x41, KF_ERROR, KF_DATA, KF_ITEMS, KF_OUTPUT, KF_STARTED, KF_WINDOW,
    KF_EGRESS_READY, KF_EGRESS_OPENED, KF_EGRESS_BYTES, KF_EGRESS_ENDED, KF_EGRESS_ROOM, KF_EGRESS_GONE,
};

enum kf_kind {
    KF_PATH_ESCAPE = 1, KF_NOT_FOUND, KF_IS_DIRECTORY, KF_NOT_A_DIRECTORY, KF_NOT_REGULAR, KF_PERMISSION_DENIED,
    KF_TOO_LARGE, KF_CONFLICT, KF_INVALID, KF_NO_SPACE,
    KF_UNSUPPORTED = 32, KF_UNKNOWN_EXEC, KF_BUSY, KF_INTERNAL, KF_CANCELLED, KF_KILL_FAILED, KF_ENDED,
};

struct kf_header { uint32_t length; uint8_t type; uint64_t id; };

/* Decode 16 bytes; false: illegal (length, padding, id 0). */
bool kf_header_read(const uint8_t bytes[KF_HEADER], struct kf_header *out);
void kf_header_write(uint8_t bytes[KF_HEADER], uint32_t length, uint8_t type, uint64_t id);

/* Reader: every get returns a value, and `ok` turns false for good at the first overrun or illegal value. */
struct kf_reader { const uint8_t *at, *end; bool ok; };
struct kf_reader kf_reader(const uint8_t *payload, size_t length);
uint8_t kf_get_u8(struct kf_reader *r);
bool kf_get_bool(struct kf_reader *r); /* a byte over 1 is illegal */
uint16_t kf_get_u16(struct kf_reader *r);
uint32_t kf_get_u32(struct kf_reader *r);
uint64_t kf_get_u64(struct kf_reader *r);
const uint8_t *kf_get_bytes(struct kf_reader *r, uint32_t *length);  /* points into the payload */
const uint8_t *kf_get_raw(struct kf_reader *r, size_t length);
const uint8_t *kf_get_rest(struct kf_reader *r, size_t *length);
uint32_t kf_get_count(struct kf_reader *r, size_t least_item_size);  /* a count that cannot fit is illegal */
bool kf_reader_done(const struct kf_reader *r);                      /* ok and consumed exactly */

/* Writer into a caller's buffer of fixed size; `ok` turns false on overflow. */
struct kf_writer { uint8_t *start, *at, *end; bool ok; };
struct kf_writer kf_writer(void *buffer, size_t size);
void kf_put_u8(struct kf_writer *w, uint8_t v);
void kf_put_u16(struct kf_writer *w, uint16_t v);
void kf_put_u32(struct kf_writer *w, uint32_t v);
void kf_put_u64(struct kf_writer *w, uint64_t v);
void kf_put_bytes(struct kf_writer *w, const void *data, uint32_t length);
void kf_put_raw(struct kf_writer *w, const void *data, size_t length);
size_t kf_written(const struct kf_writer *w);

#endif
