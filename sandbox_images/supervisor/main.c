/* kinfold-supervisor: one binary, three modes. */
#include <stdio.h>
#include <string.h>

#include "shim.h"
#include "super.h"

#ifndef KF_BUILD
#define KF_BUILD "unknown"
#endif
const char kf_build[] = KF_BUILD;

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "init") == 0) {
        return init_main(argc, argv);
    }
    if (strcmp(mode, "connect") == 0) {
        return relay_main(argc, argv);
    }
    if (strcmp(mode, "shim") == 0) {
        return shim_main(argc, argv);
    }
    if (strcmp(mode, "--version") == 0) {
        puts(kf_build);
        return 0;
    }
    fputs("usage: kinfold-supervisor init|connect|--version (see FRAMES.md)\n", stderr);
    return 2;
}
