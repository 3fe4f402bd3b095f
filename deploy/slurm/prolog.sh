#!/bin/sh
# Slurm's Prolog: reserves the GPUs of a job before it starts, until the epilog.
#
# In slurm.conf: Prolog=/etc/slurm/sentinel/prolog.sh and PrologFlags=Alloc, so that it runs when the
# job gets its GPUs and not only at its first step. It runs as root, as slurmd does.
#
# It exits with 0 once sentinel uses none of these GPUs, also if no daemon runs. With any other exit
# code Slurm drains the node and requeues the job: a foreign process uses a GPU of the job, or the
# memory was not freed.
set -u

# slurmd gives no PATH.
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
sentinel=${SENTINEL:-/usr/local/bin/sentinel}
# The node's daemon, whatever else root runs, such as one with simulated GPUs.
[ -n "${SENTINEL_SIM_DIR:-}" ] || export SENTINEL_SOCKET="${SENTINEL_SOCKET:-/run/sentinel/sentinel.sock}"
kept=${SENTINEL_SLURM:-/run/sentinel-slurm}
wait=${SENTINEL_WAIT:-30s}
# Longer than any job: only for a node that dies before its epilog.
longest=${SENTINEL_LONGEST:-30d}

gpus=${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-}}
[ -n "$gpus" ] && [ -n "${SLURM_JOB_ID:-}" ] || exit 0
[ -x "$sentinel" ] || exit 0
umask 077
mkdir -p "$kept" || exit 1
names=$kept/$SLURM_JOB_ID

# Reserves GPU,... and writes down the reservation's name for the epilog.
take() {
    said=$("$sentinel" reserve --gpus "$1" --for "$longest" --wait "$wait" \
        --reason "Slurm job $SLURM_JOB_ID" --json)
    result=$?
    [ "$result" -ne 0 ] ||
        printf '%s\n' "$said" | sed -n 's/.*"id": "\([0-9a-f]*\)".*/\1/p' >>"$names"
    return "$result"
}

take "$gpus"
code=$?
if [ "$code" -eq 4 ]; then # there is one that this daemon does not care for: each by itself then
    code=0
    for gpu in $(printf '%s' "$gpus" | tr ',' ' '); do
        take "$gpu"
        one=$?
        [ "$one" -eq 0 ] || [ "$one" -eq 4 ] || code=$one
    done
fi
[ "$code" -ne 3 ] || code=0 # no daemon runs, so nothing is held
exit "$code"
