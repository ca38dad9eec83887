#!/usr/bin/env bash
# Runs the CPU kernels' tests, the reference models and the Debian package of 64-bit Arm under QEMU: once on a processor that has everything
# and once on one of 2016 without dot products. Needs Debian or Ubuntu on x86-64; installs what it misses. A library is compiled for
# every test, so a first run takes as long as a first build.
#
# Usage: bash tests/arm.sh [PART]...    PART: tests, package [default: both]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TARGET=aarch64-unknown-linux-gnu
PROCESSORS=(max cortex-a72)
PACKAGER=0.11.8
fail() { echo "tests/arm.sh: $*" >&2; exit 1; }
parts=("$@")
((${#parts[@]})) || parts=(tests package)
for part in "${parts[@]}"; do
  [[ " tests package " == *" $part "* ]] || fail "$part is no part"
done
packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static fakeroot python3)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  echo "installs ${packages[*]}"
  as_root=$([[ $EUID -eq 0 ]] || echo sudo)
  { $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; } \
    || fail "these packages are needed: ${packages[*]}"
fi
rustup target list --installed | grep -qx "$TARGET" || rustup target add "$TARGET"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Nothing of these computes here: there is no GPU.
quick=()
for crate in naga wgpu-core wgpu-hal; do quick+=(--config "profile.dev.package.$crate.opt-level=0"); done
# The last needs the program's library: all is compiled with the same features, whether the program is built beside them or not.
tested=(-p thermocline-run -p thermocline-tests --lib --test engine)
emulated() { printf '%s\n' qemu-aarch64-static -L /usr/aarch64-linux-gnu -cpu "$1"; }
summary=()

# runs PROCESSOR CARGO-ARGUMENT...: tests, of which there have to be some; none that needs a GPU.
runs() {
  local processor=$1 passed
  shift
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$(emulated "$processor" | paste -sd ' ') \
    cargo test --target "$TARGET" --locked "${quick[@]}" "$@" 2>&1 | tee "$work/log"
  passed=$(awk '/^test result: ok/ { sum += $4 } END { print sum + 0 }' "$work/log")
  ((passed > 0)) || fail "no test has run on $processor: $*"
  summary+=("$processor, $2: $passed passed, 0 failed")
}
part_tests() {
  local processor
  cargo test --target "$TARGET" --locked "${quick[@]}" "${tested[@]}" --no-run
  for processor in "${PROCESSORS[@]}"; do
    runs "$processor" -p thermocline-cpu --lib
    runs "$processor" "${tested[@]}" -- --skip on_the_gpu --skip on_both_processors cpu:: golden_models golden_files golden_gguf weight_types
  done
}

# scratch ARGUMENT...: dpkg in a folder of its own, which takes packages of another processor.
scratch() {
  fakeroot dpkg --root="$work/root" --force-depends --force-not-root --force-architecture "$@" >"$work/dpkg.log" 2>&1 \
    || fail "dpkg $*: $(<"$work/dpkg.log")"
}
# made_package: the Debian package of the program that is built.
made_package() {
  local packager=$PWD/target/tools/bin/cargo-packager built=target/$TARGET/debug/thermocline
  if [[ $("$packager" --version 2>/dev/null) != "cargo-packager $PACKAGER" ]]; then
    cargo install --quiet --locked --debug --root target/tools --version "$PACKAGER" cargo-packager
  fi
  printf '#!/bin/sh\nexec %s %s "$@"\n' "$(emulated max | paste -sd ' ')" "$(realpath "$built")" >"$work/thermocline"
  chmod +x "$work/thermocline"
  bash packaging/linux/manual.sh "$work/thermocline" target/manual
  # In app, because the packager looks through every folder below for configurations.
  (cd app && "$packager" --target "$TARGET" --formats deb --out-dir "$work/out") || fail "no package is made"
  deb=$(echo "$work"/out/*.deb)
}

# The package, installed into a folder, its program started there on both processors, and removed.
part_package() {
  local deb version said processor started=$SECONDS program=$work/root/usr/bin/thermocline
  local -A isa=([max]=neon-i8mm [cortex-a72]=neon)
  cargo build --target "$TARGET" --locked "${quick[@]}" -p thermocline -p thermocline-server "${tested[@]}" --bin thermocline --bin thermocline-server
  made_package
  [[ $(dpkg-deb --field "$deb" Architecture) == arm64 ]] || fail "$deb is for $(dpkg-deb --field "$deb" Architecture)"
  mkdir -p "$work/root/var/lib/dpkg/info" "$work/root/var/lib/dpkg/updates"
  touch "$work/root/var/lib/dpkg/status" "$work/root/var/lib/dpkg/available"
  PATH=$PATH:/usr/sbin:/sbin scratch --install "$deb"
  # The number of 64-bit Arm in the header of its file. How new a libc it wants is that of this system, not of the one that makes releases.
  [[ $(od -An -tx1 -j18 -N2 "$program") == " b7 00" ]] || fail "the program of $deb is for another processor"
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
  mkdir "$work/home"
  for processor in "${PROCESSORS[@]}"; do
    # arm ARGUMENT...: the installed program with an empty home.
    arm() { HOME=$work/home XDG_RUNTIME_DIR=$work timeout 600 $(emulated "$processor") "$program" "$@" 2>"$work/error"; }
    [[ $(arm --version) == "thermocline $version" ]] || fail "$processor: --version is not $version: $(<"$work/error")"
    said=$(arm devices | grep '^kernels ') || true
    [[ $said == "kernels  ${isa[$processor]} "* && $said != *slow* ]] || fail "$processor: devices says '$said': $(<"$work/error")"
    said=$(arm devices --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["cpu"]["isa"]["portable"])') || true
    [[ $said == False ]] || fail "$processor: devices --json says that its kernels are portable: $said"
    said=$(arm run --device cpu --quiet --temp 0 -n 16 -p "Tell me a story about a cat and a boat.") || true
    [[ $said == "Once upon a time"* ]] || fail "$processor: no story: $said $(<"$work/error")"
  done
  PATH=$PATH:/usr/sbin:/sbin scratch --purge thermocline
  said=$(find "$work/root" -path "$work/root/var" -prune -o -type f -print)
  [[ -z $said ]] || fail "removed, the package leaves $said"
  summary+=("package: $(basename "$deb"), $(du -k "$deb" | cut -f1) KiB: installed, started on ${PROCESSORS[*]}, removed, $((SECONDS - started)) s")
}

for part in "${parts[@]}"; do
  echo "==> $part"
  "part_$part"
done
printf '==> %s\n' "${summary[@]}"
