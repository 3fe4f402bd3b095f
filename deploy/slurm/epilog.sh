#!/bin/sh
# Slurm's Epilog: ends the reservation that the prolog made.
#
# In slurm.conf: Epilog=/etc/slurm/sentinel/epilog.sh. It always exits with 0: a GPU that stays reserved
# is idle, which is no reason for Slurm to drain the node.
set -u

PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
sentinel=${SENTINEL:-/usr/local/bin/sentinel}
# The node's daemon, whatever else root runs, such as one with simulated GPUs.
[ -n "${SENTINEL_SIM_DIR:-}" ] || export SENTINEL_SOCKET="${SENTINEL_SOCKET:-/run/sentinel/sentinel.sock}"
names=${SENTINEL_SLURM:-/run/sentinel-slurm}/${SLURM_JOB_ID:-none}

[ -e "$names" ] || exit 0
# One by one: a name that the daemon has forgotten must not keep the others.
while read -r name; do
    "$sentinel" unreserve "$name" </dev/null
done <"$names"
rm -f "$names"
exit 0
