/* hog: one process that takes memory until it gets no more. */
#include <stdlib.h>
#include <string.h>

int main(void)
{
    for (;;) {
        char *memory = malloc(1 << 20);
        if (memory == 0) {
            return 1;
        }
        memset(memory, 1, 1 << 20);
    }
}
