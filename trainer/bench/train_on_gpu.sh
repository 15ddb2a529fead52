#!/usr/bin/env bash
# Training on one GPU beside PyTorch, in turns: tokens per second of GPT-2 124M and 350M, small
# microbatches, ranks that share the GPU, partitions, and losses after 200 steps, each as a ratio with
# its target. Needs PyTorch with CUDA in $PYTHON (default python3).
#
#     trainer/bench/train_on_gpu.sh [WEFT [TEXT]]
#
# TEXT is for the losses; default: all of Weft's sources and documents, two megabytes or more, so that
# 200 steps do not learn it by heart.
# Takes at most $LIMIT seconds (default 470). Figures are printed as they come, and all ratios again at
# the end. Each part has a time limit. The others go on when one fails, and the status is then 1.
# DRY=1: tiny models, to try the script. Without a GPU WEFT is then a script that runs weft with
# LD_LIBRARY_PATH=build/tests/fake-cublaslt:build/tests/fake-cuda, and PyTorch computes on the host.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
weft=${1:-$here/../../build/weft}
python=${PYTHON:-python3}
limit=${LIMIT:-470}
export PYTHONUNBUFFERED=1
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
text=${2:-$logs/text}
[ -n "${2:-}" ] || (cd "$here/../.." && find src trainer include docs tests -name '*.[ch]' -o -name '*.md' |
  sort | xargs cat) >"$text"
failed=0
declare -A speeds # tokens/s, of one run or of several

# Layers, width, heads, sequences, context; and of the losses.
small=(12 768 12 32 1024) large=(24 1024 16 32 1024) losses=()
export VOCABULARY=50304
if [ -n "${DRY:-}" ]; then
  VOCABULARY=512 small=(6 32 1 8 16) large=(7 32 1 8 16)
  export OMP_NUM_THREADS=1
  losses=(--steps 40 --layers 2 --dim 32 --heads 2 --context 32 --batch 8 --microbatches 2)
fi

# part LOG SECONDS COMMAND...: its output is in that log, too.
part() {
  local left=$((limit - SECONDS)) status=0
  : >"$logs/$1"
  echo "== $SECONDS s: ${*:3}"
  if [ "$left" -lt 5 ]; then
    echo "left out: the $limit s are over"
    failed=1
    return 1
  fi
  timeout --kill-after=5 "$(($2 < left ? $2 : left))" "${@:3}" 2>&1 | tee "$logs/$1" || status=$?
  [ "$status" -eq 0 ] || { echo "status $status: ${*:3}"; failed=1; }
  return "$status"
}

# shape LAYERS WIDTH HEADS BATCH CONTEXT
shape() {
  echo "--model gpt2-124m --vocabulary $VOCABULARY --layers $1 --dim $2 --heads $3 --batch $4 --context $5"
}

# weft_one NAME SHAPE...: one rank with one microbatch; the mean of all steps but three.
weft_one() {
  local words
  read -ra words <<<"$(shape "${@:2}")"
  part "weft-$1" 60 "$weft" train --synthetic "${words[@]}" -m 1 --ranks 1 --steps 13 --lr 0.0003 --eval-every 100 \
    --json --device cuda >"$logs/out" || { cat "$logs/out"; return; }
  head -n 1 "$logs/out"
  local speed
  speed=$("$python" -c 'import json, sys
steps = [line["tokens_per_s"] for line in map(json.loads, filter(lambda text: text[0] == "{", sys.stdin)) if line.get("step", 0) > 3]
print(round(len(steps) / sum(1 / speed for speed in steps)))' <"$logs/weft-$1") || { failed=1; return; }
  echo "weft, $1: $speed tokens/s"
  speeds[weft-$1]+=" $speed"
}

# torch_of NAME SECONDS MICROBATCHES MODES SHAPE...
torch_of() {
  local mode speed modes
  read -ra modes <<<"$4"
  part "torch-$1" "$2" "$python" "$here/gpt2_in_pytorch.py" "${@:5}" "$3" "${modes[@]}"
  for mode in "${modes[@]}"; do
    speed=$(sed -n "s/^torch $mode: .* \([0-9,]*\) tokens\/s$/\1/p" "$logs/torch-$1" 2>/dev/null | tr -d ,)
    [ -z "$speed" ] || speeds[$mode-$1]+=" $speed"
  done
}

# ratio WHAT NAME OTHER TARGET: of the means of two speeds.
ratio() {
  if [ -z "${speeds[$2]:-}" ] || [ -z "${speeds[$3]:-}" ]; then
    echo "$1: not measured (target: $4 or more)" | tee -a "$logs/ratios"
    failed=1
    return
  fi
  awk -v what="$1" -v a="${speeds[$2]}" -v b="${speeds[$3]}" -v target="$4" '
    function mean(text, n, k, sum, of) { n = split(text, of, " "); for (k = 1; k <= n; k++) sum += of[k]; return sum / n }
    BEGIN { printf "%s: %.3f, %d against %d tokens/s (target: %s or more)\n", what, mean(a) / mean(b), mean(a), mean(b), target }' |
    tee -a "$logs/ratios"
}

weft_one 350m "${large[@]}"
torch_of 350m 200 1 "compile eager" "${large[@]}"
weft_one 350m "${large[@]}"
ratio "GPT-2 350M against torch.compile" weft-350m compile-350m 1.05
read -ra words <<<"$(shape "${small[@]}")"
part bench 150 "$weft" bench train --device cuda "${words[@]}"
grep "(target: " "$logs/bench" >>"$logs/ratios"
speeds[weft-small]=$(awk '$1 == "small_microbatches" { print $NF }' "$logs/bench")
torch_of small 60 "${small[3]}" eager "${small[@]}"
ratio "124M, microbatches of one sequence, against torch eager" weft-small eager-small 2
part losses 120 "$python" "$here/gpt2_losses_in_pytorch.py" "$weft" "$text" ${losses[@]+"${losses[@]}"}
grep "(target: " "$logs/losses" >>"$logs/ratios"
weft_one 124m "${small[@]}"
torch_of 124m 150 1 "compile eager" "${small[@]}"
weft_one 124m "${small[@]}"
ratio "GPT-2 124M against torch.compile" weft-124m compile-124m 1.05
echo "== $SECONDS s: all ratios"
cat "$logs/ratios"
exit $failed
