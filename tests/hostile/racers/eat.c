/* eat KIB: make ourselves no better a victim than anybody, then as many processes as there may be, each holding so much. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    size_t size = (size_t)atoi(argc > 1 ? argv[1] : "1") * 1024;
    int fd = open("/proc/self/oom_score_adj", O_WRONLY);
    if (write(fd, "0", 1) != 1) {
        return 1;
    }
    for (;;) {
        if (fork() == 0) {
            volatile char *memory = malloc(size); /* else the compiler leaves writes out that nobody reads */
            for (;;) {
                for (size_t at = 0; at < size; at += 4096) {
                    memory[at] = 1;
                }
                usleep(20000);
            }
        }
        usleep(500);
    }
}
