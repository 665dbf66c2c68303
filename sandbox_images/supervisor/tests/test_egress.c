/* Connections of programs, carried: who gets them, how much of them flows, how they end, and what a hostile host may do. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "egress.h"
#include "turn.h"

#define ID 77u

static struct { uint32_t type[4096], stream[4096]; uint64_t number[4096]; size_t count; uint64_t bytes; } seen;

/* All frames that came to the host's end since the last look. */
static void look(int host)
{
    static uint8_t buffer[8u << 20];
    static size_t have;
    seen.count = 0;
    seen.bytes = 0;
    for (bool more = true; more;) {
        turns();
        ssize_t n = recv(host, buffer + have, sizeof buffer - have, MSG_DONTWAIT);
        more = n > 0;
        have += n > 0 ? (size_t)n : 0;
    }
    size_t at = 0;
    while (have - at >= KF_HEADER) {
        struct kf_header h;
        CHECK(kf_header_read(buffer + at, &h) && h.id == ID);
        struct kf_reader r = kf_reader(buffer + at + KF_HEADER, h.length);
        size_t i = seen.count++;
        seen.type[i] = h.type;
        seen.stream[i] = h.type == KF_EGRESS_READY ? kf_get_u16(&r) : h.type == KF_ERROR ? kf_get_u8(&r) : kf_get_u32(&r);
        seen.number[i] = h.type == KF_EGRESS_ROOM ? kf_get_u64(&r) : h.type == KF_EGRESS_BYTES ? h.length - 4 : 0;
        seen.bytes += h.type == KF_EGRESS_BYTES ? h.length - 4 : 0;
        at += KF_HEADER + h.length;
    }
    CHECK(at == have);
    have = 0;
}

static bool saw(uint32_t type, uint32_t stream)
{
    for (size_t i = 0; i < seen.count; i++) {
        if (seen.type[i] == type && seen.stream[i] == stream) {
            return true;
        }
    }
    return false;
}

/* One frame from the host, handled at once; false: it ended the channel. */
static bool say(struct channel *c, uint8_t type, const uint8_t *payload, size_t length)
{
    struct kf_header h = {.length = (uint32_t)length, .type = type, .id = ID};
    return request_dispatch(c, &h, payload);
}

static bool say_stream(struct channel *c, uint8_t type, uint32_t stream, uint64_t limit, size_t data)
{
    static uint8_t payload[KF_MAX_PAYLOAD];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_u32(&w, stream);
    if (type == KF_EGRESS_CREDIT) {
        kf_put_u64(&w, limit);
    }
    return say(c, type, payload, kf_written(&w) + data);
}

static void claim(struct channel *c, uint32_t streams)
{
    uint8_t payload[4];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_u32(&w, streams);
    CHECK(say(c, KF_EGRESS, payload, sizeof payload));
}

static int program(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(egress_port()),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

/* What the program reads next: bytes, 0 for the end, -1 for a reset, -2 for nothing yet. */
static ssize_t program_reads(int fd, size_t most)
{
    static uint8_t buffer[1u << 20];
    ssize_t n = recv(fd, buffer, most, MSG_DONTWAIT);
    return n < 0 && errno == EAGAIN ? -2 : n;
}

static void without_a_host_a_connection_is_cut_at_once(void)
{
    int fd = program();
    turns();
    SAME(program_reads(fd, 1), -1);
    close(fd);
}

static void a_claim_without_egress_is_refused(struct channel *c, int host)
{
    claim(c, 4);
    look(host);
    CHECK(saw(KF_ERROR, KF_UNSUPPORTED));
    SAME(request_find(c, ID) != NULL, 0);
}

static void bytes_go_both_ways_and_each_end_is_told(struct channel *c, int host)
{
    int fd = program();
    CHECK(send(fd, "hello", 5, 0) == 5);
    look(host);
    CHECK(saw(KF_EGRESS_OPENED, 1) && seen.bytes == 5);
    CHECK(say_stream(c, KF_EGRESS_DATA, 1, 0, 9));
    turns();
    SAME(program_reads(fd, 100), 9);
    shutdown(fd, SHUT_WR);
    look(host);
    CHECK(saw(KF_EGRESS_ENDED, 1) && !saw(KF_EGRESS_GONE, 1));
    CHECK(say_stream(c, KF_EGRESS_EOF, 1, 0, 0));
    look(host);
    CHECK(saw(KF_EGRESS_GONE, 1));
    SAME(program_reads(fd, 100), 0);
    close(fd);
    CHECK(say_stream(c, KF_EGRESS_DATA, 1, 0, 9) && say_stream(c, KF_EGRESS_CLOSE, 1, 0, 0)); /* they crossed GONE */
}

/* All that the program can push, until nothing moves. */
static uint64_t flood(int fd, int host)
{
    static uint8_t data[65536];
    uint64_t total = 0;
    for (int still = 0; still < 3;) {
        ssize_t n = send(fd, data, sizeof data, MSG_DONTWAIT);
        look(host);
        total += seen.bytes;
        still = n <= 0 && seen.bytes == 0 ? still + 1 : 0;
    }
    return total;
}

static void a_program_is_read_as_far_as_the_host_grants(struct channel *c, int host)
{
    int fd = program();
    SAME(flood(fd, host), EGRESS_WINDOW);
    CHECK(say_stream(c, KF_EGRESS_CREDIT, 2, EGRESS_WINDOW + 1000, 0));
    SAME(flood(fd, host), 1000);
    CHECK(say_stream(c, KF_EGRESS_CREDIT, 2, 5, 0)); /* never less than was granted */
    SAME(flood(fd, host), 0);
    CHECK(say_stream(c, KF_EGRESS_CLOSE, 2, 0, 0));
    look(host);
    CHECK(saw(KF_EGRESS_GONE, 2));
    close(fd);
}

static void a_program_that_does_not_read_holds_up_its_own_stream_only(struct channel *c, int host)
{
    int fd = program(), other = program();
    uint64_t sent = 0, limit = EGRESS_WINDOW;
    look(host);
    CHECK(saw(KF_EGRESS_OPENED, 3) && saw(KF_EGRESS_OPENED, 4));
    for (bool more = true; more;) {
        for (; sent + 50000 <= limit; sent += 50000) {
            CHECK(say_stream(c, KF_EGRESS_DATA, 3, 0, 50000));
        }
        look(host);
        more = false;
        for (size_t i = 0; i < seen.count; i++) {
            more = more || seen.type[i] == KF_EGRESS_ROOM;
            limit = seen.type[i] == KF_EGRESS_ROOM ? seen.number[i] : limit;
        }
    }
    CHECK(sent < (8u << 20)); /* the kernel's buffers and one window */
    CHECK(say_stream(c, KF_EGRESS_DATA, 4, 0, 10));
    turns();
    SAME(program_reads(other, 100), 10);
    CHECK(say_stream(c, KF_EGRESS_EOF, 3, 0, 0));
    uint64_t got = 0;
    ssize_t n;
    while ((n = program_reads(fd, 1u << 20)) != 0 && n != -1) {
        got += n > 0 ? (uint64_t)n : 0;
        turns();
    }
    SAME(n, 0);
    SAME(got, sent);
    close(fd);
    close(other);
    look(host);
    CHECK(saw(KF_EGRESS_ENDED, 4));
    CHECK(say_stream(c, KF_EGRESS_EOF, 4, 0, 0));
    look(host);
    CHECK(saw(KF_EGRESS_GONE, 4));
}

static void no_more_streams_than_asked_for_and_the_rest_wait(struct channel *c, int host)
{
    int fds[6];
    for (int i = 0; i < 6; i++) {
        fds[i] = program();
    }
    look(host);
    CHECK(saw(KF_EGRESS_OPENED, 8) && !saw(KF_EGRESS_OPENED, 9)); /* 5 to 8 */
    SAME(program_reads(fds[5], 1), -2);
    CHECK(say_stream(c, KF_EGRESS_CLOSE, 5, 0, 0));
    look(host);
    CHECK(saw(KF_EGRESS_GONE, 5) && saw(KF_EGRESS_OPENED, 9) && !saw(KF_EGRESS_OPENED, 10));
    for (int i = 0; i < 6; i++) {
        close(fds[i]);
    }
}

static void what_a_host_may_not_say_ends_its_channel(struct channel *c, int host)
{
    int fd = program();
    look(host);
    uint32_t last = 0;
    for (size_t i = 0; i < seen.count; i++) {
        last = seen.type[i] == KF_EGRESS_OPENED ? seen.stream[i] : last;
    }
    CHECK(!say_stream(c, KF_EGRESS_DATA, 0, 0, 1) && !say_stream(c, KF_EGRESS_DATA, last + 1, 0, 1));
    CHECK(!say_stream(c, KF_EGRESS_DATA, last, 0, 0)); /* nothing */
    for (int i = 0; i < 4; i++) {
        CHECK(say_stream(c, KF_EGRESS_DATA, last, 0, EGRESS_WINDOW / 4 - 4));
    }
    turns();
    look(host);
    CHECK(say_stream(c, KF_EGRESS_EOF, last, 0, 0));
    CHECK(!say_stream(c, KF_EGRESS_EOF, last, 0, 0) && !say_stream(c, KF_EGRESS_DATA, last, 0, 1));
    uint8_t none[4] = {0}, many[4] = {1, 1, 0, 0};
    CHECK(!say(c, KF_EGRESS, none, 4) && !say(c, KF_EGRESS, none, 3)); /* the id is in use; a payload cut short */
    struct kf_header h = {.length = 4, .type = KF_EGRESS, .id = ID + 1};
    CHECK(!request_dispatch(c, &h, none) && !request_dispatch(c, &h, many)); /* 0 and 257 streams */
    close(fd);
}

static void an_older_claim_serves_again_when_the_newest_has_gone(struct channel *old, int old_host)
{
    struct channel *c;
    int host = turn_channel(&c);
    claim(c, 4);
    int first = program();
    look(host);
    CHECK(saw(KF_EGRESS_READY, egress_port()) && saw(KF_EGRESS_OPENED, 1));
    close(host);
    turns();
    SAME(program_reads(first, 1), -1); /* cut with its claim */
    close(first);
    look(old_host);
    int second = program();
    look(old_host);
    SAME(seen.count > 0 && seen.type[0] == KF_EGRESS_OPENED, 1);
    uint8_t nothing[1];
    CHECK(say(old, KF_CANCEL, nothing, 0));
    look(old_host);
    CHECK(saw(KF_ERROR, KF_CANCELLED));
    SAME(program_reads(second, 1), -1);
    close(second);
    without_a_host_a_connection_is_cut_at_once();
}

int main(void)
{
    struct channel *c;
    CHECK(turn_begin());
    int host = turn_channel(&c);
    a_claim_without_egress_is_refused(c, host);
    CHECK(egress_listen(0) && egress_port() != 0);
    without_a_host_a_connection_is_cut_at_once();
    claim(c, 4);
    look(host);
    CHECK(saw(KF_EGRESS_READY, egress_port()));
    bytes_go_both_ways_and_each_end_is_told(c, host);
    a_program_is_read_as_far_as_the_host_grants(c, host);
    a_program_that_does_not_read_holds_up_its_own_stream_only(c, host);
    no_more_streams_than_asked_for_and_the_rest_wait(c, host);
    CHECK(say_stream(c, KF_EGRESS_CLOSE, 6, 0, 0) && say_stream(c, KF_EGRESS_CLOSE, 7, 0, 0) &&
          say_stream(c, KF_EGRESS_CLOSE, 8, 0, 0) && say_stream(c, KF_EGRESS_CLOSE, 9, 0, 0));
    look(host);
    CHECK(say_stream(c, KF_EGRESS_CLOSE, 10, 0, 0));
    what_a_host_may_not_say_ends_its_channel(c, host);
    an_older_claim_serves_again_when_the_newest_has_gone(c, host);
    close(host);
    turns();
    close(kf.epoll);
    DONE();
}
