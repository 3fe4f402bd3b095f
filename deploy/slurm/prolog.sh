#!/bin/sh
# Slurm's Prolog: reserves the GPUs of a job before it starts, until the epilog.
#
# In slurm.conf: Prolog=/etc/slurm/sentinel/prolog.sh and PrologFlags=Alloc, so that it runs when the
# job gets its GPUs and not only at its first step. It runs as root, as slurmd does.
#
# It exits with 0, unless a GPU of the job has shown a fault: its last burn-in has failed, or it has
# computed wrong results. Then it exits with 1: Slurm drains the node and requeues the job.
# Settings are in /etc/sentinel/slurm.env; see docs/guides/slurm.md.
set -u
# A fault in a file that a shell reads ends the shell, and Slurm drains the node for its exit code.
# shellcheck source-path=SCRIPTDIR source=settings.sh
(. "${0%/*}/settings.sh") || exit 0
# shellcheck source-path=SCRIPTDIR source=settings.sh
. "${0%/*}/settings.sh"

[ -x "$sentinel" ] || exit 0
fault=$("$sentinel" slurm prolog --folder "$folder" \
    --wait "${SENTINEL_WAIT:-30s}" --for "${SENTINEL_LONGEST:-30d}" </dev/null)
code=$?
# Both must say so: a broken installation exits with 1, too, and must not drain every node.
case $code:$fault in
1:gpu-sentry:*)
    echo "$fault" >&2
    exit 1
    ;;
esac
exit 0
