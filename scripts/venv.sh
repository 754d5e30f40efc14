#!/bin/sh
# Bring .venv in line with the named pin sets, e.g. `sh scripts/venv.sh dev java`.
#
# A set is requirements/<set>.txt. What was installed is remembered under .venv/.stamps as a checksum
# of the pins, so a second run does nothing and a changed pin installs again. A run that was killed
# while installing leaves its mark there, and the next one starts over with a fresh environment:
# a package that was cut off half way can look installed to an installer.
set -eu

venv=.venv
stamps=$venv/.stamps
lock=.venv.lock
lock_wait_s=900

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

is_suitable() { # is_suitable PYTHON: it runs, and is new enough
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_suitable "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or newer that runs."
        printf '%s\n' "$PYTHON"
        return
    fi
    # Run each one: a version manager may put names on PATH that lead nowhere.
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if is_suitable "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "Headwater needs Python 3.11 or newer, and none was found on PATH.
Install one, or name it: make PYTHON=/path/to/python3.11"
}

# Prints nothing when there is none, and pip does the work. The uv that the pins bring is not taken:
# it does not read pip's configuration, and what pip could reach through it may be out of its reach.
find_uv() {
    if uv --version >/dev/null 2>&1; then
        printf 'uv\n'
    fi
}

take_lock() { # two makes at once: the second waits, then finds the work done
    waited_s=0
    until mkdir "$lock" 2>/dev/null; do
        owner=$(cat "$lock/pid" 2>/dev/null || true)
        if [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; then
            rm -rf "$lock"
            continue
        fi
        [ "$waited_s" -gt 0 ] || say "waiting for another run that is setting up $venv"
        [ "$waited_s" -lt "$lock_wait_s" ] || die "gave up waiting; if nothing runs, remove $lock"
        sleep 1
        waited_s=$((waited_s + 1))
    done
    printf '%s\n' "$$" >"$lock/pid"
    trap 'rm -rf "$lock"' EXIT
    trap 'exit 130' INT TERM HUP
}

# The path is part of it: an environment does not survive being moved.
checksum_of() { { pwd; cat "$@"; } | cksum; }

is_current() { # is_current STAMP FILE...
    stamp=$stamps/$1
    shift
    [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(checksum_of "$@")" ]
}

is_everything_current() {
    [ ! -e "$stamps/installing" ] && is_current project pyproject.toml || return 1
    for set in build "$@"; do
        is_current "$set" "requirements/$set.txt" || return 1
    done
}

is_usable() { # an environment made by other means is welcome, a broken one is not
    [ ! -e "$stamps/installing" ] && is_suitable "$venv/bin/python" || return 1
    if [ -f "$stamps/made" ]; then
        [ "$(cat "$stamps/made")" = "$(pwd)" ]
    else
        [ -n "$(find_uv)" ] || "$venv/bin/python" -m pip --version >/dev/null 2>&1
    fi
}

make_environment() {
    python=$(find_python)
    rm -rf "$venv"
    uv=$(find_uv)
    say "creating $venv with $("$python" --version 2>&1)${uv:+ and uv}"
    if [ -n "$uv" ]; then
        "$uv" venv --quiet --python "$("$python" -c 'import sys; print(sys.executable)')" "$venv"
    else
        "$python" -m venv "$venv" || die "$python cannot create environments.
On Debian and Ubuntu, install its venv package (python3-venv); or install uv."
    fi
    mkdir -p "$stamps"
    pwd >"$stamps/made"
}

run_installer() { # run_installer ARGUMENT...
    uv=$(find_uv)
    if [ -n "$uv" ]; then
        "$uv" pip install --quiet --python "$venv/bin/python" "$@"
        return
    fi
    # An environment that uv made has no pip of its own.
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

install() { # install STAMP FILE ARGUMENT...
    name=$1
    file=$2
    shift 2
    is_current "$name" "$file" && return
    : >"$stamps/installing"
    status=0
    run_installer "$@" || status=$?
    # An installer that failed by itself has put things right; one that was killed has not.
    rm -f "$stamps/installing"
    [ "$status" -eq 0 ] || die "could not install $name ($file)"
    checksum_of "$file" >"$stamps/$name"
}

[ $# -gt 0 ] || die "usage: sh scripts/venv.sh SET..."
for set in "$@"; do
    [ -f "requirements/$set.txt" ] || die "no such pin set: requirements/$set.txt"
done

is_everything_current "$@" && exit 0
take_lock
is_everything_current "$@" && exit 0
is_usable || make_environment
mkdir -p "$stamps"
# The sets are closed (scripts/check_pins.py), so nothing is resolved: an installer that resolves asks
# the index, and a release newer than the pins makes it refuse. For the same reason nothing is built
# in isolation: the build set, which comes first, holds what builds need.
for set in build "$@"; do
    is_current "$set" "requirements/$set.txt" || say "installing requirements/$set.txt"
    install "$set" "requirements/$set.txt" --no-deps --no-build-isolation --require-hashes \
        -r "requirements/$set.txt"
done
install project pyproject.toml --no-deps --no-build-isolation -e .
