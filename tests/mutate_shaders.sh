#!/usr/bin/env bash
# Breaks every kernel in one place, in memory, as tests/mutations.tsv says, and sees that its numeric test fails and that the self-test
# of a device finds it. Takes some minutes; not part of tests/run.sh. Usage: bash tests/mutate_shaders.sh [KERNEL...]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# The test program, as cargo names it.
program=$(cargo test --workspace --locked --no-run --test kernels 2>&1 | sed -n 's/.*(\(target[^)]*\)).*/\1/p')
[[ -x $program ]] || { echo "mutate_shaders.sh: the tests of the kernels do not build"; exit 1; }

survived=0 noticed=0
while IFS=$'\t' read -r kernel from to; do
  [[ $kernel == \#* || -z $kernel ]] && continue
  (($#)) && [[ " $* " != *" $kernel "* ]] && continue
  said=$(MUTATION="$kernel"$'\t'"$from"$'\t'"$to" timeout 300 "$program" --exact "$kernel" --nocapture 2>&1 </dev/null)
  status=$?
  if ! grep -q "^mutated $kernel: [1-9]" <<<"$said"; then
    echo "$kernel: \"$from\" is not in its text, or the test does not run it"; survived=$((survived + 1))
  elif grep -q 'does not compile' <<<"$said"; then
    echo "$kernel: with \"$to\" it does not compile"; survived=$((survived + 1))
  elif ((status == 0)); then
    echo "$kernel: nothing notices \"$to\""; survived=$((survived + 1))
  else
    echo "$kernel: noticed"; noticed=$((noticed + 1))
  fi
done <tests/mutations.tsv
# Every kernel has a line, but those with cooperative matrices, which the tests' driver lacks.
if ! (($#)); then
  for file in shaders/src/ops/*/*.wgsl; do
    kernel=$(basename "$file" .wgsl)
    case $kernel in gemm_coop | gemm_coop_8) continue ;; esac
    grep -q "^$kernel"$'\t' tests/mutations.tsv || { echo "$kernel: no line in tests/mutations.tsv"; survived=$((survived + 1)); }
  done
fi
# The same kernels, as a driver that computes them wrongly would.
if ! (($#)); then
  cargo test --workspace --locked --quiet --lib -- --ignored every_broken_kernel_is_found || survived=$((survived + 1))
fi
echo "$noticed noticed, $survived not"
((survived == 0))
