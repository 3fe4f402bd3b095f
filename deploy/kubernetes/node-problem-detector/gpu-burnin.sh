#!/bin/sh
# A custom plugin of node-problem-detector: exit code 0 if the GPUs passed their last burn-in, 1 if one is
# faulty, 2 if that is not known. It reads what components/node-condition writes, and needs no Sentinel.
set -u
file=${1:-/run/sentinel/npd}
# An answer older than this says nothing about now, in seconds: six missed writes. Neither does one of the
# future: the clock was set back since, and its age is not known.
longest=${2:-180}

written=$(stat -c %Y "$file" 2>/dev/null) || {
	printf "%.80s\n" "no answer of sentinel in $file"
	exit 2
}
age=$(($(date +%s) - written))
if [ "$age" -gt "$longest" ] || [ "$age" -lt 0 ]; then
	echo "the answer of sentinel is $age s old"
	exit 2
fi
# bash would end with 1, the code of a fault, if the file cannot be read.
code='' line=''
{ read -r code line <"$file"; } 2>/dev/null || :
printf '%.80s\n' "$line"
case $code,$line in
[01],?*) exit "$code" ;;
*) exit 2 ;;
esac
