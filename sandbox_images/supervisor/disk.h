/* What the workspace and the home take on the disk, and what happens when it is too much. */
#ifndef KF_DISK_H
#define KF_DISK_H

#include <stdbool.h>
#include <stdint.h>

enum disk_kind {
    DISK_UNKNOWN, /* nobody asked */
    DISK_QUOTA,   /* the file system holds the limits: it is asked what is used */
    DISK_TOTAL,   /* both trees may hold so much */
    DISK_GROWTH   /* both trees may grow by so much */
};

struct disk_use { uint64_t bytes, bytes_peak, bytes_limit, inodes, inodes_limit; }; /* 2^64-1: not known */

void disk_open(void);
struct disk_use disk_now(void);
uint64_t disk_due(void); /* when disk_step has something to do next */
bool disk_step(void); /* in each turn of the loop; true: more to do right away */

#endif
