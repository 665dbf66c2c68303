/* Terminals: the pair of descriptors that an exec gets, and what an EXEC with one must say. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "check.h"
#include "super.h"

static void a_terminal_is_a_master_here_and_three_ends_there(void)
{
    struct start s = {.fds = {-1, -1, -1, -1}};
    struct wanted w = {.mode = MODE_TERMINAL, .rows = 31, .columns = 117};
    struct winsize size = {0};
    struct termios settings = {0};
    struct stat stat;
    int ours[3] = {-1, -1, -1};
    char got[8] = {0};
    SAME(terminal_open(&s, &w, ours), 0);
    SAME(ioctl(s.fds[1], TIOCGWINSZ, &size), 0);
    SAME(size.ws_row, 31);
    SAME(size.ws_col, 117);
    CHECK(tcgetattr(s.fds[3], &settings) == 0 && settings.c_iflag & IUTF8 && settings.c_lflag & ICANON);
    CHECK(isatty(s.fds[1]) && isatty(s.fds[2]) && isatty(s.fds[3]));
    CHECK(fstat(s.fds[1], &stat) == 0 && stat.st_uid == geteuid());
    SAME(ours[2], -1);
    CHECK(fcntl(ours[1], F_GETFL) & O_NONBLOCK && fcntl(ours[0], F_GETFL) & O_NONBLOCK);
    for (int i = 0; i < 2; i++) {
        CHECK(fcntl(ours[i], F_GETFD) & FD_CLOEXEC && fcntl(s.fds[i + 1], F_GETFD) & FD_CLOEXEC);
    }
    SAME(write(s.fds[2], "x\n", 2), 2);
    SAME(read(ours[1], got, sizeof got), 3);
    CHECK(strcmp(got, "x\r\n") == 0);
    for (int i = 0; i < 3; i++) {
        close(s.fds[i + 1]);
    }
    SAME(read(ours[1], got, sizeof got), -1); /* the hang-up, which is the end of its output */
    close(ours[0]);
    close(ours[1]);
}

static const char *verdict(uint8_t mode, uint16_t rows, uint16_t columns)
{
    uint8_t payload[256];
    struct wanted w;
    const char *wrong = NULL;
    struct kf_writer p = kf_writer(payload, sizeof payload);
    kf_put_bytes(&p, "run", 3);
    kf_put_u8(&p, mode);
    kf_put_u16(&p, rows);
    kf_put_u16(&p, columns);
    kf_put_u32(&p, 1);
    kf_put_bytes(&p, "sh", 2);
    kf_put_u32(&p, 0);
    kf_put_bytes(&p, "", 0);
    for (int i = 0; i < 8; i++) {
        kf_put_u64(&p, 0);
    }
    CHECK(p.ok && wanted_decode(kf_reader(payload, kf_written(&p)), &w, &wrong));
    CHECK(w.rows == rows && w.columns == columns && w.mode == mode);
    return wrong;
}

static void a_terminal_has_a_size_and_a_mode_only_known_bits(void)
{
    CHECK(verdict(0, 0, 0) == NULL);
    CHECK(verdict(MODE_ALL, 24, 80) == NULL);
    CHECK(verdict(MODE_TERMINAL, 65535, 65535) == NULL);
    CHECK(verdict(MODE_TERMINAL, 0, 80) != NULL);
    CHECK(verdict(MODE_TERMINAL, 24, 0) != NULL);
    CHECK(verdict(8, 24, 80) != NULL);
    CHECK(verdict(255, 24, 80) != NULL);
}

int main(void)
{
    a_terminal_is_a_master_here_and_three_ends_there();
    a_terminal_has_a_size_and_a_mode_only_known_bits();
    DONE();
}
