/* full: as many processes as there may be, then "full" on stdout, and wait; nothing spins, nothing dies. */
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>

int main(void)
{
    for (int i = 1; i < 65; i++) {
        signal(i, SIG_IGN);
    }
    for (;;) {
        int child = fork();
        if (child < 0) {
            break;
        }
        if (child == 0) {
            setsid();
            for (;;) {
                pause();
            }
        }
    }
    write(1, "full\n", 5);
    for (;;) {
        pause();
    }
}
