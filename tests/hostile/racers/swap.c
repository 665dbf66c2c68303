/* swap PATH PATH [PATH PATH ...]: exchange each pair for ever, as fast as the kernel lets us. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    for (;;) {
        for (int i = 1; i + 1 < argc; i += 2) {
            renameat2(AT_FDCWD, argv[i], AT_FDCWD, argv[i + 1], RENAME_EXCHANGE);
        }
    }
}
