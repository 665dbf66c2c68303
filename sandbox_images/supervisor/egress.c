/* Egress: programs connect to a port of the loopback interface, and each connection is carried as a stream of frames to
 * the host that claimed them last. Nothing here knows what the bytes say; who may reach what is the host's to decide.
 *
 * Both sides are hostile. What a program sends is read only as far as the host has granted and the channel has room;
 * what the host sends is bounded by the window that was granted, and lies in a memfd where the program does not read.
 * A claim has at most as many streams as its host asked for: further connections wait in the kernel's backlog. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "egress.h"

#define MOST_STREAMS 256u
#define BACKLOG 128
#define ACCEPTS_PER_TURN 16
#define SOCKET_BUFFER 262144

static struct {
    struct watch watch;
    bool asked, armed;
    uint16_t port;
    uint64_t retry_at;
    struct link claims;
} egress = {.watch = {.fd = -1}, .claims = {.prev = &egress.claims, .next = &egress.claims}};

uint16_t egress_port(void) { return egress.port; }

/* ---- connections that come */

static struct claim *newest(void)
{
    return list_empty(&egress.claims) ? NULL : OWNER_OF(egress.claims.prev, struct claim, link);
}

/* With nobody to carry it, a connection is taken and cut at once: a program must not wait for what will not come. */
static bool may_accept(void)
{
    const struct claim *claim = newest();
    return kf.now >= egress.retry_at &&
           (claim == NULL || (claim->count < claim->most && claim->next < UINT32_MAX && !claim_crowded(claim)));
}

static void listen_on(bool on)
{
    if (egress.asked && on != egress.armed) {
        egress.armed = on;
        loop_change(&egress.watch, on ? EPOLLIN : 0u);
    }
}

static void on_connection(struct watch *w, uint32_t events)
{
    (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN && may_accept(); i++) {
        int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                egress.retry_at = kf.now + SECOND; /* no descriptors are left: the connection waits */
            }
            break;
        }
        struct claim *claim = newest();
        if (claim == NULL) {
            tube_cut(fd);
            close(fd);
        } else {
            tube_new(claim, fd);
        }
    }
    listen_on(may_accept());
}

bool egress_listen(uint64_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int buffer = SOCKET_BUFFER, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return false;
    }
    /* Connections inherit them: what lies in the kernel is bounded as well. */
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (bind(fd, (struct sockaddr *)&at, size) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) != 0) {
        return false;
    }
    egress.watch = (struct watch){.fd = fd, .ready = on_connection};
    egress.port = ntohs(at.sin_port);
    egress.asked = egress.armed = true;
    loop_add(&egress.watch, EPOLLIN);
    return true;
}

void egress_step(void)
{
    LIST_EACH(l, spare, &egress.claims) {
        struct claim *claim = OWNER_OF(l, struct claim, link);
        if (claim->held && !claim_crowded(claim)) {
            claim->held = false;
            LIST_EACH(m, spare2, &claim->streams) {
                tube_settle(OWNER_OF(m, struct tube, link));
            }
        }
    }
    listen_on(may_accept());
}

/* ---- frames from the host */

bool egress_request(struct channel *c, uint64_t id, struct kf_reader *r)
{
    uint32_t most = kf_get_u32(r);
    if (!kf_reader_done(r) || most == 0 || most > MOST_STREAMS) {
        return false;
    }
    if (!egress.asked) {
        channel_error(c, id, KF_UNSUPPORTED, 0, "the sandbox was started without egress");
        return true;
    }
    struct claim *claim = calloc(1, sizeof *claim);
    if (claim == NULL) {
        abort();
    }
    claim->request = request_new(c, KF_EGRESS, id, REQUEST_EGRESS);
    claim->request->claim = claim;
    claim->most = most;
    list_init(&claim->streams);
    list_add(&egress.claims, &claim->link);
    uint8_t payload[2];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_u16(&w, egress.port);
    channel_send(c, KF_EGRESS_READY, id, payload, kf_written(&w));
    return true;
}

void egress_drop(struct claim *claim)
{
    LIST_EACH(l, spare, &claim->streams) {
        tube_free(OWNER_OF(l, struct tube, link), true);
    }
    list_remove(&claim->link);
    loop_free_later(claim);
}

bool egress_follow_up(struct channel *c, const struct kf_header *h, struct kf_reader *r)
{
    uint32_t number = kf_get_u32(r);
    uint64_t limit = h->type == KF_EGRESS_CREDIT ? kf_get_u64(r) : 0;
    size_t length = 0;
    const uint8_t *data = h->type == KF_EGRESS_DATA ? kf_get_rest(r, &length) : NULL;
    if (!kf_reader_done(r)) {
        return false;
    }
    struct request *q = request_find(c, h->id);
    if (q == NULL) {
        return true; /* it crossed the end of the claim */
    }
    if (q->claim == NULL || number == 0 || number > q->claim->next) {
        return false;
    }
    struct tube *t = tube_find(q->claim, number);
    if (t == NULL) {
        return true; /* it crossed GONE */
    }
    if (h->type == KF_EGRESS_DATA) {
        return tube_data(t, data, length);
    }
    if (h->type == KF_EGRESS_CLOSE) {
        tube_end(t, true);
        return true;
    }
    if (h->type == KF_EGRESS_EOF && t->host_eof) {
        return false;
    }
    t->host_eof = t->host_eof || h->type == KF_EGRESS_EOF;
    t->limit = limit > t->limit ? limit : t->limit;
    tube_settle(t);
    return true;
}
