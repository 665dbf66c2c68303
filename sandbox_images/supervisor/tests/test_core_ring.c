/* The output ring: what is kept, what is lost, and how much may come before something is. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "ring.h"

static uint8_t byte_at(uint64_t offset) { return (uint8_t)(offset * 31 + (offset >> 8) * 7); }

static void write_pattern(struct ring *r, size_t length)
{
    uint8_t *data = malloc(length + 1);
    for (size_t i = 0; i < length; i++) {
        data[i] = byte_at(r->total + i);
    }
    ring_append(r, data, length);
    free(data);
}

/* Every byte that the ring says it holds is the one that was written there. */
static uint64_t check_content(const struct ring *r, bool whole)
{
    uint8_t buffer[4093];
    uint64_t at = ring_lowest(r, 0, whole), held = 0;
    while (at < r->total) {
        size_t n = ring_read(r, at, buffer, sizeof buffer);
        CHECK(n > 0);
        if (n == 0) {
            break;
        }
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++) {
            wrong += buffer[i] != byte_at(at + i);
        }
        SAME(wrong, 0);
        held += n;
        at = ring_lowest(r, at + n, whole);
    }
    return held;
}

static void nothing_is_lost_up_to_keep(void)
{
    for (uint64_t keep = 0; keep < 9; keep++) {
        struct ring r;
        ring_init(&r, keep);
        write_pattern(&r, (size_t)keep);
        SAME(check_content(&r, false), keep);
        SAME(ring_head_kept(&r, r.total), keep);
        write_pattern(&r, 1);
        SAME(check_content(&r, false), keep);
        SAME(ring_head_kept(&r, r.total), keep - keep / 2);
        ring_free(&r);
    }
}

static void head_and_tail_survive_any_mix_of_sizes(void)
{
    struct ring r;
    ring_init(&r, 1000001);
    unsigned seed = 7;
    for (int i = 0; i < 400; i++) {
        seed = seed * 1103515245u + 12345u;
        write_pattern(&r, (seed >> 8) % 70000);
    }
    write_pattern(&r, 3000000); /* more than the ring in one go */
    SAME(check_content(&r, false), 1000001);
    SAME(ring_lowest(&r, 0, false), 0);
    SAME(ring_lowest(&r, 500001, false), r.total - 500000);
    SAME(ring_lowest(&r, r.total, false), r.total);
    ring_free(&r);
    SAME(ring_lowest(&r, 0, true), r.total);
}

static void room_is_what_may_come_before_a_byte_is_lost(void)
{
    struct ring r;
    ring_init(&r, 100); /* the real ring is larger, so that a reader can be paced */
    SAME(ring_room(&r, 0), 50 + RING_LEAST);
    write_pattern(&r, 50 + RING_LEAST);
    SAME(ring_room(&r, 0), 0);
    SAME(check_content(&r, true), 50 + RING_LEAST);
    SAME(ring_room(&r, 60), 10);
    write_pattern(&r, 10);
    SAME(ring_lowest(&r, 60, true), 60);
    write_pattern(&r, 1);
    SAME(ring_lowest(&r, 60, true), 61);
    ring_free(&r);
}

static void a_ring_without_budget_keeps_what_it_holds_and_its_latest_bytes(void)
{
    for (uint64_t first = 0; first < 600000; first += 99991) {
        struct ring r, other;
        ring_init(&other, 1 << 20);
        ring_init(&r, 1000000);
        ring_budget(1000000);
        write_pattern(&r, (size_t)first);
        write_pattern(&other, (size_t)(1000000 - first)); /* the budget is full */
        CHECK(ring_budget_short() && !ring_affords(&r, 1));
        for (int i = 0; i < 200; i++) {
            size_t length = (size_t)(1 + i * 37 % 5000);
            ring_shrink(&r, length);
            write_pattern(&r, length);
            CHECK(r.extent <= first + RING_FLOOR);
        }
        CHECK(check_content(&r, false) >= RING_FLOOR);
        CHECK(ring_lowest(&r, r.total - RING_FLOOR, false) == r.total - RING_FLOOR);
        ring_free(&r);
        CHECK(ring_affords(&other, 1) == (first > 0));
        ring_free(&other);
        CHECK(!ring_budget_short());
        ring_init(&other, 1 << 20);
        SAME(other.head + other.keep_tail, 125000); /* an eighth of the budget */
        ring_budget(UINT64_MAX);
    }
}

static void nothing_is_head_of_a_ring_that_keeps_nothing(void)
{
    struct ring r;
    ring_init(&r, 1000);
    write_pattern(&r, 10);
    ring_free(&r); /* as when its memory could not be had */
    write_pattern(&r, 10);
    SAME(r.total, 20);
    SAME(ring_head_kept(&r, r.total), 0);
}

int main(void)
{
    a_ring_without_budget_keeps_what_it_holds_and_its_latest_bytes();
    nothing_is_head_of_a_ring_that_keeps_nothing();
    nothing_is_lost_up_to_keep();
    head_and_tail_survive_any_mix_of_sizes();
    room_is_what_may_come_before_a_byte_is_lost();
    DONE();
}
