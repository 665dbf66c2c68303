/* segments: SysV memory, messages and semaphores, which outlive everybody, until there are no more of each; prints how
 * many KiB of memory, bytes of messages and sets of semaphores it got. */
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

int main(void)
{
    long kib = 0, bytes = 0, sets = 0;
    struct { long type; char text[1]; } message = {1, "x"};
    for (;;) {
        int id = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
        char *memory = id < 0 ? (char *)-1 : shmat(id, 0, 0);
        if (memory == (char *)-1) {
            break;
        }
        memset(memory, 1, 1 << 20);
        shmdt(memory);
        kib += 1024;
    }
    for (int queue; (queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600)) >= 0;) {
        while (msgsnd(queue, &message, 1, IPC_NOWAIT) == 0) {
            bytes++;
        }
    }
    while (semget(IPC_PRIVATE, 250, IPC_CREAT | 0600) >= 0) {
        sets++;
    }
    printf("%ld %ld %ld\n", kib, bytes, sets);
    return 0;
}
