# What the prolog, the epilog and the health check have in common; they read it from their own folder.
# shellcheck shell=sh disable=SC2034

# slurmd gives no PATH. Its own commands must be in it: slurmd knows which GPU has which number.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
file=${SENTINEL_SLURM_ENV:-/etc/sentinel/slurm.env}
if [ -r "$file" ]; then
    set -a
    # shellcheck source=/dev/null
    . "$file" || :
    # With its own `set -e`, a command that fails would end the script, and Slurm drain the node.
    set +ae
fi
sentinel=$(command -v "${SENTINEL:-/usr/local/bin/sentinel}") || sentinel=
folder=${SENTINEL_SLURM:-/var/lib/sentinel/slurm}
# The node's daemon, whatever else root runs, such as one with simulated GPUs.
[ -n "${SENTINEL_SIM_DIR:-}" ] || SENTINEL_SOCKET=${SENTINEL_SOCKET:-/run/sentinel/sentinel.sock}
export PATH ${SENTINEL_SOCKET:+SENTINEL_SOCKET}
