#!/usr/bin/env bash
# Measures decoding with less RAM than the model takes: in a cgroup with a memory limit, with the file's pages out of the system's
# cache at each start. Thermocline runs in turns with itself without a limit of its own (`--ram` above the model: a plain map), and
# with llama.cpp. Prints the tokens/s of each turn and the medians. Needs Linux, root and Python 3.
#
# Usage: bash tests/ram.sh [OPTION]... MODEL [-- OPTIONS OF run]
#   --limit PERCENT   of the model's file [50]
#   --tokens N        tokens of an answer [24]
#   --turns N         [3]
#   --peer PROGRAM    llama.cpp's llama-completion
#   --peer-model FILE for the peer, under the same limit [MODEL]
#   --program PROGRAM [target/release/thermocline]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

percent=50 tokens=24 turns=3 peer= peer_model= program=target/release/thermocline
while [[ ${1:-} == --* ]]; do
  value=${2:?"$1 needs a value"}
  case $1 in
    --limit) percent=$value ;;
    --tokens) tokens=$value ;;
    --turns) turns=$value ;;
    --peer) peer=$(realpath "$value") ;;
    --peer-model) peer_model=$value ;;
    --program) program=$value ;;
    *) echo "ram.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
model=${1:?a model is needed}
shift
[[ ${1:-} != -- ]] || shift
[[ $EUID -eq 0 ]] || { echo "ram.sh: only root may limit memory and drop caches" >&2; exit 2; }
bytes=$(stat -Lc %s "$model")
limit=$((bytes * percent / 100))

# The cgroup of version 2, or else of version 1.
if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
  group=/sys/fs/cgroup/thermocline-ram limit_file=memory.max
  echo +memory >/sys/fs/cgroup/cgroup.subtree_control
else
  group=/sys/fs/cgroup/memory/thermocline-ram limit_file=memory.limit_in_bytes
fi
mkdir -p "$group"
trap 'rmdir "$group"' EXIT
echo "$limit" >"$group/$limit_file"

cores=$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)
# limited COMMAND...: runs it with the limit, and with no page of a file cached.
limited() {
  sync
  echo 3 >/proc/sys/vm/drop_caches
  (echo "$BASHPID" >"$group/cgroup.procs"; exec timeout 280 "$@")
}
# ours [OPTION]...: tokens/s.
ours() {
  limited "$program" run -m "$model" -p "The sea is" -n "$tokens" --temp 0 --raw --speculation off --no-counts -c 256 --device cpu \
    -t "$cores" --json "$@" 2>/dev/null | sed -n 's/.*"decode_tokens_per_second":\([0-9.]*\).*/\1/p'
}
# theirs: tokens/s of llama.cpp, as it prints them.
theirs() {
  limited "$peer" -m "${peer_model:-$model}" -p "The sea is" -n "$tokens" --temp 0 -no-cnv --ignore-eos --no-warmup --no-repack -t "$cores" -c 256 </dev/null 2>&1 \
    | sed -n 's/.*\beval time.*runs.*, *\([0-9.]*\) tokens per second.*/\1/p' | tail -n 1
}

results=$(mktemp)
trap 'rmdir "$group"; rm -f "$results"' EXIT
# turn NAME COMMAND...: runs the command and prints its speed after the name.
turn() {
  local speed
  speed=$("${@:2}") && [[ $speed ]] || { echo "ram.sh: a turn of $1 failed" >&2; exit 1; }
  echo "$1 $speed" | tee -a "$results"
}
for ((number = 1; number <= turns; number++)); do
  turn paged ours "$@"
  turn plain ours --ram $((bytes * 16)) "$@"
  [[ -z $peer ]] || turn llama.cpp theirs
done
python3 - "$results" "$limit" <<'P'
import statistics, sys
speeds = {}
for line in open(sys.argv[1]):
    name, speed = line.split()
    speeds.setdefault(name, []).append(float(speed))
paged = statistics.median(speeds["paged"])
print(f"limit {int(sys.argv[2]) / 1e6:.0f} MB")
for name, of in speeds.items():
    median = statistics.median(of)
    print(f"{name}: {median:.2f} tokens/s ({min(of):.2f} to {max(of):.2f}), paged / {name} {paged / median:.2f}")
P
