#!/usr/bin/env bash
# Asks a server for answers without a pause: whole and streamed ones, streams that are left in the middle, requests that make no
# sense. It has to answer all the while, and neither its memory nor its open files may grow. Needs curl and Linux's /proc.
#
# Usage: bash tests/soak.sh [PROGRAM] [SECONDS]    [default: target/debug/thermocline, 600]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$(realpath "${1:-target/debug/thermocline}") seconds=${2:-600}
work=$(mktemp -d) server=
clean() {
  [[ $server ]] && kill "$server" 2>/dev/null
  wait 2>/dev/null
  rm -rf "$work"
}
trap clean EXIT
fail() {
  echo "tests/soak.sh: $*" >&2
  tail -20 "$work/log" >&2 || true
  exit 1
}
[[ -x $program ]] || fail "no program at $program: cargo build"
command -v curl >/dev/null || fail "curl is needed"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "expected seconds, got $seconds"

HOME=$work "$program" serve --port 0 --quiet >"$work/log" 2>&1 & server=$!
end=$((SECONDS + 120))
until address=$(grep -om1 'http://[0-9.:]*' "$work/log"); do
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  ((SECONDS < end)) || fail "the server does not say where it listens"
  sleep 0.2
done

# ask LIMIT BODY: the HTTP status of a chat request, or 000 if it is left after LIMIT seconds.
ask() { curl -s -o "$work/answer" -w '%{http_code}' --max-time "$1" -H 'content-type: application/json' -d "$2" "$address/v1/chat/completions" || true; }
# KiB of memory, open files.
state() { echo "$(sed -n 's/^VmRSS:\s*\([0-9]*\).*/\1/p' "/proc/$server/status") $(find "/proc/$server/fd" -mindepth 1 | wc -l)"; }

chat() { printf '{"messages":[{"role":"user","content":"%s"}],"max_tokens":%d,"stream":%s}' "$1" "$2" "$3"; }
round() {
  local status
  status=$(ask 120 "$(chat "Tell me of a bird, for the $1th time." 24 false)")
  { [[ $status == 200 ]] && grep -q '"content"' "$work/answer"; } || fail "round $1: an answer is status $status: $(head -c 300 "$work/answer")"
  status=$(ask 120 "$(chat "And of a fish." 24 true)")
  { [[ $status == 200 ]] && grep -q '^data: \[DONE\]' "$work/answer"; } || fail "round $1: a stream is status $status and has no end"
  ask 0.3 "$(chat "A long story." 400 true)" >/dev/null
  status=$(ask 20 '{"messages": 7}')
  [[ $status == 4* ]] || fail "round $1: a request without sense is status $status"
}

# What the first rounds allocate stays: caches, threads, the model's pages.
end=$((SECONDS + seconds)) rounds=0
for ((; rounds < 8; rounds++)); do round "$rounds"; done
read -r memory files <<<"$(state)"
while ((SECONDS < end)); do
  round "$rounds"
  rounds=$((rounds + 1))
  kill -0 "$server" 2>/dev/null || fail "the server ended in round $rounds"
done
sleep 1
read -r memory_after files_after <<<"$(state)"
echo "soak: $rounds rounds; memory $memory KiB, then $memory_after KiB; open files $files, then $files_after"
((memory_after <= memory + memory / 4 + 32768)) || fail "memory has grown"
((files_after <= files + 8)) || fail "open files have grown"
