#!/usr/bin/env bash
# Measures the GPU and checks it against the CPU, from a program that is already built; prints Markdown, each figure under the
# command that made it. Under 8 minutes on a card, with --hybrid up to an hour.
# Usage: bash tests/gpu_bench.sh [--quick] [--hybrid [--models M] [--budgets B]] [--device D] [PROGRAM [TEST_BINARY...]]
#   PROGRAM      default target/release/thermocline
#   TEST_BINARY  test programs to run besides, e.g. target/release/deps/thermocline_run-* (with the filter `gpu`)
#   --quick      small models and short measurements, for a driver in software
#   --hybrid     instead: models larger than the GPU's budget, neurons placed one by one beside whole layers, at the same budgets.
#                Models have as many layers as disk and RAM have room for, and budgets shrink with them
#   --models     of these: "SHAPE,TYPE,LAYERS,GIB ...", a shape of `synth` with all its layers and what they take
#   --budgets    with these bytes of the GPU's memory for all layers: "8GiB 300MiB ..."
#   --device     as of `thermocline bench`; default: the first GPU that is chosen by itself
# Environment: WORK, a folder for the models [a temporary one]; SECONDS_MOST, when to skip what is left [450, with --hybrid 3600].
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

quick=0 hybrid=0 device=gpu models= budgets=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --quick) quick=1 ;;
    --hybrid) hybrid=1 ;;
    --models) shift; models=${1:?--models needs a value} ;;
    --budgets) shift; budgets=${1:?--budgets needs a value} ;;
    --device) shift; device=${1:?--device needs a value} ;;
    *) echo "gpu_bench.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
program=$(realpath "${1:-target/release/thermocline}")
shift || true
[[ -x $program ]] || { echo "gpu_bench.sh: no program at $program (cargo build --release)" >&2; exit 2; }
work=${WORK:-$(mktemp -d)}
[[ -n ${WORK:-} ]] || trap 'rm -rf "$work"' EXIT
export HOME=$work/home XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$work} XDG_CACHE_HOME=$work/cache
mkdir -p "$HOME"
failed=0 most=${SECONDS_MOST:-$((hybrid ? 3600 : 450))}

# section TITLE: a heading, with the time that has passed.
section() { printf '\n## %s\n\n_%s s_\n' "$1" "$SECONDS"; }

# show ARGS...: the program's output under the command. A failure is shown and remembered, and the rest goes on.
show() {
  printf '\n`thermocline %s`\n\n' "$(printf '%s ' "$@" | sed "s|$work/||g; s| \$||")"
  if ((SECONDS > most)); then echo "skipped: $SECONDS s have passed"; failed=1; return 1; fi
  local left=$((most + 20 - SECONDS))
  timeout "$left" "$program" "$@" 2>"$work/stderr" || { echo "**FAILED** ($?)"; sed 's/^/    /' "$work/stderr" | tail -5; failed=1; return 1; }
}

# model NAME ARGS...: makes a model with `synth` and tells how long it took.
model() {
  local name=$1 started=$SECONDS
  shift
  "$program" synth "$@" --out "$work/$name" >/dev/null 2>"$work/stderr" \
    || { echo "**FAILED**: synth $*"; tail -3 "$work/stderr"; failed=1; return 1; }
  printf '\n`thermocline synth %s --out %s`: %s, %s s\n' "$*" "$name" "$(du -h "$work/$name" | cut -f1)" "$((SECONDS - started))"
}

# bench MODEL ARGS...: one model on the device.
bench() {
  local name=$1
  shift
  show bench -m "$work/$name" --device "$device" "${effort[@]}" "$@"
}

# finish: what came of it all.
finish() {
  if [[ -e $work/kernels ]]; then
    section "Products for one token below 70 % of the copy bandwidth"
    awk -F'|' '$4 + 0 == 1 && $8 ~ /%/ && $8 + 0 < 70 { gsub(/ +/, " "); print "-" $2 "," $3 "," $5 ":" $8; found = 1 }
      END { if (!found) print "none" }' "$work/kernels"
  fi
  printf '\n%s s in all\n' "$SECONDS"
  if ((failed)); then echo "**something failed, see above**"; else echo "all passed"; fi
  exit "$failed"
}

# kib BYTES: 8GiB or 300MiB in KiB.
kib() {
  case $1 in
    *GiB) echo $((${1%GiB} << 20)) ;;
    *MiB) echo $((${1%MiB} << 10)) ;;
    *) echo "gpu_bench.sh: expected a budget like 8GiB or 300MiB, got $1" >&2; exit 2 ;;
  esac
}

# hybrid SHAPE TYPE LAYERS GIB: a model of that shape, whose LAYERS take GIB, at each of the budgets.
hybrid() {
  local shape=$1 type=$2 all=$3 gib=$4 name=hybrid.gguf layers budget room measured=0
  # The file is read from RAM; a tenth is left to the rest.
  room=$(df -Pk "$work" | awk 'NR == 2 { print $4 }')
  room=$(awk -v disk="$room" '/^MemAvailable/ { print int(($2 < disk ? $2 : disk) * 0.9) }' /proc/meminfo)
  layers=$((room * all / (gib << 20)))
  if ((layers > all)); then layers=$all; fi
  section "$shape, $type: $layers of $all layers"
  if ((layers < 2)); then echo "skipped: no room for two layers at $work"; failed=1; return; fi
  model "$name" --shape "$shape" --type "$type" --layers "$layers" --sidecar || return
  for budget in $budgets; do
    budget=$(($(kib "$budget") * layers / all * 1024))
    # Measures this machine, by whose speeds neurons are placed.
    if ((!measured)); then show plan -m "$work/$name" --device "$device" --vram "$budget" --sparsity predicted && measured=1; fi
    bench "$name" -p 0 -n "$tokens" -r 2 --vram "$budget" --placement layers,neurons --sparsity dense,exact,predicted
  done
  rm -f "$work/$name" "$work/${name%.gguf}.thermocline.gguf"
}

echo "# GPU measurements"
printf '\n%s, %s\n' "$("$program" --version)" "$(date -u +%Y-%m-%dT%H:%MZ)"
section Devices
show devices

effort=()
if ((quick)); then effort=(--quick); fi

if ((hybrid)); then
  if ((quick)); then
    tokens=4 models=${models:-"tiny-relu-llama,q4_0,4,1 tiny-falcon,f16,4,1"} budgets=${budgets:-"13MiB 18MiB"}
  else
    tokens=16 budgets=${budgets:-"8GiB 12GiB 16GiB 24GiB"}
    models=${models:-"relu-llama-70b,q4_0,80,40 falcon-40b,q4_0,60,25 relu-llama-70b,f16,80,140 falcon-40b,f16,60,88"}
  fi
  for budget in $budgets; do kib "$budget" >/dev/null; done
  for model in $models; do
    # shellcheck disable=SC2086
    hybrid ${model//,/ }
  done
  finish
fi

section "Memory, bus, hand-over, products of weights alone"
show bench --kernels --device "$device" "${effort[@]}" | tee "$work/kernels"
((PIPESTATUS[0] == 0)) || failed=1

section "Correctness: the GPU's logits beside the CPU's, built-in model"
ids=1,403,407,261,378,268,399,353,317,404,263,264
for kv in f32 f16; do
  common=(logits --tokens "$ids" --greedy 32 --kv-type "$kv")
  show "${common[@]}" --device "$device" --out "$work/gpu.safetensors" || continue
  show "${common[@]}" --device cpu --isa scalar --out "$work/cpu.safetensors" || continue
  printf '\nKV %s: ' "$kv"
  # Both files have the same header, so their numbers stand at the same places.
  python3 - "$work/gpu.safetensors" "$work/cpu.safetensors" <<'PYTHON' || failed=1
import array, json, struct, sys
def read(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    def tensor(name, code):
        begin, end = header[name]["data_offsets"]
        return array.array(code, body[begin:end])
    return tensor("logits", "f"), tensor("greedy_ids", "i")
(gpu, gpu_ids), (cpu, cpu_ids) = map(read, sys.argv[1:3])
largest = max(abs(x) for x in cpu)
worst = max(abs(a - b) for a, b in zip(gpu, cpu))
same = gpu_ids == cpu_ids
print(f"largest difference {worst:.3g} of {largest:.3g}; greedy text {'the same' if same else 'DIFFERS'}")
sys.exit(not (len(gpu) == len(cpu) and worst < 0.02 * largest and same))
PYTHON
done

for tests in "$@"; do
  section "Tests: $(basename "$tests")"
  # A library's tests of the CPU need no GPU.
  filter=$([[ $(basename "$tests") == thermocline_@(engine|run|lab)* ]] && echo gpu || true)
  printf '```\n'
  timeout 150 "$tests" ${filter:+"$filter"} 2>&1 | grep -E '^test result|FAILED|panicked' || failed=1
  if ((PIPESTATUS[0])); then failed=1; fi
  printf '```\n'
done

if ((quick)); then
  section "Models: decoding and prompt"
  for type in q4_0 q4_k; do
    model "$type.gguf" --shape tiny-llama --type "$type" || continue
    bench "$type.gguf" -p 32 -n 8 -r 2
    bench "$type.gguf" -p 32 -n 8 --kernels
    rm -f "$work/$type.gguf"
  done
else
  section "7B shape, Q4_0, 32 layers: decoding and prompt"
  # 4 GB of disk, and of the GPU's memory.
  if (($(df -Pm "$work" | awk 'NR == 2 { print $4 }') > 6000)); then
    if model 7b.gguf --shape llama-7b --type q4_0; then
      bench 7b.gguf -p 512 -n 128 -r 3
      bench 7b.gguf -p 512 -n 0 -d 3000 -r 2
      bench 7b.gguf -p 0 -n 64 -d 3000 -r 2
      bench 7b.gguf -p 512 -n 32 --kernels
    fi
    rm -f "$work/7b.gguf"
  else
    echo "skipped: no 6 GB of disk at $work"; failed=1
  fi
  section "Other weight types, 8 layers of the same shape"
  for type in q4_k q8_0 q6_k f16; do
    model "$type.gguf" --shape llama-7b --layers 8 --type "$type" || continue
    bench "$type.gguf" -p 512 -n 64 -r 3
    bench "$type.gguf" -p 512 -n 16 --kernels
    rm -f "$work/$type.gguf"
  done
fi

finish
