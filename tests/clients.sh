#!/usr/bin/env bash
# Holds `thermocline serve` against the official clients of its protocols, pinned: openai (Python and Node), anthropic, ollama, litellm
# and langchain-openai, with the built-in model: streams, tools, JSON schemas, log probabilities, embeddings, errors. Also chats with three
# pictures, with a restart of the server after the first, and documents that cohere ranks. Prints a table.
# They are fetched from PyPI and npm, once, into target/tools. Needs python3 with venv, node and npm.
# Usage: bash tests/clients.sh [--fetch]      --fetch: only fetches them; fails where the registries cannot be reached
#        THERMOCLINE=PROGRAM holds another program than target/debug/thermocline against them
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
tools=$PWD/target/tools
program=${THERMOCLINE:-target/debug/thermocline}

# venv NAME REQUIREMENTS: an environment with these packages, made anew when they change.
venv() {
  local folder=$tools/$1 wanted=tests/clients/$2
  cmp -s "$wanted" "$folder/requirements.txt" && return
  rm -rf "$folder"
  python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --only-binary :all: -r "$wanted" \
    && cp "$wanted" "$folder/requirements.txt"
}

fetch() {
  mkdir -p "$tools"
  venv clients requirements.txt && venv litellm requirements-litellm.txt || return 1
  local folder=$tools/clients-node
  if ! cmp -s tests/clients/package.json "$folder/package.json"; then
    rm -rf "$folder"
    mkdir -p "$folder"
    cp tests/clients/package.json "$folder/part.json"
    (cd "$folder" && mv part.json package.json && npm install --silent --no-audit --no-fund --ignore-scripts) || {
      rm -rf "$folder"
      return 1
    }
  fi
}

fetch || { echo "tests/clients.sh: the clients could not be fetched" >&2; exit 1; }
[[ ${1:-} == --fetch ]] && exit 0
[[ -x $program ]] || cargo build --workspace --bin thermocline --locked || exit 1

work=$(mktemp -d)
server=
stop() {
  [[ -n $server ]] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
  server=
}
trap 'stop; rm -rf "$work"' EXIT

# serve [MODEL]: starts the server in place of the one that runs, and sets THERMOCLINE_URL.
serve() {
  stop
  # The loop below must not read the address of the server before.
  : >"$work/serve.log"
  HOME=$work "$program" serve "$@" --port 0 --quiet --no-counts >>"$work/serve.log" 2>&1 &
  server=$!
  local url=
  for ((i = 0; i < 600; i++)); do
    url=$(grep -oE 'http://[0-9.:]+' "$work/serve.log" | head -1)
    [[ -n $url ]] && break
    kill -0 "$server" 2>/dev/null || { cat "$work/serve.log"; exit 1; }
    sleep 0.1
  done
  [[ -n $url ]] || { cat "$work/serve.log"; echo "tests/clients.sh: the server does not begin" >&2; exit 1; }
  export THERMOCLINE_URL=$url
}

# Nothing but the server is asked, and no key of the user's is used.
serve
THERMOCLINE=$(realpath "$program")
export THERMOCLINE OPENAI_API_KEY=none ANTHROPIC_API_KEY=none
export LITELLM_LOCAL_MODEL_COST_MAP=True NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost
for client in openai anthropic ollama langchain; do
  "$tools/clients/bin/python" "tests/clients/${client}_client.py"
done | tee "$work/table"
"$tools/litellm/bin/python" tests/clients/litellm_client.py | tee -a "$work/table"
cp tests/clients/openai_client.mjs "$tools/clients-node/"
node "$tools/clients-node/openai_client.mjs" | tee -a "$work/table"

"$tools/clients/bin/python" tests/clients/eyes.py "$work/models"
for stage in 1 2; do
  serve "$work/models"
  "$tools/clients/bin/python" tests/clients/pictures_client.py "$stage" "$work/chats.json" | tee -a "$work/table"
done
"$tools/clients/bin/python" tests/clients/cohere_client.py | tee -a "$work/table"

passed=$(grep -c ' ok$' "$work/table")
failed=$(grep -c ' FAILED' "$work/table")
echo "$passed passed, $failed failed"
# A client that could not even begin has no line.
((failed == 0)) && for name in openai-python anthropic ollama langchain-openai litellm openai-node 'three pictures' cohere; do
  grep -q "^$name " "$work/table" || { echo "$name: nothing was checked"; exit 1; }
done
