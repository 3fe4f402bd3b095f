#!/bin/sh
# Slurm's Epilog: ends the reservation that the prolog made.
#
# In slurm.conf: Epilog=/etc/slurm/sentinel/epilog.sh. It always exits with 0: a GPU that stays
# reserved is idle, which is no reason for Slurm to drain the node.
# Settings are in /etc/sentinel/slurm.env; see docs/guides/slurm.md.
set -u
# A fault in a file that a shell reads ends the shell, and Slurm drains the node for its exit code.
# shellcheck source-path=SCRIPTDIR source=settings.sh
(. "${0%/*}/settings.sh") || exit 0
# shellcheck source-path=SCRIPTDIR source=settings.sh
. "${0%/*}/settings.sh"

# So that without the command, as during an upgrade, the next prolog or epilog ends the reservation.
rm -f "$folder/${SLURM_JOB_ID:-}.job"
[ -x "$sentinel" ] || exit 0
"$sentinel" slurm epilog --folder "$folder" </dev/null
exit 0
