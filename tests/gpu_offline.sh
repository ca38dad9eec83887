#!/usr/bin/env bash
# Gives every kernel to drivers' own compilers, without a GPU. SPIR-V's validator reads all of them in all tiers; RADV's null device
# compiles them for an RX 6800 and an RX 7900. An error is what does not compile, a lost integer product and, on the RX 6800, scratch
# memory, spilled registers and more vector instructions per byte of weights than tests/kernel_budget.tsv allows. (Mesa 22.3 gives an
# RX 7900 half of its registers; what it spills is noted.) Needs Linux, cargo, cc, python3 and what --packages prints. Usage: bash tests/gpu_offline.sh [--packages] [--table] [--drivers]
#   --packages  only prints the Debian packages it needs
#   --table     prints the whole table, as docs/benchmarks.md has it
#   --drivers   besides, drivers that want a kernel driver which does nothing: SHIM, the folder of Mesa's drm-shim libraries, and
#               DRIVERS, that of the drivers' descriptions (*_icd*.json); without them it says so
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

PACKAGES="mesa-vulkan-drivers libvulkan-dev spirv-tools"
table=0 drivers=0
for option in "$@"; do
  case $option in
    --packages) echo "$PACKAGES"; exit ;;
    --table) table=1 ;;
    --drivers) drivers=1 ;;
    *) echo "gpu_offline.sh: unknown option $option" >&2; exit 2 ;;
  esac
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
missing() { echo "gpu_offline.sh: $*; apt-get install $PACKAGES" >&2; exit 1; }
radeon=$(ls /usr/share/vulkan/icd.d/radeon_icd*.json 2>/dev/null | head -n 1)
[[ -n $radeon ]] || missing "there is no RADV"
command -v spirv-val >/dev/null || missing "there is no spirv-val"

cc -O1 -w -o "$work/pipeline_stats" tests/pipeline_stats.c -lvulkan || missing "tests/pipeline_stats.c does not compile"
cargo build --quiet --workspace --locked --example spirv || exit 1
target/debug/examples/spirv "$work/spirv" >"$work/list" || exit 1

# Cooperative matrices are newer than this validator and this driver where they come from Debian 12.
grep -v gemm_coop "$work/list" | cut -f1 >"$work/modules"
validate() { spirv-val --target-env vulkan1.3 "$1.spv" 2>&1 | sed "s|^|${1##*/spirv/}: |"; return "${PIPESTATUS[0]}"; }
export -f validate
xargs -P "$(nproc)" -I PATH bash -c 'validate PATH' <"$work/modules" || { echo "error: spirv-val refuses some"; failed=1; }
echo "$(wc -l <"$work/modules") modules validated"

# The richest tier, which real drivers run.
grep -F '/subgroups+f16/' "$work/list" | grep -v gemm_coop >"$work/richest"

# compile NAME [BUDGET]: the table of what the driver that the environment chooses makes of the kernels.
compile() {
  local name=$1
  mkdir -p "$work/$name"
  "$work/pipeline_stats" "$work/richest" -r -o "$work/$name" >"$work/$name.stats" 2>"$work/$name.said" \
    || { echo "error: $name does not compile everything"; tail -n 3 "$work/$name.said"; failed=1; }
  grep -m 1 '^device 0' "$work/$name.said" | sed "s/^device 0/\n$name/"
  python3 tests/kernel_mix.py "$work/$name.stats" "$work/richest" "$work/$name" ${2:+"$2"} >"$work/$name.table" || failed=1
  if ((table)); then cat "$work/$name.table"; else grep -E '^(error|note)|compiled$' "$work/$name.table"; fi
}

for chip in navi21 gfx1100; do
  budget=$([[ $chip == navi21 ]] && echo tests/kernel_budget.tsv)
  VK_DRIVER_FILES=$radeon VK_ICD_FILENAMES=$radeon RADV_FORCE_FAMILY=$chip compile "$chip" "$budget"
done

if ((drivers)); then
  # shim LIBRARY DRIVER NAME VARIABLE...: a driver above the kernel driver that does nothing.
  shim() {
    local library=${SHIM:-/nowhere}/$1 description name=$3
    description=$(ls "${DRIVERS:-/usr/share/vulkan/icd.d}"/$2 2>/dev/null | head -n 1)
    if [[ ! -e $library || -z $description ]]; then echo; echo "$name: left out, no $library or no $2"; return; fi
    LD_PRELOAD=$library VK_DRIVER_FILES=$description VK_ICD_FILENAMES=$description compile "$name"
  }
  AMDGPU_GPU_ID=navi31 shim libamdgpu_noop_drm_shim.so 'radeon_icd*.json' navi31
  AMDGPU_GPU_ID=gfx1201 shim libamdgpu_noop_drm_shim.so 'radeon_icd*.json' gfx1201
  INTEL_STUB_GPU_PLATFORM=dg2 shim libintel_noop_drm_shim.so 'intel_icd*.json' dg2
  INTEL_STUB_GPU_PLATFORM=bmg shim libintel_noop_drm_shim.so 'intel_icd*.json' bmg
  NVK_I_WANT_A_BROKEN_VULKAN_DRIVER=1 NOUVEAU_CHIPSET=172 shim libnouveau_noop_drm_shim.so 'nouveau_icd*.json' ampere
else
  echo; echo "left out: newer Mesa, Intel and NVK, which --drivers compiles where SHIM and DRIVERS are"
fi

if ((failed)); then echo "FAILED"; fi
exit "$failed"
