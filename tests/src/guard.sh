#!/bin/sh
# Runs a command until it ends, or until this script's input closes because the test process is gone. First line out: the command's pid.
exec 3<&0
"$@" </dev/null 3<&- &
pid=$!
echo "$pid"
{ cat <&3 >/dev/null; kill -TERM "$pid"; sleep 10; kill -KILL "$pid"; } >/dev/null 2>&1 &
watcher=$!
wait "$pid"
status=$?
kill "$watcher" 2>/dev/null
exit "$status"
