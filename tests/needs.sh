# For tests/run.sh, to be sourced: what its steps need of the system. Installs what is missing on Debian and Ubuntu.

# packages PACKAGE...: has them installed.
packages() {
  dpkg -s "$@" >/dev/null 2>&1 && return
  local as_root
  as_root=$([[ $EUID -eq 0 ]] || echo sudo)
  $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends "$@" \
    || { echo "tests/run.sh: these packages are needed: apt-get install $*" >&2; exit 1; }
}

# need_tools STEP...: a compiler, and what these steps use beside it.
need_tools() {
  local name wanted=()
  if ! command -v cargo >/dev/null; then
    # A fresh login shell may not have read rustup's profile yet.
    export PATH="$HOME/.cargo/bin:$PATH"
    command -v cargo >/dev/null || { echo "tests/run.sh: cargo not found; see https://rustup.rs" >&2; exit 1; }
  fi
  command -v cc >/dev/null || packages gcc libc6-dev
  for name in "$@"; do
    case $name in
      # The shader tests run on a real driver; where there is no GPU this one computes in software.
      tests | slow)
        compgen -G "/usr/share/vulkan/icd.d/*.json" >/dev/null && ldconfig -p | grep -q libvulkan.so.1 || wanted+=(mesa-vulkan-drivers libvulkan1)
        wanted+=(python3)
        cargo nextest --version >/dev/null 2>&1 || wanted+=(python3-pip) ;;
      # Used on a virtual screen, by keyboard, mouse and the accessibility bus.
      window) wanted+=($(bash tests/window.sh --packages)) ;;
      backends) wanted+=($(bash tests/backends.sh --packages)) ;;
      drivers) wanted+=($(bash tests/gpu_offline.sh --packages)) ;;
      soak) wanted+=(curl) ;;
      fuzz) wanted+=(g++) ;;
      # These install more themselves, when they begin.
      workflows | foreign) wanted+=(python3-venv) ;;
      arm | windows) wanted+=(python3) ;;
    esac
  done
  ((${#wanted[@]} == 0)) || packages "${wanted[@]}"
  cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt || exit 1
  cargo clippy --version >/dev/null 2>&1 || rustup component add clippy || exit 1
}

# can_run STEP: whether this machine has what cannot be installed; otherwise says what is missing.
can_run() {
  case $1 in
    # Published vocabularies are large and under other licences, so the repository does not hold them.
    extras) [[ -d ../shared/fixtures/vocab ]] || { echo "no published vocabularies here; bash tests/extras.sh FOLDER holds the tokenizer against them"; return 1; } ;;
    # Fetches Direct3D's compiler, once, into target/tools.
    direct3d) bash tests/direct3d.sh --fetch 2>&1 | tail -n 1; return "${PIPESTATUS[0]}" ;;
    foreign) command -v rustup >/dev/null || { echo "no rustup here, which has the other systems' standard libraries"; return 1; } ;;
    arm | windows)
      command -v apt-get >/dev/null || { echo "cross-compilers are installed on Debian and Ubuntu only"; return 1; }
      command -v rustup >/dev/null || { echo "no rustup here, which has the other system's standard library"; return 1; }
      [[ $(uname -m) == x86_64 ]] || { echo "it is run on x86-64, this is $(uname -m)"; return 1; } ;;
    disk)
      [[ $EUID -eq 0 ]] || { echo "only root can mount a disk: sudo bash tests/disk.sh"; return 1; }
      command -v mkfs.ext4 >/dev/null || { echo "no mkfs.ext4, which e2fsprogs has"; return 1; }
      { losetup -f && unshare --mount true; } >/dev/null 2>&1 || { echo "this system lets root mount no disk"; return 1; } ;;
    packaging) command -v apt-get >/dev/null || { echo "packages are made and checked on Debian and Ubuntu only"; return 1; } ;;
    fuzz) cargo +nightly --version >/dev/null 2>&1 || { echo "no nightly compiler here; its properties are tested on mutated fixtures"; return 1; } ;;
  esac
}
