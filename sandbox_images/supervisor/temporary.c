/* Temporary files: a name nobody can guess, in the directory of the file that it will become. */
#include "ops.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";

bool kf_is_temporary(const char *name)
{
    return strlen(name) == KF_TEMPORARY_NAME - 1 && strncmp(name, ".kf-", 4) == 0 && strspn(name + 4, letters) == 8 &&
           strcmp(name + 12, ".tmp") == 0;
}

int kf_make_temporary(int directory, char name[KF_TEMPORARY_NAME])
{
    for (int i = 0; i < 16; i++) {
        uint8_t random[8];
        if (getrandom(random, sizeof random, 0) != sizeof random)
            return -1;
        memcpy(name, ".kf-xxxxxxxx.tmp", KF_TEMPORARY_NAME);
        for (int k = 0; k < 8; k++)
            name[4 + k] = letters[random[k] % 32];
        int fd = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}
