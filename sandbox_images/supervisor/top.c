/* PROCESSES: which processes each exec has now, from /proc. Only `stat` is read: it never waits for the process itself,
 * which `cmdline` does (a hostile one could hold its memory map, and this process must not stand still). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"
#include "super.h"

#define SCAN_BUDGET_US 20000u
#define ROW_MOST (8 + 4 + 4 + 1 + 4 + 8 + 8 + 4 + 16)

/* The exec below whose shim this process is; NULL: none (a shim, a relay, the supervisor). */
static const struct exec *exec_of(const struct scan *scan, const struct process *p)
{
    const struct process *top = scan_child_above(scan, p, getpid());
    if (top == NULL || top == p) {
        return NULL;
    }
    LIST_EACH(l, spare, &kf.shims) {
        const struct shim *s = OWNER_OF(l, struct shim, link);
        if (s->pid == top->pid) {
            return s->exec;
        }
    }
    return NULL;
}

static void put_row(struct kf_writer *w, const struct exec *e, const struct process *p)
{
    static long page, hertz;
    page = page == 0 ? sysconf(_SC_PAGESIZE) : page;
    hertz = hertz == 0 ? sysconf(_SC_CLK_TCK) : hertz;
    kf_put_u64(w, e->id);
    kf_put_u32(w, (uint32_t)p->pid);
    kf_put_u32(w, (uint32_t)p->parent);
    kf_put_u8(w, (uint8_t)p->state);
    kf_put_u32(w, p->threads);
    kf_put_u64(w, p->memory * (uint64_t)page);
    kf_put_u64(w, p->ticks * 1000000u / (uint64_t)hertz);
    kf_put_bytes(w, p->name, (uint32_t)strlen(p->name));
}

void processes_request(struct channel *c, uint64_t id)
{
    static uint8_t buffer[KF_MAX_PAYLOAD];
    struct scan scan = {0};
    uint64_t until = shim_now_us() + SCAN_BUDGET_US;
    bool told = scan_descendants(&scan, SCAN_BUDGET_US); /* as PID 1 that is everybody, elsewhere no stranger is read */
    bool complete = told ? shim_now_us() < until : scan_processes(&scan, SCAN_BUDGET_US);
    struct kf_writer w = kf_writer(buffer, sizeof buffer);
    kf_put_u8(&w, 0);
    kf_put_u32(&w, 0);
    uint32_t count = 0;
    for (size_t i = 0; i < scan.count; i++) {
        const struct exec *e = exec_of(&scan, &scan.all[i]);
        if (e != NULL && (size_t)(w.end - w.at) < ROW_MOST) {
            complete = false;
            break;
        }
        if (e != NULL) {
            put_row(&w, e, &scan.all[i]);
            count++;
        }
    }
    free(scan.all);
    struct kf_writer head = kf_writer(buffer, 5);
    kf_put_u8(&head, complete);
    kf_put_u32(&head, count);
    channel_send(c, KF_OK, id, buffer, kf_written(&w));
}
