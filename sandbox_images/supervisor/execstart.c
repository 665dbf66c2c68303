/* From an EXEC frame to a program given to a shim. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "super.h"

/* ---- strings: argv, then the environment: defaults, those of init, the exec's own; a later one wins */

struct env_list {
    const char **at;
    uint32_t *length;
    size_t count;
    uint32_t *slots; /* by a hash of the name: 1 + its place in the list, 0: free; half of them stay free */
    size_t mask;
};

static size_t hash_of(const char *name, size_t length)
{
    uint64_t h = kf.generation; /* a seed that no host chooses */
    for (size_t i = 0; i < length; i++) {
        h = (h ^ (uint8_t)name[i]) * 1099511628211u;
    }
    return (size_t)(h ^ h >> 32);
}

static void env_set(struct env_list *list, const char *entry, size_t length)
{
    size_t name = (size_t)((const char *)memchr(entry, '=', length) - entry) + 1;
    size_t slot = hash_of(entry, name) & list->mask, i = list->count;
    for (; list->slots[slot] != 0; slot = (slot + 1) & list->mask) {
        i = list->slots[slot] - 1;
        if (list->length[i] >= name && memcmp(list->at[i], entry, name) == 0) {
            break;
        }
        i = list->count;
    }
    list->slots[slot] = (uint32_t)i + 1;
    list->at[i] = entry;
    list->length[i] = (uint32_t)length;
    list->count += i == list->count;
}

static void env_free(struct env_list *list)
{
    free(list->at);
    free(list->length);
    free(list->slots);
}

/* Where programs find the proxy: the names that tools look for, and loopback left to itself. */
static void env_proxy(struct env_list *list)
{
    static char proxies[4][64];
    static const char *const names[] = {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"};
    static const char *const none[] = {"no_proxy=localhost,127.0.0.1,::1", "NO_PROXY=localhost,127.0.0.1,::1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(proxies[i], sizeof proxies[i], "%s=http://127.0.0.1:%u", names[i], egress_port());
        env_set(list, proxies[i], strlen(proxies[i]));
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        env_set(list, none[i], strlen(none[i]));
    }
}

static bool env_build(struct env_list *list, const struct wanted *w)
{
    static char home[4200];
    static const char *const fixed[] = {"USER=agent", "LOGNAME=agent", "TMPDIR=/tmp", "TZ=UTC",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"};
    static const char terminal[] = "TERM=xterm-256color";
    size_t most = w->envc + kf.config.env_count + 16, slots = 16;
    while (slots < 2 * most) {
        slots *= 2;
    }
    list->at = calloc(most, sizeof *list->at);
    list->length = calloc(most, sizeof *list->length);
    list->slots = calloc(slots, sizeof *list->slots);
    list->mask = slots - 1;
    list->count = 0;
    if (list->at == NULL || list->length == NULL || list->slots == NULL) {
        return false;
    }
    snprintf(home, sizeof home, "HOME=%s", kf.config.home);
    env_set(list, home, strlen(home));
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        env_set(list, fixed[i], strlen(fixed[i]));
    }
    if (w->mode & MODE_TERMINAL) {
        env_set(list, terminal, strlen(terminal));
    }
    if (egress_port() != 0) {
        env_proxy(list);
    }
    for (size_t i = 0; i < kf.config.env_count; i++) {
        env_set(list, kf.config.env[i], strlen(kf.config.env[i]));
    }
    struct kf_reader r = w->env;
    for (uint32_t i = 0; i < w->envc; i++) {
        uint32_t length;
        const uint8_t *s = kf_get_bytes(&r, &length);
        env_set(list, (const char *)s, length);
    }
    return true;
}

static char *append(char *at, const void *bytes, size_t length)
{
    if (length > 0) {
        memcpy(at, bytes, length);
    }
    at[length] = 0;
    return at + length + 1;
}

static struct start *start_new(const struct wanted *w)
{
    struct start *s = calloc(1, sizeof *s);
    struct env_list env = {0};
    if (s == NULL || !env_build(&env, w)) {
        abort();
    }
    for (int i = 0; i < 4; i++) {
        s->fds[i] = -1;
    }
    struct kf_reader r = w->argv;
    for (uint32_t i = 0; i < w->argc; i++) {
        uint32_t length;
        kf_get_bytes(&r, &length);
        s->length += length + 1;
    }
    for (size_t i = 0; i < env.count; i++) {
        s->length += env.length[i] + 1;
    }
    char *at = s->strings = malloc(s->length);
    if (at == NULL) {
        abort();
    }
    r = w->argv;
    for (uint32_t i = 0; i < w->argc; i++) {
        uint32_t length;
        const uint8_t *arg = kf_get_bytes(&r, &length);
        at = append(at, arg, length);
    }
    for (size_t i = 0; i < env.count; i++) {
        at = append(at, env.at[i], env.length[i]);
    }
    s->argc = (int)w->argc;
    s->envc = (int)env.count;
    env_free(&env);
    return s;
}

void start_free(struct start *s)
{
    for (int i = 0; s != NULL && i < 4; i++) {
        if (s->fds[i] >= 0) {
            close(s->fds[i]);
        }
    }
    if (s != NULL) {
        free(s->strings);
    }
    free(s);
}

/* ---- descriptors */

/* Our end does not block. Made while we are the agent for file access, so that the program may reopen /dev/stdout. */
static bool make_pipe(int *ours, int *theirs, int our_side)
{
    int both[2];
    if (pipe2(both, O_CLOEXEC) != 0) {
        return false;
    }
    *ours = both[our_side];
    *theirs = both[!our_side];
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

/* Open the directory and the pipes; 0, or an error kind with errno. */
static uint8_t open_all(struct start *s, const struct wanted *w, int ours[3])
{
    uint8_t kind = KF_INTERNAL;
    bool whole = w->cwd_length == 0;
    kf_as_agent(&kf.root);
    s->fds[0] = kf_open_dir(&kf.root, whole ? "." : (const char *)w->cwd, whole ? 1 : w->cwd_length, &kind);
    bool good = s->fds[0] >= 0;
    if (good && (w->mode & MODE_TERMINAL)) {
        kind = terminal_open(s, w, ours);
        good = kind == 0;
    } else if (good) {
        kind = KF_BUSY;
        good = make_pipe(&ours[1], &s->fds[2], 0) && make_pipe(&ours[2], &s->fds[3], 0);
        if (good && (w->mode & MODE_STDIN)) {
            good = make_pipe(&ours[0], &s->fds[1], 1);
        } else if (good) {
            good = (s->fds[1] = fcntl(kf.null, F_DUPFD_CLOEXEC, 3)) >= 0;
        }
    }
    int error = errno;
    kf_as_self(&kf.root);
    errno = error;
    return good ? 0 : kind;
}

/* ---- the record */

static void set_up_streams(struct exec *e, const struct wanted *w, const int ours[3])
{
    for (int i = 0; i < 2; i++) {
        struct stream *s = &e->out[i];
        s->exec = e;
        s->watch = (struct watch){.fd = ours[i + 1]};
        s->eof = ours[i + 1] < 0; /* a terminal has one stream */
        ring_init(&s->ring, w->keep[i]);
    }
    e->in.exec = e;
    e->in.wanted = (w->mode & MODE_STDIN) != 0;
    e->in.closed = ours[0] < 0;
    e->in.terminal = (w->mode & MODE_TERMINAL) != 0;
    e->in.granted = STDIN_WINDOW;
    e->in.watch.fd = -1;
    if (ours[0] >= 0) {
        input_start(e, ours[0]);
    }
}

static struct exec *exec_new(uint64_t id, const struct wanted *w, struct start *start, const int ours[3])
{
    struct exec *e = calloc(1, sizeof *e);
    if (e == NULL) {
        abort();
    }
    e->id = id;
    e->mode = w->mode;
    memcpy(e->owner, w->owner, w->owner_length);
    e->owner_length = w->owner_length;
    e->start = start;
    e->terminal = w->mode & MODE_TERMINAL ? fcntl(start->fds[1], F_DUPFD_CLOEXEC, 3) : -1;
    e->grace_ms = w->grace_ms;
    e->output_limit = w->output_limit;
    e->idle_timeout = w->idle_ms > NEVER / MS / 4 ? 0 : w->idle_ms * MS;
    e->created = kf.now;
    e->deadline = w->timeout_ms == 0 || w->timeout_ms > NEVER / MS / 4 ? NEVER : kf.now + w->timeout_ms * MS;
    e->idle_deadline = e->idle_timeout == 0 ? NEVER : kf.now + e->idle_timeout;
    e->drain_deadline = e->started_due = e->freeze_deadline = e->grace_ends = NEVER;
    list_init(&e->readers);
    list_init(&e->waiters);
    list_init(&e->ended_link);
    list_init(&e->dirty_link);
    list_add(&kf.execs, &e->link);
    kf.alive_count++;
    set_up_streams(e, w, ours);
    return e;
}

static bool refuse(struct channel *c, uint64_t id, uint8_t kind, int error, const char *message)
{
    channel_error(c, id, kind, error, message);
    return true;
}

bool exec_request(struct channel *c, uint64_t id, const uint8_t *payload, size_t length)
{
    struct wanted w;
    const char *wrong = NULL;
    if (!wanted_decode(kf_reader(payload, length), &w, &wrong)) {
        return false;
    }
    if (wrong != NULL) {
        return refuse(c, id, KF_INVALID, 0, wrong);
    }
    if (w.keep[0] > MAX_KEEP || w.keep[1] > MAX_KEEP) {
        return refuse(c, id, KF_TOO_LARGE, 0, "at most 64 MiB of each stream are kept");
    }
    if (exec_find(id) != NULL) {
        return refuse(c, id, KF_CONFLICT, 0, "an exec with this id is there already");
    }
    if (kf.alive_count >= MAX_EXECS || kf.terminating) {
        return refuse(c, id, KF_BUSY, 0, kf.terminating ? "the supervisor is ending" : "1024 execs are running: end some");
    }
    int ours[3] = {-1, -1, -1};
    struct start *start = start_new(&w);
    uint8_t kind = open_all(start, &w, ours);
    if (kind != 0) {
        int error = errno;
        for (int i = 0; i < 3; i++) {
            if (ours[i] >= 0) {
                close(ours[i]);
            }
        }
        start_free(start);
        return refuse(c, id, kind, error, kind == KF_BUSY ? "no descriptors, or no terminals, are left for it"
                                        : kind == KF_UNSUPPORTED ? "this sandbox has no terminals (/dev/ptmx, /dev/pts)"
                                        : "cannot enter the working directory");
    }
    struct exec *e = exec_new(id, &w, start, ours);
    struct request *r = request_new(c, KF_EXEC, id, REQUEST_READER);
    r->streaming = (w.mode & MODE_STREAM) != 0;
    memcpy(r->limit, w.limit, sizeof r->limit);
    reader_attach(r, e);
    exec_begin(e);
    return true;
}

/* ---- giving it to a shim */

/* While all processes are stopped nothing may start, or it would run among them. */
static bool may_start(void) { return !kf.paused && kf.freezers == 0 && !kf.terminating; }

void exec_begin(struct exec *e)
{
    if (!may_start()) {
        return; /* execs_begin_waiting() comes back to it */
    }
    struct shim *s = shim_take();
    if (s == NULL && errno != EAGAIN) {
        e->start_errno = errno;
        exec_tree_gone(e);
        exec_check(e);
        return;
    }
    if (s == NULL) {
        relief_begin(e);
        return;
    }
    e->shim = s;
    s->exec = e;
    e->serial = ++kf.next_serial;
    e->oom_before = cgroup_oom_kills();
    e->started = kf.now;
    struct shim_message m = {.kind = SHIM_START, .serial = e->serial, .a = e->start->argc, .b = e->start->envc,
                             .pid = (e->mode & MODE_STREAM ? START_TELL_AT_ONCE : 0) | (e->mode & MODE_TERMINAL ? START_TERMINAL : 0),
                             .n = e->start->length};
    if (!shim_send_start(s, &m, e->start)) {
        exec_shim_lost(e);
    }
}

void execs_begin_waiting(void)
{
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *e = OWNER_OF(l, struct exec, link);
        if (e->start != NULL && e->shim == NULL && !e->ended && may_start()) {
            exec_begin(e);
        }
    }
}
