#!/usr/bin/env bash
# Lints the whole workspace, tests included, for systems other than this one: what only Windows, macOS or an Arm processor compiles is
# checked before it gets there. Nothing is linked, so no system's libraries are needed; the C parts (SQLite, cryptography) are compiled
# by Zig's C compiler, which knows every target, and Windows' resources by its resource compiler; both come from PyPI into target/tools.
# Needs rustup and python3 with venv.
#
# Usage: bash tests/foreign.sh [TARGET]...    [default: macOS on Arm, Windows in both ABIs and on Arm, Linux on Arm]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ZIG=0.13.0
targets=("$@")
((${#targets[@]})) || targets=(aarch64-apple-darwin x86_64-pc-windows-gnu x86_64-pc-windows-msvc aarch64-pc-windows-msvc
  aarch64-unknown-linux-gnu)
fail() { echo "tests/foreign.sh: $*" >&2; exit 1; }
command -v rustup >/dev/null || fail "rustup is needed, which has the other systems' standard libraries; see https://rustup.rs"

tools=$PWD/target/tools/zig
python=$tools/bin/python3
if [[ $("$python" -m ziglang version 2>/dev/null) != "$ZIG" ]]; then
  rm -rf "$tools"
  python3 -m venv "$tools" || fail "python3 with venv is needed: apt-get install python3-venv"
  "$python" -m pip install --quiet --disable-pip-version-check "ziglang==$ZIG"
fi

# What Zig calls a target.
declare -A zig=(
  [aarch64-apple-darwin]=aarch64-macos [x86_64-apple-darwin]=x86_64-macos
  [x86_64-pc-windows-gnu]=x86_64-windows-gnu
  [x86_64-pc-windows-msvc]=x86_64-windows-gnu [aarch64-pc-windows-msvc]=aarch64-windows-gnu
  [aarch64-unknown-linux-gnu]=aarch64-linux-gnu [x86_64-unknown-linux-gnu]=x86_64-linux-gnu
)
export ZIG_GLOBAL_CACHE_DIR=$tools/cache ZIG_LOCAL_CACHE_DIR=$tools/cache

# Windows' resource compiler, and the one of GNU in its words, whose last two arguments are the source and the result.
printf '#!/usr/bin/env bash\nexec "%s" -m ziglang rc "$@"\n' "$python" >"$tools/rc"
cat >"$tools/windres" <<SCRIPT
#!/usr/bin/env bash
exec "$python" -m ziglang rc "\$1" -- "\${@: -2}"
SCRIPT
chmod +x "$tools/rc" "$tools/windres"

# Windows' static DXC is fetched by the build script of its crate, from a site that need not be within reach; nothing is linked here, so
# that script is compiled from an empty program.
echo 'fn main() {}' >"$tools/empty.rs"
cat >"$tools/rustc" <<SCRIPT
#!/usr/bin/env bash
[[ \$CARGO_PKG_NAME:\$CARGO_CRATE_NAME == mach-dxcompiler-rs:build_script_* ]] || exec "\$@"
words=()
for word in "\$@"; do
  case \$word in *.rs) words+=("$tools/empty.rs") ;; *) words+=("\$word") ;; esac
done
exec "\${words[@]}"
SCRIPT
chmod +x "$tools/rustc"

# compiler TARGET: writes a C compiler and an archiver for it, and says where they are. Build scripts name the target in the words of
# GCC, Clang or Apple's linker, which Zig takes for its own and does not know; it is told above instead.
compiler() {
  local target=$1 name=$tools/$1
  cat >"$name-cc" <<SCRIPT
#!/usr/bin/env bash
words=() skip=
for word in "\$@"; do
  if [[ \$skip ]]; then skip=; continue; fi
  case \$word in
    --target=* | -mmacosx-version-min=* | -mmacos-version-min=* | -march=* | -gdwarf* | -Werror*) ;;
    -target | -arch | -isysroot) skip=1 ;;
    *) words+=("\$word") ;;
  esac
done
exec "$python" -m ziglang cc -target ${zig[$target]} "\${words[@]}"
SCRIPT
  printf '#!/usr/bin/env bash\nexec "%s" -m ziglang ar "$@"\n' "$python" >"$name-llvm-ar"
  chmod +x "$name-cc" "$name-llvm-ar"
}

failed=()
for target in "${targets[@]}"; do
  [[ ${zig[$target]:-} ]] || fail "no C compiler is known for $target; known: ${!zig[*]}"
  rustup target list --installed | grep -qx "$target" || rustup target add "$target"
  compiler "$target"
  name=${target//-/_} started=$SECONDS
  # An archiver of this name is given the options of Unix for Windows, too; resources of GNU's form ask for one without a target.
  if env "CC_$name=$tools/$target-cc" "CXX_$name=$tools/$target-cc" "AR_$name=$tools/$target-llvm-ar" "AR=$tools/$target-llvm-ar" \
    SDKROOT=/ RC_PATH="$tools/rc" WINDRES="$tools/windres" RUSTC_WRAPPER="$tools/rustc" \
    cargo clippy --workspace --all-targets --locked --target "$target" -- -D warnings; then
    echo "==> $target: clean, $((SECONDS - started)) s"
  else
    failed+=("$target")
    echo "==> $target: FAILED, $((SECONDS - started)) s"
  fi
done
((${#failed[@]} == 0)) || fail "${failed[*]}"
