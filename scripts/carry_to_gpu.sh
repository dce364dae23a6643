#!/usr/bin/env bash
# Collects wheels for a machine with a GPU that has PyTorch and transformers, and no network: what the local engine needs
# besides, in the versions of constraints.txt, and the wheel of this checkout. Prints how they are installed there.
# Usage: scripts/carry_to_gpu.sh [FOLDER] [PYTHON]      build/carry and 3.12 by default; PYTHON is that of the machine.
# It ends with an error if the folder is larger than 60 MiB.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=${1:-build/carry}
python=${2:-3.12}
most=$((60 * 1024))
bin=.venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK=1

mkdir -p "$folder"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
"$bin/python" scripts/wheels_to_carry.py > "$list"

# pip takes every platform by its exact name; the newest that a wheel may name comes first.
platforms=()
for minor in $(seq 39 -1 5); do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)

# This one is published as source alone.
grep '^antlr4-python3-runtime==' "$list" > "$list.source"
grep -v '^antlr4-python3-runtime==' "$list" > "$list.wheels"
trap 'rm -f "$list" "$list.source" "$list.wheels"' EXIT
"$bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" --requirement "$list.source"
"$bin/python" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
  "${platforms[@]}" --dest "$folder" --requirement "$list.wheels"
rm -f "$folder"/swarm_researcher-*.whl
"$bin/python" -m hatchling build --target wheel --directory "$folder" > /dev/null
"$bin/python" scripts/stand_in_for_ray.py "$folder"

size=$(du -sk "$folder" | cut -f1)
if [ "$size" -gt "$most" ]; then
  echo "$folder holds $((size / 1024)) MiB, and at most 60 MiB can be carried: remove what the machine has" >&2
  exit 1
fi
echo "$(ls "$folder" | wc -l) wheels, $((size / 1024)) MiB, are in $folder. On the machine, in a checkout of this repository:"
echo "    python3 -m pip install --no-index --no-deps --no-compile --upgrade --target build/site $folder/*.whl"
echo '    PYTHONPATH=$PWD/build/site python3 -m bench gpu'
