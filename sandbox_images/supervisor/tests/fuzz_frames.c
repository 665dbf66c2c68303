/* libFuzzer target: the input is a frame as the host would send it. EXEC is decoded; a file request is decoded and run for some
 * steps in an empty root, with WDATA, WDATA_EOF and CREDIT taken from what follows the frame; one of egress and those after
 * it are spoken on a channel with a claim and two connections; any payload goes through every get of the reader. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "egress.h"
#include "files.h"
#include "frames.h"
#include "fuzz_count.h"
#include "fuzz_exec.h"
#include "turn.h"

#define ROOM_EVERY 2048 /* inputs between two sweeps of the root */

static struct kf_root root = {.fd = -1, .mount = "/workspace"};
static char folder[] = "/dev/shm/kf-fuzz-XXXXXX";

static void sink(void *channel, uint8_t type, uint64_t id, const void *payload, size_t length)
{
    unsigned *terminals = channel;
    const uint8_t *bytes = payload;
    volatile uint8_t seen = length ? (uint8_t)(bytes[0] ^ bytes[length - 1]) : 0;
    (void)seen, (void)id;
    if (length > KF_MAX_PAYLOAD || *terminals > 0)
        abort(); /* too large for a frame, or something after the terminal frame */
    *terminals += type == KF_OK || type == KF_ERROR;
}


/* Run a request to its end, or until it waits for the host with nothing more to come. */
static void run(struct kf_op *op, const uint8_t *rest, size_t length, unsigned limit)
{
    unsigned terminals = 0;
    struct kf_emitter out = {.channel = &terminals, .emit = sink};
    bool legal = kf_op_data(op, rest, length, &out) && kf_op_eof(op);
    kf_op_credit(op, length);
    enum kf_step step = KF_AGAIN;
    for (unsigned i = 0; step == KF_AGAIN && i < limit; i++)
        step = kf_op_step(op, &out);
    if ((step == KF_DONE) != (terminals == 1))
        abort();
    (void)legal;
    kf_op_free(op);
}

static void request(uint8_t type, const uint8_t *payload, size_t length, const uint8_t *rest, size_t rest_length)
{
    struct kf_op *op = kf_op_new(&root, type, 1, payload, length);
    if (op)
        run(op, rest, rest_length, 8);
}

/* Remove what the inputs made: every name in the root, by the code under test. */
static void sweep(void)
{
    char command[128];
    snprintf(command, sizeof command, "chmod -R u+rwx %s; find %s -mindepth 1 -delete", folder, folder);
    if (system(command) != 0)
        abort();
}

static void leave(void)
{
    sweep();
    close(root.fd);
    rmdir(folder);
}

static void enter(void)
{
    if (!mkdtemp(folder) || (root.fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        abort();
    kf_files_probe(&root);
    atexit(leave);
}

static void read_everything(const uint8_t *payload, size_t length)
{
    struct kf_reader r = kf_reader(payload, length);
    uint32_t n, count = kf_get_count(&r, 1);
    size_t rest;
    for (uint32_t i = 0; i < count && r.ok; i++) {
        const uint8_t *bytes = kf_get_bytes(&r, &n);
        if (bytes && n && memchr(bytes, 0, n) && bytes + n > r.end)
            abort();
    }
    kf_get_bool(&r), kf_get_u8(&r), kf_get_u16(&r), kf_get_u32(&r), kf_get_u64(&r);
    kf_get_raw(&r, 32);
    const uint8_t *at = kf_get_rest(&r, &rest);
    if (at && at + rest != payload + length)
        abort();
}

#define CLAIM 5u

/* Set up once: a channel's shims and listeners are not there. */
static bool speaking(void)
{
    static bool begun;
    begun = begun || (turn_begin() && egress_listen(0));
    return begun;
}

static void swallow(int fd)
{
    static uint8_t bytes[65536];
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
}

/* All frames of the input on a channel of its own. Its programs write, read, and go away as the frames' sizes say. */
static void speak(const uint8_t *data, size_t size)
{
    static const uint8_t streams[4] = {3};
    struct channel *c;
    struct kf_header header = {.length = 4, .type = KF_EGRESS, .id = CLAIM};
    int host = turn_channel(&c), programs[2], ours;
    if (!request_dispatch(c, &header, streams))
        abort();
    struct claim *claim = request_find(c, CLAIM)->claim;
    for (int i = 0; i < 2; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
            abort();
        programs[i] = pair[0];
        ours = pair[1];
        tube_new(claim, ours);
    }
    bool legal = true;
    for (size_t at = 0; legal && size - at >= KF_HEADER && kf_header_read(data + at, &header) && header.type >= KF_EGRESS &&
                        header.length <= size - at - KF_HEADER; at += KF_HEADER + header.length) {
        int program = programs[header.id % 2];
        if (header.id % 7 == 0)
            shutdown(program, header.id % 3 == 0 ? SHUT_RDWR : SHUT_WR);
        else if (header.id % 5 != 0)
            (void)!send(program, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (header.id % 3 == 0)
            swallow(program);
        header.id = CLAIM;
        frames_count();
        legal = request_dispatch(c, &header, data + at + KF_HEADER);
        turns();
        swallow(host);
    }
    channel_close(c);
    close(host);
    close(programs[0]);
    close(programs[1]);
    loop_forget();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned inputs;
    struct kf_header header;
    if (root.fd < 0)
        enter();
    if (size < KF_HEADER || !kf_header_read(data, &header) || header.length > size - KF_HEADER)
        return 0;
    frames_count();
    root.have_openat2 = header.id % 2;
    const uint8_t *payload = data + KF_HEADER, *rest = payload + header.length;
    size_t rest_length = size - KF_HEADER - header.length;
    read_everything(payload, header.length);
    if (kf_is_file_request(header.type))
        request(header.type, payload, header.length, rest, rest_length < 4096 ? rest_length : 4096);
    if (header.type == KF_EXEC)
        exec(payload, header.length);
    if (header.type > KF_EGRESS && header.type <= KF_EGRESS_CLOSE && speaking())
        speak(data, size);
    if (++inputs % ROOM_EVERY == 0)
        sweep();
    return 0;
}
