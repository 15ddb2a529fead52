#!/bin/bash
# Runs a libFuzzer target for a while on a scratch copy of its corpus, so that
# what it finds on the way does not end up in the repository:
#
#     tools/run-fuzzer.sh TARGET SECONDS CORPUS SCRATCH
#
# A dictionary CORPUS.dict is used when there is one. An input that crashes the
# target stays in SCRATCH.
set -euo pipefail

target=$1 seconds=$2 corpus=$3 scratch=$4

if [[ -z $(ls -A "$corpus" 2>/dev/null) ]]; then
  echo "the corpus $corpus is missing or empty" >&2
  exit 66
fi
rm -rf "$scratch"
mkdir -p "$scratch"
cp -R "$corpus" "$scratch/corpus"

options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
  -artifact_prefix="$scratch/")
[[ -e $corpus.dict ]] && options+=(-dict="$corpus.dict")

# First every input of the corpus, then new ones.
status=0
"$target" "${options[@]}" "$scratch/corpus" >"$scratch/log" 2>&1 || status=$?
tail -n 60 "$scratch/log"
if [[ $status -ne 0 ]]; then
  echo "$target failed with status $status; the input that did it is in $scratch"
fi
exit "$status"
