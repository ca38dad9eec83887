#!/usr/bin/env bash
# lm-evaluation-harness 0.4.13 against `thermocline serve`: a small multiple choice and a small generation, offline; every log probability
# that it counted is then held against `thermocline logits`, and every generated text against its `--greedy`. Prints the harness's table.
# The harness is fetched from PyPI, once, into target/tools. Needs python3 with venv.
# Usage: bash tests/lm_eval.sh [FLAG ...]     FLAG: of `serve`, like `-m MODEL` or `--sparsity predicted --prompt-chunk 1`
#        bash tests/lm_eval.sh --fetch        only fetches the harness; fails where the registry cannot be reached
#        TASKS=arc_easy LIMIT=200 bash tests/lm_eval.sh -m MODEL      the harness's own tasks, which it downloads; nothing is compared
#        THERMOCLINE=PROGRAM measures another program than target/debug/thermocline
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
HARNESS=0.4.13
tools=$PWD/target/tools/lm_eval
program=${THERMOCLINE:-target/debug/thermocline}

if [[ $("$tools/bin/pip" show lm_eval 2>/dev/null | sed -n 's/^Version: //p') != "$HARNESS" ]]; then
  mkdir -p "${tools%/*}"
  python3 -m venv --clear "$tools" && "$tools/bin/pip" install --quiet "lm_eval[api]==$HARNESS" \
    || { echo "tests/lm_eval.sh: the harness could not be fetched" >&2; exit 1; }
fi
[[ ${1:-} == --fetch ]] && exit 0
[[ -x $program ]] || cargo build --workspace --bin thermocline --locked || exit 1

work=$(mktemp -d)
server=
stop() {
  [[ -n $server ]] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
  rm -rf "$work"
}
trap stop EXIT
# In the background, a server's caches of the user's are not used.
HOME=$work "$program" serve --port 0 --quiet --no-counts "$@" >"$work/serve.log" 2>&1 &
server=$!
for ((i = 0; i < 600; i++)); do
  url=$(grep -oE 'http://[0-9.:]+' "$work/serve.log" | head -1)
  [[ -n $url ]] && break
  kill -0 "$server" 2>/dev/null || { cat "$work/serve.log"; exit 1; }
  sleep 0.1
done
[[ -n ${url:-} ]] || { cat "$work/serve.log"; echo "tests/lm_eval.sh: the server does not begin" >&2; exit 1; }

own=${TASKS:+no}
[[ -n $own ]] || export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
export HF_HOME=$work/hf NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost
# The data files of the tasks are named from here.
"$tools/bin/lm_eval" run --model local-completions \
  --model_args "model=any,base_url=$url/v1/completions,tokenizer_backend=remote,max_length=${MAX_LENGTH:-512}" \
  --tasks "${TASKS:-stories_choice,stories_end}" --include_path tests/lm_eval --batch_size 4 --seed 1234 \
  ${LIMIT:+--limit "$LIMIT"} --output_path "$work/out" --log_samples >"$work/lm_eval.log" 2>&1 \
  || { tail -n 40 "$work/lm_eval.log"; exit 1; }
grep '^|' "$work/lm_eval.log"
[[ -n $own ]] || "$tools/bin/python" tests/lm_eval/check.py "$work/out" "$(realpath "$program")" "$@"
