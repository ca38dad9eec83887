#!/usr/bin/env bash
# Runs the CPU kernels' tests and the reference models on 64-bit Arm, under QEMU: once on a processor that has everything and once on
# one of 2016 without dot products. Needs Debian or Ubuntu; installs what it misses. A library is compiled for every test, so a first
# run takes as long as a first build.
#
# Usage: bash tests/arm.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=aarch64-unknown-linux-gnu
fail() { echo "tests/arm.sh: $*" >&2; exit 1; }
packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  as_root=$([[ $EUID -eq 0 ]] || echo sudo)
  { $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; } \
    || fail "these packages are needed: ${packages[*]}"
fi
rustup target list --installed | grep -qx "$target" || rustup target add "$target"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Nothing of these computes here: there is no GPU.
quick=()
for crate in naga wgpu-core wgpu-hal; do quick+=(--config "profile.dev.package.$crate.opt-level=0"); done
tests=(-p thermocline-engine -p thermocline-tests --lib --test engine)
cargo test --target "$target" --locked "${quick[@]}" "${tests[@]}" --no-run

# runs PROCESSOR FILTER...: the tests whose names have a filter in them, of which there have to be some.
runs() {
  local processor=$1 log
  shift
  log=$(mktemp)
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu -cpu $processor" \
    cargo test --target "$target" --locked "${quick[@]}" "${tests[@]}" -- "$@" 2>&1 | tee "$log"
  local passed
  passed=$(awk '/^test result: ok/ { sum += $4 } END { print sum + 0 }' "$log")
  rm -f "$log"
  ((passed > 0)) || fail "no test has run on $processor: $*"
  echo "==> $processor: $passed passed"
}
for processor in max cortex-a72; do
  runs "$processor" cpu:: golden_models golden_files golden_gguf weight_types
done
