/* resize PATH: let a file grow in steps and shrink to nothing again, for ever. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char block[65536];
    memset(block, 'x', sizeof block);
    int fd = open(argv[argc > 1], O_RDWR | O_CREAT, 0644);
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (write(fd, block, sizeof block) < 0) {
                break;
            }
        }
        if (ftruncate(fd, 0) != 0) {
            return 1;
        }
        lseek(fd, 0, SEEK_SET);
    }
}
