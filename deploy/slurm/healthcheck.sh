#!/bin/sh
# Slurm's HealthCheckProgram: prints whether a GPU of this node has shown a fault, as the daemon knows.
#
# In slurm.conf: HealthCheckProgram=/etc/slurm/sentinel/healthcheck.sh and HealthCheckInterval=60.
# It always exits with 0, and within a second unless it asks Slurm (to drain, or about a job without a
# process here): a slurmd whose health check fails may repeat it instead of registering. With
# SENTINEL_DRAIN=yes in /etc/sentinel/slurm.env, a fault drains this node, and a burn-in that has passed
# takes that back; see docs/guides/slurm.md.
set -u
# slurmd gives SLURMD_NODENAME, and neither PATH nor SLURM_CONF.
# A fault in a file that a shell reads ends the shell, and Slurm drains the node for its exit code.
# shellcheck source-path=SCRIPTDIR source=settings.sh
(. "${0%/*}/settings.sh") || exit 0
# shellcheck source-path=SCRIPTDIR source=settings.sh
. "${0%/*}/settings.sh"

[ -x "$sentinel" ] || exit 0
drain=
[ "${SENTINEL_DRAIN:-no}" != yes ] || drain=--drain
"$sentinel" slurm healthcheck --folder "$folder" $drain </dev/null
exit 0
