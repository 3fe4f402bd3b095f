#!/bin/sh
# A job that burns idle GPUs in until another job needs them, for nodes without the daemon.
#
#   sbatch --nodelist=node7 --gres=gpu:8 idle-burnin.sh --level long
#
# Its partition is one that the others pre-empt; see slurm.conf.example and docs/guides/slurm.md. A run that
# was pre-empted goes on when the job runs again on the same node. The reports are in
# $BURNIN_RUNS/JOB-NODE; $BURNIN_OPTIONS are options for the first run and for those that go on.
#SBATCH --job-name=idle-burnin
#SBATCH --partition=idle
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

runs=${BURNIN_RUNS:-$HOME/idle-burnin}
folder=$runs/$SLURM_JOB_ID-$SLURMD_NODENAME
mkdir -p "$runs" || exit 2

# The SIGTERM of a pre-emption is for the steps, not for this script: so the burn-in is a step, which
# frees its GPUs at once and writes the report of what was done.
burnin() {
    # shellcheck disable=SC2086 # several words
    srun --ntasks=1 "${SENTINEL:-/usr/local/bin/sentinel}" burnin ${BURNIN_OPTIONS:-} "$@"
    code=$?
}

code=2
if [ -e "$folder/run.json" ]; then
    burnin --resume "$folder"
fi
# Nothing was run: it is the first time, or the GPUs, their driver or the boot are others by now.
if [ "$code" -eq 2 ]; then
    [ ! -e "$folder" ] || folder=$folder-${SLURM_RESTART_COUNT:-0}
    burnin --report "$folder" "$@"
fi

# Slurm requeues only what is still there at the end of GraceTime.
case $(scontrol --oneliner show job "$SLURM_JOB_ID") in
*" PreemptTime="[0-9]*) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$code"
