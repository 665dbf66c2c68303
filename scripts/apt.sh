# Sourced by the setup scripts: words to the person, and Debian packages where we may install them.

say() { echo "setup: $*" >&2; }

# die MESSAGE HINT
die() {
    echo "error: $1" >&2
    echo "hint: $2" >&2
    exit 2
}

# as_root COMMAND...  Fails where that needs a password.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n -- "$@"; fi
}

can_be_root() {
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

can_install() {
    command -v apt-get >/dev/null && can_be_root
}

# apt_install PACKAGE...  The package lists are fetched once per run.
apt_install() {
    if ! command -v apt-get >/dev/null; then
        die "missing here: $*" "install what corresponds to these Debian packages, then run this again"
    fi
    if ! can_be_root; then
        die "missing here: $* (and neither root nor a password-free sudo to install it)" "sudo apt-get install -y $*"
    fi
    say "installing $*"
    if [ -z "${SETUP_APT_UPDATED:-}" ]; then
        as_root apt-get update -qq || say "apt-get update failed; trying with the lists there are"
        export SETUP_APT_UPDATED=1
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        die "apt-get could not install: $*" "apt-get update && apt-get install -y $*"
}
