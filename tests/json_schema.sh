#!/usr/bin/env bash
# The share of the JSON-Schema-Test-Suite's schemas that `thermocline serve` accepts as `response_format`, and of answers that follow them,
# with the built-in model. The suite is in the sources of PyPI's `jsonschema`, which also judges; both are fetched, once, into target/tools.
# Needs python3 with venv. Usage: bash tests/json_schema.sh [DRAFT]      DRAFT: draft2020-12 (default), draft2019-09, draft7 ...
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
SUITE=4.25.1
tools=$PWD/target/tools/json_schema
program=${THERMOCLINE:-target/debug/thermocline}

if [[ ! -d $tools/suite ]]; then
  mkdir -p "$tools"
  python3 -m venv --clear "$tools/venv" && "$tools/venv/bin/pip" install --quiet "jsonschema==$SUITE" \
    && "$tools/venv/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$tools/sources" "jsonschema==$SUITE" \
    && mkdir "$tools/suite.part" \
    && tar -xzf "$tools"/sources/jsonschema-*.tar.gz -C "$tools/suite.part" --strip-components=2 "jsonschema-$SUITE/json/tests" \
    && mv "$tools/suite.part" "$tools/suite" || { echo "tests/json_schema.sh: the suite could not be fetched" >&2; exit 1; }
fi
[[ -x $program ]] || cargo build --workspace --bin thermocline --locked || exit 1

work=$(mktemp -d)
server=
stop() {
  [[ -n $server ]] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
  rm -rf "$work"
}
trap stop EXIT
HOME=$work "$program" serve --port 0 --quiet --no-counts >"$work/serve.log" 2>&1 &
server=$!
for ((i = 0; i < 600; i++)); do
  url=$(grep -oE 'http://[0-9.:]+' "$work/serve.log" | head -1)
  [[ -n $url ]] && break
  kill -0 "$server" 2>/dev/null || { cat "$work/serve.log"; exit 1; }
  sleep 0.1
done
[[ -n ${url:-} ]] || { cat "$work/serve.log"; echo "tests/json_schema.sh: the server does not begin" >&2; exit 1; }
"$tools/venv/bin/python" tests/json_schema.py "$url" "$tools/suite/tests/${1:-draft2020-12}"
