#!/usr/bin/env bash
# Measures the CPU; writes the tables of docs/benchmarks.md, their values as CSV, and the chart.
# Usage: bash tests/bench.sh [--quick] [--section NAME]... [--peer LLAMA_BENCH] [--out FOLDER] [PROGRAM]
#   PROGRAM  default target/release/thermocline, built if it is missing
#   --peer   llama.cpp's llama-bench; runs in turns with ours and gives the ratios. Streams need llama-batched-bench beside it
#   --section  measures this section of the page (dense, passes, streams, sparse, moe, prompts, families); the others stay as they are [all]
#   --out    the folder of benchmarks.md, benchmarks.csv and benchmarks.svg [docs]
#   --quick  small shapes and one repetition, to try the script
# Environment: WORK, a folder for the models [a temporary one, 12 GB]; THREADS [2]; REPETITIONS [6]. Needs Python 3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=0 peer= out=docs sections=()
all_sections="dense passes streams sparse moe prompts families"
while [[ ${1:-} == --* ]]; do
  case $1 in
    --quick) quick=1 ;;
    --peer) shift; peer=$(realpath "${1:?--peer needs a path}") ;;
    --section)
      shift
      [[ " $all_sections " == *" ${1:-} "* ]] || { echo "bench.sh: --section: expected one of $all_sections, got '${1:-}'" >&2; exit 2; }
      sections+=("$1") ;;
    --out) shift; out=${1:?--out needs a folder} ;;
    *) echo "bench.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
((${#sections[@]})) || read -ra sections <<<"$all_sections"
[[ -f $out/benchmarks.md ]] || { echo "bench.sh: no page at $out/benchmarks.md" >&2; exit 2; }
program=${1:-target/release/thermocline}
[[ -n ${1:-} || -x $program ]] || cargo build --release
program=$(realpath "$program")
work=${WORK:-$(mktemp -d)}
[[ -n ${WORK:-} ]] || trap 'rm -rf "$work"' EXIT
results=$work/results
rm -rf "$results"
mkdir -p "$results"
threads=${THREADS:-2}

# wanted SECTION...: whether one of them is to be measured.
wanted() {
  local section
  for section; do [[ " ${sections[*]} " == *" $section "* ]] && return; done
  return 1
}
# model NAME ARGS...: makes a model with `synth`, unless it is there.
model() {
  local name=$1
  shift
  [[ -f $work/$name ]] || "$program" synth "$@" --out "$work/$name" >/dev/null
}

# measure SECTION LABEL MODEL PEER_MODEL ARGS...: adds a result to a section of the page, under a label of its own. Without a
# PEER_MODEL the peer reads MODEL.
number=100
measure() {
  local section=$1 label=$2 model=$3 peer_model=$4 against=()
  shift 4
  wanted "$section" || return 0
  [[ -n $peer ]] && against=(--peer "$peer")
  [[ -n $peer && -n $peer_model ]] && against+=(--peer-model "$work/$peer_model")
  number=$((number + 1))
  echo "bench.sh: $section, $label" >&2
  printf '%s\n%s\n' "$section" "$label" > "$results/$number.label"
  "$program" bench --device cpu -t "$threads" -r "$repetitions" -m "$work/$model" -o json "${against[@]}" "$@" > "$results/$number.json"
}

if ((quick)); then
  layers=(--layers 1) few=(--layers 1) prompt=32 n=4 repetitions=1 types="q4_0 q8_0" depth=64 passes=1,2,4 clients=1,2 stream_prompt=8
else
  layers=(--layers 8) few=(--layers 4) prompt=512 n=32 repetitions=${REPETITIONS:-6} types="q4_0 q8_0 q4_k q5_k q6_k f16" depth=2000
  passes=1,2,4,6,8,12,16,32 clients=1,2,4,8,16 stream_prompt=64
fi

if wanted dense passes streams; then
  for type in $types; do model "dense-$type.gguf" --shape llama-7b "${layers[@]}" --type "$type"; done
fi
if wanted dense; then
  for type in $types; do
    measure dense "${type^^}" "dense-$type.gguf" "" -p "$prompt" -n "$n"
  done
  measure dense "Q4_0, after $depth tokens" dense-q4_0.gguf "" -p 0 -n "$n" -d "$depth"
fi

# What drafts, streams and short turns of a chat are computed in.
for type in $types; do measure passes "${type^^}" "dense-$type.gguf" "" -p "$passes" -n 0; done

# streams LABEL MODEL: answers of several clients at once, in turns with llama-batched-bench where that is beside the peer.
streams() {
  local label=$1 model=$2 turn batched
  wanted streams || return 0
  batched=${peer:+$(dirname "$peer")/llama-batched-bench}
  number=$((number + 1))
  echo "bench.sh: streams, $label" >&2
  printf '%s\n%s\n' streams "$label" >"$results/$number.label"
  for ((turn = 0; turn < (repetitions + 1) / 2; turn++)); do
    "$program" bench --device cpu -t "$threads" -r 1 -m "$work/$model" --streams "$clients" -p "$stream_prompt" -n "$n" -o jsonl
    [[ -x $batched ]] || continue
    "$batched" -m "$work/$model" -t "$threads" -c 4096 -npp "$stream_prompt" -ntg "$n" -npl "$clients" --output-format jsonl 2>/dev/null | grep '^{'
  done >"$results/$number.lines"
  python3 -c 'import json, sys; print(json.dumps([json.loads(line) for line in sys.stdin]))' <"$results/$number.lines" >"$results/$number.json"
}
streams Q4_0 dense-q4_0.gguf
((quick)) || streams Q4_K dense-q4_k.gguf

wanted sparse prompts && model relu-dense.gguf --shape relu-llama-7b --no-predictor "${layers[@]}"
if wanted sparse; then
  for active in 10 30 50; do
    case $active in 10) hot=() ;; 30) hot=(--hot-share 0.43) ;; 50) hot=(--hot-share 0.65) ;; esac
    model "relu-$active.gguf" --shape relu-llama-7b --active "0.$active" "${hot[@]}" "${layers[@]}"
    measure sparse "$active %" "relu-$active.gguf" relu-dense.gguf -p 0 -n "$n" --sparsity predicted,exact,dense
    rm "$work/relu-$active.gguf"
  done
fi

wanted moe prompts && model moe.gguf --shape turbosparse-mixtral "${few[@]}"
if wanted moe; then
  model mixtral.gguf --shape mixtral-8x7b "${few[@]}"
  measure moe "10 %" moe.gguf mixtral.gguf -p 0 -n "$n" --sparsity exact,dense
fi
# Modes that skip neurons must not make a prompt slower.
measure prompts "TurboSparse Mixtral, 0.10" moe.gguf "" -p $((prompt / 2)) -n 0 --sparsity dense,exact
measure prompts "ReLU Llama 7B, 0.10" relu-dense.gguf "" -p $((prompt / 2)) -n 0 --sparsity dense,exact

# family LABEL SHAPE LAYERS TYPE ARGS...: a model of this year, at its published widths, cut in layers so that it fits in RAM twice: the
# peer repacks a copy.
family() {
  local label=$1 shape=$2 depth=$3 type=$4
  shift 4
  ((quick)) && depth=${quick_depth[$shape]:-4}
  model "$shape.gguf" --shape "$shape" --layers "$depth" --type "$type"
  measure families "$label, ${type^^}, $depth layers" "$shape.gguf" "" -p "$prompt" -n "$n" "$@"
  rm "$work/$shape.gguf"
}
# silent LABEL SHAPE LAYERS ACTIVE HOT: one whose experts' neurons are silent by nature, dense with its prompt, then in `exact`.
silent() {
  local label=$1 shape=$2 depth=$3
  ((quick)) && depth=4
  model "$shape.gguf" --shape "$shape" --layers "$depth" --active "$4" --hot-share "$5"
  measure families "$label, Q4_0, $depth layers" "$shape.gguf" "" -p "$prompt" -n "$n"
  measure moe "$label, $4" "$shape.gguf" "" -p 0 -n "$n" --sparsity exact
  measure prompts "$label, $4" "$shape.gguf" "" -p $((prompt / 2)) -n 0 --sparsity dense,exact
  rm "$work/$shape.gguf"
}
# Gemma 4's last layers read keys and values of the first: one layer of either kind has to come before them.
declare -A quick_depth=([gemma4-e4b]=7)
if wanted families; then
  family "gpt-oss 20B" gpt-oss-20b 12 mxfp4
  family "Qwen 3.5 4B" qwen3.5-4b 32 q4_0
  family "Qwen 3.5 35B-A3B" qwen3.5-35b-a3b 12 q4_0
  family "Gemma 4 E4B" gemma4-e4b 42 q4_0
  family "GLM 4.7 Flash" glm-4.7-flash 12 q4_0
fi
if wanted families moe prompts; then
  silent "SmallThinker 21B" smallthinker-21b 16 0.10 0.26
  silent "Nemotron 3 Nano" nemotron-3-nano 14 0.15 0.30
fi

slow=0  # 1 if a mode makes a prompt slower than it may.
python3 tests/bench_page.py "$results" "$out" "${sections[*]}" $( ((quick)) && echo quick) || slow=1
"$program" eval plot --in "$out/benchmarks.csv" --out "$out/benchmarks.svg" --y "times llama.cpp" --title "Decoding speed relative to llama.cpp" \
  || echo "bench.sh: no chart without --peer" >&2
echo "bench.sh: $out/benchmarks.md written; read it before you commit"
exit "$slow"
