/* spin SIGNAL: send it to every process that we may, for ever, from three processes. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int number = argc > 1 ? atoi(argv[1]) : 0;
    if (fork() == 0 || fork() == 0) {
        for (;;) {
            kill(-1, number);
        }
    }
    for (;;) {
        kill(-1, number);
    }
}
