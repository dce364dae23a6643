#!/usr/bin/env bash
# Runs a command beside two processes that keep both cores of a small machine busy: what depends on time shows.
# Usage: scripts/run_busy.sh COMMAND [ARGUMENT]...      BUSY names another number of processes. Exits as the command does.
set -uo pipefail

[ $# -gt 0 ] || { echo "usage: $0 COMMAND [ARGUMENT]..." >&2; exit 2; }
busy=${BUSY:-2}
[[ $busy =~ ^[1-9][0-9]*$ ]] || { echo "BUSY is the number of processes that keep cores busy, not '$busy'" >&2; exit 2; }

spinners=()
trap 'kill -KILL "${spinners[@]}" 2>/dev/null' EXIT
# Ctrl-C reaches the command as well, which says in its own way what was broken off.
trap : INT

for _ in $(seq "$busy"); do
  # Each ends with this script, however that ends.
  bash -c 'while kill -0 "$1" 2>/dev/null; do for ((n = 0; n < 200000; n++)); do :; done; done' spinner $$ &
  spinners+=($!)
done
disown -a

"$@"
exit $?
