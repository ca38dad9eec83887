#!/usr/bin/env bash
# Runs every check of the repository: format, lints, build, tests. Needs Rust, git and a C linker; installs the
# Rust components and the software Vulkan driver it misses. Usage: bash tests/run.sh      (from anywhere)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

names=() results=()
failed=() left_out=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# step NAME COMMAND...: runs it, shows what it prints, remembers how it ended.
step() {
  local name=$1 started=$SECONDS result=ok
  shift
  printf '\n==> %s\n' "$name"
  "$@" 2>&1 | tee "$logs/$name"
  ((PIPESTATUS[0] == 0)) || { result=FAILED; failed+=("$name"); }
  names+=("$name")
  results+=("$result, $((SECONDS - started)) s")
}

# no_warnings LOG: the compiler and clippy had nothing to say.
no_warnings() { ! grep -E '^(warning|error)' "$1"; }

if ! command -v cargo >/dev/null; then
  # A fresh login shell may not have read rustup's profile yet.
  export PATH="$HOME/.cargo/bin:$PATH"
  command -v cargo >/dev/null || { echo "tests/run.sh: cargo not found; see https://rustup.rs" >&2; exit 1; }
fi
if ! command -v cc >/dev/null; then
  apt-get update -qq && apt-get install -y -qq gcc libc6-dev || { echo "tests/run.sh: a C linker (cc) is needed" >&2; exit 1; }
fi
# The shader tests run on a real driver; where there is no GPU this one computes in software.
if ! compgen -G "/usr/share/vulkan/icd.d/*.json" >/dev/null || ! ldconfig -p | grep -q libvulkan.so.1; then
  as_root=$([[ $EUID -eq 0 ]] || echo sudo)
  $as_root apt-get update -qq && $as_root apt-get install -y -qq mesa-vulkan-drivers libvulkan1 \
    || { echo "tests/run.sh: a Vulkan driver is needed: apt-get install mesa-vulkan-drivers libvulkan1" >&2; exit 1; }
fi
# The window is used on a virtual screen, by keyboard, mouse and the accessibility bus.
read -ra window_packages < <(echo "$(bash tests/window.sh --packages)" "$(bash tests/backends.sh --packages)" \
  "$(bash tests/gpu_offline.sh --packages)")
if ! dpkg -s "${window_packages[@]}" >/dev/null 2>&1; then
  as_root=$([[ $EUID -eq 0 ]] || echo sudo)
  $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends "${window_packages[@]}" \
    || { echo "tests/run.sh: the window's test needs: apt-get install ${window_packages[*]}" >&2; exit 1; }
fi
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt || exit 1
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy || exit 1

step "format" cargo fmt --all -- --check
# Clippy compiles while it lints, so everything is compiled once. Cargo repeats the lints of what it has compiled before.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver
step "build" cargo build --workspace --all-targets --locked
step "lints" no_warnings "$logs/build"
step "tests" cargo test --workspace --locked --no-fail-fast
# Published vocabularies are large and under other licences, so the repository does not hold them.
beside=../shared
if [[ -d $beside ]]; then
  step "extras" bash tests/extras.sh "$beside/fixtures/vocab"
else
  left_out+=("extras: no published vocabularies here; bash tests/extras.sh FOLDER holds the tokenizer against them")
  printf '\n==> left out: %s\n' "${left_out[-1]}"
fi
step "window" bash tests/window.sh
step "backends" bash tests/backends.sh
step "drivers" bash tests/gpu_offline.sh
# Fetches Direct3D's compiler, once, into target/tools.
if bash tests/direct3d.sh --fetch; then
  step "direct3d" bash tests/direct3d.sh
else
  echo; echo "==> direct3d: no compiler, so the kernels' HLSL is not compiled; the tests have looked at its entry points"
fi
left_out+=("clients, lm_eval: they fetch other programs; bash tests/clients.sh, bash tests/lm_eval.sh")
left_out+=("fuzz: its properties are tested on mutated fixtures; bash tests/fuzz.sh searches for more")
unset RUSTC_WORKSPACE_WRAPPER
# Also builds cargo-packager, once, into target/tools.
if command -v apt-get >/dev/null; then
  step "packaging" bash packaging/test.sh
else
  echo; echo "==> packaging: packages are made and checked on Debian and Ubuntu only"
fi

# The failures once more, at the end of the log, where they are found first.
for name in "${failed[@]}"; do
  printf '\n==> %s, how it ended\n' "$name"
  tail -n 15 "$logs/$name"
done

printf '\n'
for i in "${!names[@]}"; do printf '%-8s %s\n' "${names[i]}" "${results[i]}"; done
for what in "${left_out[@]}"; do printf 'left out: %s\n' "$what"; done
for name in "${failed[@]}"; do
  printf '\n==> %s, where it failed\n' "$name"
  grep -aE 'FAILED$' "$logs/$name" | cut -c -200 | head -n 6
  # What the display says of its own surroundings is no failure.
  grep -aE '^error|No such file' "$logs/$name" | grep -v XDG_RUNTIME_DIR | cut -c -200 | sort -u | head -n 5
  grep -aE -A2 'panicked at' "$logs/$name" | cut -c -200 | head -n 9
done
if ((${#failed[@]})); then echo "FAILED"; exit 1; fi
echo "all passed"
