/* Pausing what nobody uses: programs that were left running stand still once nothing was asked for a while, and go on at
 * the next request of whatever channel, before it is looked at. To look at a sandbox, or to stand ready for its
 * connections, is not to use it. */
#include "super.h"

static bool is_use(uint8_t type)
{
    return type != KF_PING && type != KF_HELLO && type != KF_USAGE && type != KF_EXECS && type != KF_PROCESSES &&
           type != KF_EGRESS;
}

static bool is_waited_for(struct channel *c)
{
    for (size_t i = 0; c->request_count > 0 && i < sizeof c->requests / sizeof *c->requests; i++) {
        LIST_EACH(l, spare, &c->requests[i]) {
            if (is_use(OWNER_OF(l, struct request, by_id)->type)) {
                return true;
            }
        }
    }
    return false;
}

static bool in_use(void)
{
    LIST_EACH(l, spare, &kf.channels) {
        if (is_waited_for(OWNER_OF(l, struct channel, link))) {
            return true;
        }
    }
    return false;
}

void idle_on_request(uint8_t type)
{
    if (!is_use(type)) {
        return;
    }
    kf.last_used = kf.now;
    if (kf.idle_paused) {
        kf.idle_paused = false;
        if (type != KF_PAUSE) { /* which from now on is somebody's own, and ended by RESUME alone */
            pause_all(false);
        }
    }
}

void idle_check(void)
{
    if (kf.config.idle_pause == 0 || kf.paused || kf.terminating || kf.freezers > 0) {
        return;
    }
    if (in_use()) {
        kf.last_used = kf.now;
    } else if (kf.now - kf.last_used >= kf.config.idle_pause && execs_any_alive()) {
        kf.idle_paused = true;
        pause_all(true);
    }
}
