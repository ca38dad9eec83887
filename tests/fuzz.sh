#!/usr/bin/env bash
# Fuzzes everything that reads files of others: compiles all targets at once, then runs two at a time. The same properties are tested on
# mutated fixtures by tests/run.sh (tests/tests/engine/fuzzed.rs). Needs a nightly compiler and a C++ compiler; installs cargo-fuzz if it is
# missing. Inputs that fail are left in fuzz/artifacts.
#
# Usage: bash tests/fuzz.sh [SECONDS [TARGET]...]      [default: 60 seconds of every target]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../fuzz"

seconds=${1:-60}
(($#)) && shift
cargo +nightly --version >/dev/null 2>&1 || { echo "tests/fuzz.sh: rustup toolchain install nightly" >&2; exit 1; }
cargo +nightly fuzz --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-fuzz
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(cargo +nightly fuzz list)
# One target is compiled as it is run.
((${#targets[@]} == 1)) || cargo +nightly fuzz build
printf '%s\n' "${targets[@]}" | SECONDS_EACH=$seconds xargs -P 2 -I TARGET bash -c 'cargo +nightly fuzz run TARGET -- \
  -max_total_time="$SECONDS_EACH" -rss_limit_mb=2048 2>&1 | sed "s/^/TARGET: /"; exit "${PIPESTATUS[0]}"'
