/* The command line of mode init. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "super.h"

static bool refuse(const char *option, const char *why)
{
    fprintf(stderr, "kinfold-supervisor: %s: %s\n", option, why);
    return false;
}

static bool number(const char *text, uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == 0 && *out <= most;
}

/* UID[:GID]; the gid is the uid's number where it is not given. */
static bool read_user(struct config *config, const char *text)
{
    char copy[32];
    if (strlen(text) >= sizeof copy) {
        return false;
    }
    strcpy(copy, text);
    uint64_t uid, gid;
    char *colon = strchr(copy, ':');
    if (colon != NULL) {
        *colon = 0;
    }
    if (!number(copy, 4294967294u, &uid) || !number(colon != NULL ? colon + 1 : copy, 4294967294u, &gid)) {
        return false;
    }
    config->have_user = true;
    config->uid = (uid_t)uid;
    config->gid = (gid_t)gid;
    return uid != 0 && uid != 65533 && uid != 65534;
}

static bool two_numbers(const char *text, uint64_t *first, uint64_t *second)
{
    char copy[48];
    const char *colon = strchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof copy) {
        return false;
    }
    memcpy(copy, text, (size_t)(colon - text));
    copy[colon - text] = 0;
    return number(copy, INT64_MAX, first) && number(colon + 1, INT64_MAX, second);
}

/* One option with its value; false after saying why. */
static bool take(struct config *config, const char *option, const char *value)
{
    uint64_t n = 0;
    if (value == NULL) {
        return refuse(option, "unknown option, or its value is missing");
    }
    if (strcmp(option, "--root") == 0) {
        config->root = value;
    } else if (strcmp(option, "--home") == 0) {
        config->home = value;
    } else if (strcmp(option, "--socket") == 0) {
        config->socket_dir = value;
    } else if (strcmp(option, "--dial") == 0) {
        config->dial_dir = value;
    } else if (strcmp(option, "--user") == 0) {
        return read_user(config, value) || refuse(option, "wants UID[:GID]; 0, 65533 and 65534 cannot be the agent");
    } else if (strcmp(option, "--env") == 0) {
        if (strchr(value, '=') == NULL || value[0] == '=') {
            return refuse(option, "wants K=V");
        }
        config->env[config->env_count++] = value;
    } else if (strncmp(option, "--disk-", 7) == 0) {
        config->disk = strcmp(option, "--disk-total") == 0    ? DISK_TOTAL
                       : strcmp(option, "--disk-growth") == 0 ? DISK_GROWTH
                       : strcmp(option, "--disk-quota") == 0  ? DISK_QUOTA
                                                              : DISK_UNKNOWN;
        return (config->disk != DISK_UNKNOWN && two_numbers(value, &config->disk_bytes, &config->disk_inodes)) ||
               refuse(option, "is --disk-quota, --disk-total or --disk-growth, and wants BYTES:INODES");
    } else if (strcmp(option, "--orphan-grace") == 0) {
        if (!number(value, 1000000000, &n)) {
            return refuse(option, "wants whole seconds (0: never)");
        }
        config->orphan_grace = n * SECOND;
    } else if (strcmp(option, "--idle-pause") == 0) {
        if (!number(value, 1000000000, &n)) {
            return refuse(option, "wants milliseconds (0: never)");
        }
        config->idle_pause = n * MS;
    } else if (strcmp(option, "--nofile") == 0) {
        return number(value, UINT64_MAX, &config->nofile) || refuse(option, "wants a number");
    } else if (strcmp(option, "--egress") == 0) {
        config->egress = true;
        return number(value, 65535, &config->egress_port) || refuse(option, "wants a port, 0 for any that is free");
    } else if (strcmp(option, "--fsize") == 0) {
        return number(value, UINT64_MAX, &config->fsize) || refuse(option, "wants a number of bytes");
    } else {
        return refuse(option, "unknown option");
    }
    return true;
}

bool config_read(struct config *config, int argc, char **argv)
{
    *config = (struct config){.root = "/workspace", .home = "/home/agent", .socket_dir = "/run/kf/s",
                              .dial_dir = "/run/kf/host", .seccomp = true, .orphan_grace = 60 * SECOND};
    config->env = calloc((size_t)argc + 1, sizeof *config->env);
    if (config->env == NULL) {
        return refuse("init", "out of memory");
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--local") == 0) {
            config->local = true;
        } else if (strcmp(argv[i], "--no-seccomp") == 0) {
            config->seccomp = false;
        } else if (!take(config, argv[i], argv[i + 1])) {
            return false;
        } else {
            i++;
        }
    }
    return true;
}
