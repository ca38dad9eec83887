#!/usr/bin/env bash
# Manual pages and completions of a program, as Linux packages have them: FOLDER/man1/*.1.gz, FOLDER/bash, FOLDER/zsh, FOLDER/fish.
# Usage: bash packaging/linux/manual.sh PROGRAM FOLDER     FOLDER: target/manual, from which app/Cargo.toml takes them
set -euo pipefail
program=$(realpath "${1:?usage: manual.sh PROGRAM FOLDER}") folder=${2:?usage: manual.sh PROGRAM FOLDER}
rm -rf "$folder"
mkdir -p "$folder/man1" "$folder/bash" "$folder/zsh" "$folder/fish"
"$program" man --out "$folder/man1"
# Without the time, so that the same program always has the same pages.
gzip -9 --no-name "$folder"/man1/*.1
"$program" completions bash >"$folder/bash/thermocline"
"$program" completions zsh >"$folder/zsh/_thermocline"
"$program" completions fish >"$folder/fish/thermocline.fish"
