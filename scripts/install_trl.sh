#!/usr/bin/env bash
# Makes an environment with TRL for the CPU, which `python -m bench peers` compares the service with: TRL wants another
# version of transformers than the service has.
# Usage: scripts/install_trl.sh [DIRECTORY]      .venv-trl by default. Does nothing where it has been done.
# PYTHON names the interpreter to make it with, TORCH what pip is asked for to get torch's build for the CPU.
set -euo pipefail

directory=${1:-.venv-trl}
torch=${TORCH:-torch==2.13.0}
trl=1.16.0
transformers=5.23.0
stamp="$directory/.trl-$trl-transformers-$transformers"
[ -f "$stamp" ] && exit 0

"${PYTHON:-python3}" -m venv "$directory"
python="$directory/bin/python"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# First, so that no later resolution swaps its build.
"$python" -m pip install --quiet "$torch"
"$python" -m pip install --quiet "trl==$trl" "transformers==$transformers"

"$python" -c 'from trl import GRPOTrainer' 2>/dev/null ||
  { echo "TRL does not run in $directory: remove it and run this again" >&2; exit 1; }
touch "$stamp"
echo "TRL $trl is in $directory: SWARM_TRL_PYTHON=$python"
