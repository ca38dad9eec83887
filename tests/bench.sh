#!/usr/bin/env bash
# Measures the CPU and writes the tables of docs/benchmarks.md.
# Usage: bash tests/bench.sh [--quick] [--peer LLAMA_BENCH] [--page FILE] [PROGRAM]
#   PROGRAM  default target/release/thermocline, built if it is missing
#   --peer   llama.cpp's llama-bench; runs in turns with ours and gives the ratios
#   --page   the page to write into [docs/benchmarks.md]
#   --quick  small shapes and one repetition, to try the script
# Environment: WORK, a folder for the models [a temporary one, 12 GB]; THREADS [2].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=0 peer= page=docs/benchmarks.md
while [[ ${1:-} == --* ]]; do
  case $1 in
    --quick) quick=1 ;;
    --peer) shift; peer=$(realpath "${1:?--peer needs a path}") ;;
    --page) shift; page=${1:?--page needs a file} ;;
    *) echo "bench.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
[[ -f $page ]] || { echo "bench.sh: no page at $page" >&2; exit 2; }
program=${1:-target/release/thermocline}
[[ -n ${1:-} || -x $program ]] || cargo build --release
program=$(realpath "$program")
work=${WORK:-$(mktemp -d)}
mkdir -p "$work"
[[ -n ${WORK:-} ]] || trap 'rm -rf "$work"' EXIT
threads=${THREADS:-2}

# model NAME ARGS...: makes a model with `synth`, unless it is there.
model() {
  local name=$1
  shift
  [[ -f $work/$name ]] || "$program" synth "$@" --out "$work/$name" >/dev/null
}

# bench ARGS...: one result table, without the line about the machine below it.
bench() {
  local peer_args=("$@")
  [[ -n $peer ]] && peer_args+=(--peer "$peer") || peer_args=("$@")
  "$program" bench --device cpu -t "$threads" "${peer_args[@]}" | grep '^|'
}

# rows: joins the tables on standard input into one: the first header, then the rows of all.
rows() { awk 'NR <= 2 { print; next } /^\| *model / { skip = 2 } skip > 0 { skip--; next } { print }'; }

# section NAME: replaces what stands between the page's markers of that name by standard input.
section() {
  local name=$1 new=$work/section
  cat > "$new"
  [[ -s $new ]] || { echo "bench.sh: no result for $name" >&2; exit 1; }
  grep -q "<!-- begin $name -->" "$page" || { echo "bench.sh: $page has no place for $name" >&2; exit 1; }
  awk -v name="$name" -v new="$new" '
    $0 == "<!-- begin " name " -->" { print; while ((getline line < new) > 0) print line; inside = 1; next }
    $0 == "<!-- end " name " -->" { inside = 0 }
    !inside { print }' "$page" > "$page.new"
  mv "$page.new" "$page"
}

if ((quick)); then
  layers=(--layers 1) prompt=32 n=4 r=1 types="q4_0 q8_0" sparse_layers=(--layers 1) moe_layers=(--layers 1)
else
  layers=(--layers 8) prompt=512 n=32 r=6 types="q4_0 q8_0 q4_k q5_k f16" sparse_layers=() moe_layers=(--layers 4)
fi

for type in $types; do
  model "dense-$type.gguf" --shape llama-7b "${layers[@]}" --type "$type"
  bench -m "$work/dense-$type.gguf" -p "$prompt" -n "$n" -r "$r"
done | rows | section dense

model relu.gguf --shape relu-llama-7b --active 0.1 "${sparse_layers[@]}"
model relu-dense.gguf --shape relu-llama-7b --no-predictor "${sparse_layers[@]}"
against=()
[[ -n $peer ]] && against=(--peer-model "$work/relu-dense.gguf")
bench -m "$work/relu.gguf" -p 0 -n "$n" -r "$r" --sparsity predicted,exact,dense "${against[@]}" | rows | section sparse

model moe.gguf --shape turbosparse-mixtral "${moe_layers[@]}"
against=()
if [[ -n $peer ]]; then
  model mixtral.gguf --shape mixtral-8x7b "${moe_layers[@]}"
  against=(--peer-model "$work/mixtral.gguf")
fi
bench -m "$work/moe.gguf" -p 0 -n "$n" -r "$r" --sparsity exact,dense "${against[@]}" | rows | section moe

echo "bench.sh: $page written; read it before you commit"
