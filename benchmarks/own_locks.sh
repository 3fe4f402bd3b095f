#!/bin/sh
# Run a command as root with GPU locks of its own, so that two sentinels can take turns on one GPU:
# unshare --mount sh own_locks.sh COMMAND
set -e
umask 077
cover() {
    mkdir -p -m "$1" "$2"
    mount -t tmpfs -o "mode=$1" tmpfs "$2"
}
if [ -n "$SENTINEL_SIM_DIR" ]; then
    cover 1777 "$SENTINEL_SIM_DIR/locks"
    cover 700 "$SENTINEL_SIM_DIR/locks-0"
else
    cover 1777 /run/lock/sentinel
    cover 1777 /tmp/sentinel-locks
    cover 700 /run/sentinel/locks-0
    cover 700 /tmp/sentinel-0/locks-0
fi
exec "$@"
