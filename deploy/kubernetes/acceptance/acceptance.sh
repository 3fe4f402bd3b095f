#!/bin/sh
# Burn in the GPUs of this node, or go on with what an earlier pod of the same Job began.
#
# Arguments are those of `sentinel burnin`, such as `--level long`. The exit code is that of the verdict: 0 PASS
# or WARN (with SENTINEL_STRICT=on, as the Job has it, WARN 1 and N/A 3), 1 FAIL, 3 INCOMPLETE, 2 nothing could be run, also for wrong usage. The container's termination message has
# the verdicts in at most 4 KiB; it stays empty without a report, and Kubernetes takes the end of the log then.
set -u
# In the state directory, where `sentinel health` finds it.
folder=${STATE_DIRECTORY:-/var/lib/sentinel}/runs/$RUN_NAME
message=${TERMINATION_LOG:-/dev/termination-log}

# A deleted or evicted pod ends its burn-in, which still writes the report of what was done. Where a daemon runs,
# the daemon does the work and is asked to end it. That is refused until this run has begun, or gone on: the daemon
# may do another Job's.
end() {
	burnin=${burnin:-${!:-}} # the signal may come before the assignment below
	[ -n "$burnin" ] || exit 3
	if [ -e "$folder/run.json" ] && sentinel burnin cancel "$folder" >/dev/null 2>&1; then return; fi
	kill -TERM "$burnin" 2>/dev/null
}
burnin=
trap end TERM INT

resumed=
if [ -e "$folder/run.json" ]; then
	resumed=yes
	sentinel burnin --resume "$folder" &
else
	sentinel burnin --report "$folder" "$@" &
fi
burnin=$!

code=0
wait "$burnin" || code=$?
while kill -0 "$burnin" 2>/dev/null; do # the wait was interrupted by a signal
	code=0
	wait "$burnin" || code=$?
done

if [ -e "$folder/run.json" ]; then
	sentinel report --stored --summary "$folder" >"$message"
	verdict=$?
	# The exit code, the message and report.json say the same. A resumed run may have nothing left to do (2): an earlier
	# pod ended it.
	case $resumed$code in
	[013] | yes[0-3]) code=$verdict ;;
	esac
fi
exit "$code"
