#!/usr/bin/env bash
# Training on one GPU beside PyTorch: tokens per second of GPT-2 124M and 350M, small microbatches,
# ranks that share the GPU, partitions, and losses after 200 steps. Takes minutes. Needs PyTorch
# with CUDA in $PYTHON (default python3).
#
#     bench/train/train_on_gpu.sh [WEFT [TEXT]]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
weft=${1:-$here/../../build/weft}
text=${2:-$here/../../docs/benchmarks.md}
python=${PYTHON:-python3}

"$weft" bench train --device cuda --model gpt2-124m
"$python" "$here/gpt2_in_pytorch.py" 12 768 12 32 1024 1 eager compile
"$weft" bench train --device cuda --model gpt2-350m
"$python" "$here/gpt2_in_pytorch.py" 24 1024 16 32 1024 1 eager compile
"$python" "$here/gpt2_in_pytorch.py" 12 768 12 32 1024 32 eager
"$python" "$here/gpt2_losses_in_pytorch.py" "$weft" "$text"
