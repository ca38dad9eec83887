#!/usr/bin/env bash
# Holds the tokenizer against published vocabularies, which are not part of the repository. A missing file fails.
# Usage: bash tests/extras.sh FOLDER    FOLDER: has ggml-vocab-NAME.gguf, .gguf.inp and .gguf.out of llama-spm, phi-3, llama-bpe,
#                                       gpt-2, falcon and qwen2, as in the folder `models` of llama.cpp
set -euo pipefail
folder=$(realpath -e "${1:?usage: bash tests/extras.sh FOLDER}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

THERMOCLINE_VOCABULARIES=$folder cargo test --workspace --locked --test vocabularies -- --ignored
