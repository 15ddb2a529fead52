#!/usr/bin/env bash
# Training on one GPU beside PyTorch, in turns: tokens per second of GPT-2 124M and 350M, small
# microbatches, ranks that share the GPU, partitions, and losses after 200 steps. Takes seven
# minutes. Needs PyTorch with CUDA in $PYTHON (default python3).
#
#     bench/train/train_on_gpu.sh [WEFT [TEXT]]
#
# Each part has a time limit. The others go on when one fails, and the status is then 1.
set -u
here=$(cd "$(dirname "$0")" && pwd)
weft=${1:-$here/../../build/weft}
text=${2:-$here/../../docs/benchmarks.md}
python=${PYTHON:-python3}
failed=0

part() { # SECONDS COMMAND...
  echo "== ${*:2}"
  timeout "$@" || { echo "status $?: ${*:2}"; failed=1; }
}
one() { # MODEL: one rank with one microbatch
  part 60 "$weft" train --synthetic --model "$1" --batch 32 -m 1 --ranks 1 --steps 12 --lr 0.0003 \
    --eval-every 100 --no-sample --device cuda
}

part 150 "$weft" bench train --device cuda --model gpt2-124m
part 150 "$python" "$here/gpt2_in_pytorch.py" 12 768 12 32 1024 1 eager compile
one gpt2-124m
part 60 "$python" "$here/gpt2_in_pytorch.py" 12 768 12 32 1024 32 eager
part 120 "$python" "$here/gpt2_losses_in_pytorch.py" "$weft" "$text"
one gpt2-350m
part 200 "$python" "$here/gpt2_in_pytorch.py" 24 1024 16 32 1024 1 eager compile
one gpt2-350m
exit $failed
