#!/usr/bin/env bash
# Installs chromium, bubblewrap, node and Pango where Debian's apt and the right to use it are there; otherwise says what
# is missing.
set -euo pipefail

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
python3 -c 'import ctypes; ctypes.CDLL("libpangoft2-1.0.so.0"), ctypes.CDLL("libharfbuzz-subset.so.0")' 2>/dev/null ||
  missing+=(libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0)
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "not installed: ${missing[*]} (the tests that need them are skipped)" >&2
  exit 0
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if ! sudo -n true 2>/dev/null; then
    echo "not installed: ${missing[*]}; run: sudo apt-get install ${missing[*]} (their tests are skipped)" >&2
    exit 0
  fi
  sudo=(sudo -n)
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
