#!/bin/sh
# Write what node-problem-detector's plugin gpu-burnin.sh answers: the exit code, a space and the line of
# `sentinel health --npd`, by rename, every INTERVAL seconds.
set -u
file=${CONDITION_FILE:-/run/sentinel/npd}
interval=${CONDITION_INTERVAL:-30}

trap 'exit 0' TERM INT
while :; do
	line=$(sentinel health --npd 2>/dev/null)
	code=$?
	# Python ends with 1, the code of a faulty GPU, where it cannot start.
	[ -n "$line" ] || { code=2 line="sentinel health failed"; }
	printf '%s %s\n' "$code" "$line" >"$file.new" && mv -f "$file.new" "$file"
	# In the background, so that a signal ends the wait at once.
	sleep "$interval" &
	wait "$!"
done
