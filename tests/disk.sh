#!/usr/bin/env bash
# Lets a disk fail while a model that is larger than its RAM is read from it. The answer has to be the beginning of the right one,
# and to end with an error that names the file. The disk is a loop device, whose file is cut off. Needs root and e2fsprogs.
#
# Usage: bash tests/disk.sh [PROGRAM]    PROGRAM: the built binary [default: target/debug/thermocline]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$(realpath "${1:-target/debug/thermocline}")
work=$(mktemp -d) disk= mounted= answering=
clean() {
  [[ -z $answering ]] || kill "$answering" 2>/dev/null || true
  wait 2>/dev/null || true
  [[ -z $mounted ]] || umount -l "$work/disk"
  [[ -z $disk ]] || losetup -d "$disk"
  rm -rf "$work"
}
trap clean EXIT
fail() {
  echo "tests/disk.sh: $*" >&2
  tail -5 "$work"/*.err >&2 2>/dev/null || true
  exit 1
}
[[ -x $program ]] || fail "no program at $program: cargo build"
[[ $EUID -eq 0 ]] || fail "only root can mount a disk"

"$program" synth --shape tiny-llama --type q4_0 --out "$work/model.gguf" >/dev/null
bytes=$(stat -c %s "$work/model.gguf")
truncate -s $((bytes * 2 + (32 << 20))) "$work/image"
mkfs.ext4 -q -O ^has_journal "$work/image"
disk=$(losetup --show -f "$work/image") || fail "no loop device"
mkdir "$work/disk"
mount "$disk" "$work/disk"
mounted=1
cp "$work/model.gguf" "$work/disk/model.gguf"
umount "$work/disk"
# Read only, so that nothing has to be written to the lost disk.
mount -o ro "$disk" "$work/disk"

# answer MODEL [OPTION]...: the tokens of a long answer as they come, one line of JSON each.
answer() {
  HOME=$work "$program" run -m "$1" --raw -p "The sea" --temp 0 --device cpu -c 512 --speculation off --no-counts --json --stream "${@:2}"
}
# texts FILE: the text of each token.
texts() { python3 -c 'import json, sys
for line in open(sys.argv[1]):
    piece = json.loads(line) if line.endswith("\n") else {}
    if "token" in piece: print(piece["token"])' "$1"; }

: >"$work/cut"
answer "$work/model.gguf" -n 500 >"$work/right" 2>"$work/right.err" || fail "no answer from a whole disk"
code=0
(
  answer "$work/disk/model.gguf" -n 500 --ram 64KiB >"$work/cut" 2>"$work/cut.err"
) & answering=$!
end=$((SECONDS + 120))
until (($(wc -l <"$work/cut") >= 3)); do
  kill -0 "$answering" 2>/dev/null || fail "the answer ended before the disk failed"
  ((SECONDS < end)) || fail "no tokens"
  sleep 0.01
done
truncate -s 0 "$work/image"
echo 1 >/proc/sys/vm/drop_caches
wait "$answering" || code=$?
answering=
((code == 2)) || fail "exit code $code instead of 2"
grep -q "^error: .*model.gguf" "$work/cut.err" || fail "no error that names the file"
texts "$work/right" >"$work/right.texts"
texts "$work/cut" >"$work/cut.texts"
tokens=$(wc -l <"$work/cut.texts")
((tokens >= 3)) || fail "$tokens tokens"
cmp -s <(head -n "$tokens" "$work/right.texts") "$work/cut.texts" || fail "other tokens than from a whole disk"
echo "disk: $tokens right tokens, then: $(grep -m1 '^error: ' "$work/cut.err")"
