/* libFuzzer target: only decoding, for very many frames. The input is a row of frames, each decoded by itself: its header, EXEC
 * and every file request by their own decoders, any payload by every get of the reader, and back through the writer.
 * After a header that is illegal the row goes on behind it; what requests then do is for the other targets. */
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "frames.h"
#include "fuzz_count.h"
#include "fuzz_exec.h"

static const struct kf_root root = {.fd = -1, .mount = "/workspace"};

/* The gets in an order that the payload itself gives, each looked at for staying inside; then the same value written again. */
static void gets(const uint8_t *payload, size_t length)
{
    struct kf_reader r = kf_reader(payload, length);
    uint8_t again[16];
    for (size_t i = 0; i < length && r.ok && !kf_reader_done(&r); i++) {
        const uint8_t *before = r.at, *bytes;
        struct kf_writer w = kf_writer(again, sizeof again);
        uint32_t n = 0;
        size_t rest = 0;
        switch (payload[length - 1 - i] % 9) {
        case 0: kf_put_u8(&w, kf_get_u8(&r)); break;
        case 1: kf_put_u8(&w, kf_get_bool(&r)); break;
        case 2: kf_put_u16(&w, kf_get_u16(&r)); break;
        case 3: kf_put_u32(&w, kf_get_u32(&r)); break;
        case 4: kf_put_u64(&w, kf_get_u64(&r)); break;
        case 5: kf_put_u32(&w, kf_get_count(&r, payload[i] % 64)); break;
        case 6: bytes = kf_get_bytes(&r, &n); goto inside;
        case 7: bytes = kf_get_raw(&r, n = payload[i]); goto inside;
        default:
            bytes = kf_get_rest(&r, &rest);
            n = (uint32_t)rest;
        inside:
            if (r.ok && (bytes < payload || bytes + n > payload + length || r.at != bytes + n))
                abort();
            continue;
        }
        if (!w.ok || (r.ok && ((size_t)(r.at - before) != kf_written(&w) || memcmp(again, before, kf_written(&w)) != 0)))
            abort();
    }
    if (r.at > payload + length)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t again[KF_HEADER];
    while (size >= KF_HEADER) {
        struct kf_header h;
        bool legal = kf_header_read(data, &h);
        data += KF_HEADER;
        size -= KF_HEADER;
        if (!legal)
            continue;
        kf_header_write(again, h.length, h.type, h.id);
        if (memcmp(again, data - KF_HEADER, KF_HEADER) != 0)
            abort();
        size_t length = h.length < size ? h.length : size; /* a frame cut short is one whose payload ends early */
        uint8_t *payload = malloc(length ? length : 1);    /* of its own, so that a step over its end is seen */
        memcpy(payload, data, length);
        frames_count();
        gets(payload, length);
        if (h.type == KF_EXEC)
            exec(payload, length);
        struct kf_op *op = kf_is_file_request(h.type) ? kf_op_new(&root, h.type, h.id, payload, length) : NULL;
        free(payload);
        if (op)
            kf_op_free(op); /* it keeps nothing of the payload */
        data += length;
        size -= length;
    }
    return 0;
}
