/* The codec against golden_frames.txt: every header, and the schema of every file request, which must be exact. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "files.h"
#include "frames.h"

static const struct kf_root nowhere = {.fd = -1, .mount = "/workspace"};

static bool accepted(uint8_t type, const uint8_t *payload, size_t length)
{
    struct kf_op *op = kf_op_new(&nowhere, type, 7, payload, length);
    if (op)
        kf_op_free(op);
    return op != NULL;
}

/* Takes the exact payload, and none that is cut anywhere or has a byte more. */
static void check_schema(const char *name, uint8_t type, const uint8_t *payload, size_t length)
{
    uint8_t *copy = malloc(length + 1);
    memcpy(copy, payload, length);
    copy[length] = 0;
    CHECK(accepted(type, copy, length));
    CHECK(!accepted(type, copy, length + 1));
    for (size_t cut = 0; cut < length; cut++) {
        bool wrong = accepted(type, copy, cut);
        if (wrong)
            fprintf(stderr, "%s: accepted with %zu of %zu bytes\n", name, cut, length);
        CHECK(!wrong);
    }
    free(copy);
}

static size_t unhex(const char *hex, uint8_t *out, size_t room)
{
    size_t n = 0;
    unsigned byte;
    for (; n < room && sscanf(hex + 2 * n, "%2x", &byte) == 1; n++)
        out[n] = (uint8_t)byte;
    return n;
}

static int check_golden(const char *path)
{
    static char line[65536];
    static uint8_t frame[32768];
    FILE *f = fopen(path, "r");
    if (!f)
        return -1;
    int frames = 0;
    while (fgets(line, sizeof line, f)) {
        char *space = strchr(line, ' ');
        if (line[0] == '#' || !space)
            continue;
        *space = '\0';
        size_t n = unhex(space + 1, frame, sizeof frame);
        struct kf_header header;
        uint8_t again[KF_HEADER];
        CHECK(n >= KF_HEADER && kf_header_read(frame, &header) && header.length == n - KF_HEADER);
        kf_header_write(again, header.length, header.type, header.id);
        CHECK(memcmp(again, frame, KF_HEADER) == 0);
        CHECK(header.id == 0x0102030405060700u + (unsigned)frames);
        if (kf_is_file_request(header.type))
            check_schema(line, header.type, frame + KF_HEADER, header.length);
        frames++;
    }
    fclose(f);
    return frames;
}

static void check_headers(void)
{
    uint8_t bytes[KF_HEADER];
    struct kf_header header;
    kf_header_write(bytes, KF_MAX_PAYLOAD, KF_DATA, UINT64_MAX);
    CHECK(kf_header_read(bytes, &header) && header.length == KF_MAX_PAYLOAD && header.id == UINT64_MAX);
    for (int i = 5; i < 8; i++) {
        bytes[i] = 1;
        CHECK(!kf_header_read(bytes, &header));
        bytes[i] = 0;
    }
    kf_header_write(bytes, KF_MAX_PAYLOAD + 1, KF_DATA, 1);
    CHECK(!kf_header_read(bytes, &header));
    kf_header_write(bytes, 0, KF_DATA, 0);
    CHECK(!kf_header_read(bytes, &header));
}

static void check_reader_and_writer(void)
{
    uint8_t buffer[64];
    uint32_t length;
    struct kf_writer w = kf_writer(buffer, 19);
    kf_put_u8(&w, 0xab);
    kf_put_u16(&w, 0x1234);
    kf_put_u64(&w, 0x1122334455667788u);
    kf_put_bytes(&w, "name", 4);
    CHECK(w.ok && kf_written(&w) == 19 && buffer[1] == 0x34 && buffer[3] == 0x88);
    kf_put_u8(&w, 1);
    CHECK(!w.ok && kf_written(&w) == 19);
    struct kf_reader r = kf_reader(buffer, 19);
    CHECK(kf_get_u8(&r) == 0xab && kf_get_u16(&r) == 0x1234 && kf_get_u64(&r) == 0x1122334455667788u);
    const uint8_t *name = kf_get_bytes(&r, &length);
    CHECK(name && length == 4 && memcmp(name, "name", 4) == 0 && kf_reader_done(&r));
    CHECK(kf_get_u8(&r) == 0 && !r.ok);
    memset(buffer, 0xff, sizeof buffer); /* lengths and counts that cannot fit, a bool of 255 */
    r = kf_reader(buffer, sizeof buffer);
    CHECK(!kf_get_bytes(&r, &length) && length == 0 && !r.ok);
    r = kf_reader(buffer, sizeof buffer);
    CHECK(kf_get_count(&r, 8) == 0 && !r.ok);
    r = kf_reader(buffer, sizeof buffer);
    CHECK(!kf_get_bool(&r) && !r.ok);
    r = kf_reader(NULL, 0);
    CHECK(kf_reader_done(&r));
}

int main(void)
{
    check_headers();
    check_reader_and_writer();
    int frames = check_golden("golden_frames.txt"); /* tests run in the supervisor's folder, or beside it */
    if (frames < 0)
        frames = check_golden("../golden_frames.txt");
    CHECK(frames >= 98);
    CHECK(!kf_is_file_request(KF_WDATA) && !kf_is_file_request(KF_EXEC) && !kf_is_file_request(0x26));
    DONE();
}
