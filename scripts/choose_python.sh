#!/usr/bin/env bash
# Prints the interpreter that .venv is made with: Python 3.11, else 3.12, and of several builds of it the fastest.
# Half of what a server does is Python, and a build without profile-guided optimization, as pyenv makes it, takes 10 to
# 30 % longer for it. A build that is not clearly faster than the first in PATH is left alone.
# Usage: scripts/choose_python.sh      Exits with 1 if there is neither.
set -uo pipefail

# Microseconds of a loop at best, or nothing if this build cannot make an environment.
measure='
import ensurepip, sys, time, venv
if sys.version_info[:2] != (3, int(sys.argv[1])):
    sys.exit(1)
def loop():
    begun, total = time.perf_counter(), 0
    for number in range(100_000):
        total += number % 7
    return time.perf_counter() - begun
print(round(1e6 * min(loop() for _ in range(7))))'

for minor in 11 12; do
  first="" chosen="" least=0
  while read -r candidate; do
    micros=$("$candidate" -I -c "$measure" "$minor" 2>/dev/null) || continue
    if [ -z "$first" ]; then
      first=$candidate chosen=$candidate least=$micros
    elif [ $((micros * 10)) -lt $((least * 9)) ]; then
      chosen=$candidate least=$micros
    fi
  done < <(type -aP "python3.$minor" python3 | awk '!seen[$0]++')
  [ -n "$chosen" ] || continue
  [ "$chosen" = "$first" ] || echo "$chosen is faster than $first: .venv is made with it (PYTHON=$first if it shall not be)" >&2
  echo "$chosen"
  exit 0
done
echo "neither Python 3.11 nor 3.12 is in PATH with its modules venv and ensurepip" >&2
exit 1
