#!/usr/bin/env bash
# Writes docs/evidence.md: calculated speeds of published models on published machines, compared with published speeds. Needs no model
# file and no graphics card. Usage: bash tests/evidence.sh [--out FOLDER] [PROGRAM]
#   PROGRAM  default target/release/thermocline, built if it is missing
#   --out    the folder of evidence.md and evidence.svg [docs]
# Needs Python 3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=docs
if [[ ${1:-} == --out ]]; then
  out=${2:?--out needs a folder}
  shift 2
fi
program=${1:-target/release/thermocline}
[[ -n ${1:-} || -x $program ]] || cargo build --release
exec python3 tests/evidence.py "$program" "$out"
