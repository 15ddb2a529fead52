#!/usr/bin/env bats
# weft train --device cuda, on the driver and the cublasLt without a GPU of tests/device/fake_cuda.
# Not under sanitizers: test_gpt_cuda trains as it does.
# shellcheck disable=SC2030,SC2031,SC2154
load ../../../tests/setup/cli_setup

model=(--layers 2 --dim 32 --heads 2 --context 16 --batch 4 -m 2 --json)

text() {
  for k in $(seq 1 60); do
    echo "line $k: the quick brown fox jumps over the lazy dog, $((k * 7919 % 1000)) times."
  done
}

# train WORDS: on the host.
train() {
  [ -e data.txt ] || text >data.txt
  weft train --data data.txt "${model[@]}" "$@"
}

# on_gpus WORDS: the same with the fake driver, and nothing wrong with what it was given.
on_gpus() {
  [ -e data.txt ] || text >data.txt
  run --separate-stderr env "LD_LIBRARY_PATH=$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    "WEFT_FAKE_CUDA=report=$PWD/report" "$WEFT" train "${model[@]}" --device cuda "$@"
  local what
  for what in races deadlocks faults early pending blocks; do
    grep -qx "$what 0" report || { echo "$(cat report) $stderr" >&2; return 1; }
  done
}

last_loss() {
  jq -s 'map(select(.loss)) | last | .loss' <<<"$output"
}

@test "train on GPUs, and go on on the host and back" {
  on_gpus --data data.txt --steps 2 --checkpoint gpu
  succeeds
  # The same steps on the host: the same loss but for roundings.
  local there
  there=$(last_loss)
  train --steps 2 --checkpoint host
  succeeds
  jq -en "($there - $(last_loss)) | fabs < 0.005"
  # A run begun on one continues on the other.
  train --steps 4 --resume gpu
  succeeds
  there=$(last_loss)
  on_gpus --data data.txt --steps 4 --resume host --ranks 2
  succeeds
  jq -en "($there - $(last_loss)) | fabs < 0.01"
}

@test "train on GPUs: steps that cannot be recorded are enqueued, and the reason is printed" {
  text >data.txt
  run --separate-stderr env "LD_LIBRARY_PATH=$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    "WEFT_FAKE_CUDA=fail=cuStreamBeginCapture:1" \
    "$WEFT" train "${model[@]}" --device cuda --data data.txt --steps 3 --eval-every 0
  [ "$status" -eq 0 ]
  [[ $stderr == "weft: step 2 was enqueued action by action: it cannot be recorded as a CUDA graph: cuStreamBeginCapture failed"* ]]
  [ "$(wc -l <<<"$stderr")" -eq 1 ]
  [ "$(jq -c 'select(.loss) | has("no_graph")' <<<"$output" | tr '\n' ' ')" = "false true true " ]
}

@test "train on GPUs: a stopped run continues with the same bits" {
  local hash common=(--data data.txt --lr 0.001 --lr-min 0.001 --warmup 0)
  on_gpus "${common[@]}" --steps 4
  succeeds
  hash=$(jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output")
  on_gpus "${common[@]}" --steps 2 --checkpoint c
  succeeds
  on_gpus "${common[@]}" --steps 4 --resume c --ranks 2 --schedule ZBH1
  succeeds
  jq -e --arg hash "$hash" 'select(.parameters_hash) | .parameters_hash == $hash' <<<"$output"
}

@test "train on GPUs: replicas, sharded or not, come to the same bits; a checkpoint is gathered from shards" {
  local hash
  on_gpus --data data.txt --steps 2 --dp 2 -m 2
  succeeds
  hash=$(jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output")
  on_gpus --data data.txt --steps 2 --dp 2 -m 2 --shard full --ranks 2 --checkpoint sharded
  succeeds
  jq -e --arg hash "$hash" 'select(.parameters_hash) | .parameters_hash == $hash' <<<"$output"
  train --steps 3 --resume sharded
  succeeds
}

@test "train on GPUs: --schedule auto plans from the GPU's times, and does not change the bits" {
  local hash small=(--data data.txt --layers 6 --dim 16 --heads 1 --context 8 --batch 8 -m 8 --ranks 4 --steps 12 --eval-every 100)
  on_gpus "${small[@]}" --schedule 1F1B
  succeeds
  hash=$(jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output")
  on_gpus "${small[@]}" --schedule auto
  succeeds
  jq -e --arg hash "$hash" 'select(.parameters_hash) | .parameters_hash == $hash' <<<"$output"
  jq -es 'any(.[]; .tuning.before == "1F1B" and .tuning.memory_limit > 0)' <<<"$output"
}

@test "train on GPUs: layers are measured, for --split and --schedule auto" {
  local hash small=(--data data.txt --layers 6 --dim 16 --heads 1 --context 8 --batch 4 -m 4 --eval-every 100)
  on_gpus "${small[@]}" --ranks 2 --steps 3 --profile costs.json
  succeeds
  # Embedding, blocks and head; together they take as long as the stages.
  jq -e 'def near($a; $b): ($a - $b) | fabs < 1e-6;
         (.parts | length == 8 and all(.f > 0 and .w > 0) and all(.[1:][]; .i > 0)) and
         near([.parts[].f] | add; [.stages[].f] | add) and
         near([.parts[] | .i + .w] | add; [.stages[].b] | add)' costs.json
  on_gpus "${small[@]}" --ranks 3 --steps 2 --split costs.json
  succeeds
  # A trial chooses the split; the bits are those of any other.
  on_gpus "${small[@]}" --ranks 2 --steps 20
  succeeds
  hash=$(jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output")
  on_gpus "${small[@]}" --ranks 2 --steps 20 --schedule auto
  succeeds
  jq -e --arg hash "$hash" 'select(.parameters_hash) | .parameters_hash == $hash' <<<"$output"
}

both_losses() {
  jq -s 'map(select(.loss)) | last | [.loss, .second_loss]' <<<"$output"
}

# hash_of WORDS: the parameters' hash after such a training on GPUs is $hash, or becomes it.
hash_of() {
  local found
  on_gpus --data data.txt "$@"
  succeeds
  found=$(jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output")
  [ "$found" = "${hash:=$found}" ] || { echo "$*: $found instead of $hash" >&2; return 1; }
}

@test "train on GPUs: skips and a second head, on the host, back, and on another shape" {
  local hash there common=(--layers 4 --skips --predict-tokens 2 --lr 0.001 --lr-min 0.001 --warmup 0)
  hash_of "${common[@]}" --steps 4 --profile costs.json
  jq -e '.parts | length == 7 and all(.f > 0 and .w > 0)' costs.json
  there=$(both_losses)
  train "${common[@]}" --steps 4
  succeeds
  both_losses | jq -e --argjson there "$there" '[.[0] - $there[0], .[1] - $there[1]] | all(fabs < 0.01)'
  # Stopped, and continued with other stages: the bits of a training that was not.
  on_gpus --data data.txt "${common[@]}" --steps 2 --checkpoint gpu --ranks 2 --schedule ZBVZeroBubble
  succeeds
  hash_of "${common[@]}" --steps 4 --resume gpu --ranks 4 --split 2,2,0,0 --eager
  hash_of "${common[@]}" --steps 4 --resume gpu --ranks 2 --schedule auto
  # From GPUs to the host, and from the host to GPUs.
  train "${common[@]}" --steps 3 --resume gpu --ranks 3 --split 4,0,0 --checkpoint host
  succeeds
  on_gpus --data data.txt "${common[@]}" --steps 4 --resume host --ranks 2
  succeeds
  both_losses | jq -e --argjson there "$there" '[.[0] - $there[0], .[1] - $there[1]] | all(fabs < 0.01)'
  # Replicas, which come to bits of their own.
  hash=
  hash_of "${common[@]}" --steps 2 --dp 2 --tied
  hash_of "${common[@]}" --steps 2 --dp 2 --tied --shard full --ranks 2 --schedule ZBH1
}

@test "bench train on GPUs checks the answer and measures tokens per second" {
  run --separate-stderr env "LD_LIBRARY_PATH=$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    "$WEFT" bench train --device cuda --layers 6 --dim 16 --heads 1 --context 4 --vocabulary 256 --batch 8 --json
  succeeds
  jq -e '.schema == "weft-bench-train-gpu/1" and .checked and .loss_error < 0.002 and .model.layers == 6 and
         ([.cases[].name] == ["one", "small_microbatches", "eight_microbatches", "ranks_share", "partitions",
                              "partitions_zero_bubble"]) and
         (.cases | all(.tokens_per_s > 0 and .step_ms > 0 and .simulated_pipeline_ms > 0 and .steps_measured == 8)) and
         .ranks_share > 0 and .zero_bubble_gain > 0 and .simulated_gain > 0' <<<"$output"
  weft bench train --heads 4
  fails 2 "--heads has no effect"
  hints
  weft bench run --device cuda
  fails 2 "--device has no effect"
  hints
  weft bench train --device cuda --batch 12
  fails 2 "--batch 12 is not a multiple of the 8 microbatches"
  hints
}

@test "train on GPUs: what it cannot do" {
  on_gpus --data data.txt --heads 4
  fails 2 "heads of 8 channels: the GPU's kernels have no such width"
  hints
  on_gpus --synthetic --vocabulary 257
  fails 2 "a vocabulary of 257 is not a multiple of 8"
  hints
  on_gpus --data data.txt --layers 1 --dim 16 --heads 1 --context 4 --batch 65536 -m 1
  fails 2 "microbatches of 65536 sequences and 1 heads: the GPU's kernels take at most 65535 of each"
  hints
}

@test "train on GPUs: an old GPU, and the cublasLt of the driver's version" {
  text >data.txt
  export LD_LIBRARY_PATH=$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  WEFT_FAKE_CUDA=capability=75 weft train --data data.txt "${model[@]}" --device cuda
  fails 69 "it has compute capability 7.5, and the trainer's kernels need 8.0"
  hints
  # Files of other names are other versions, and version 13 does not start on a driver for 12.
  mkdir own
  cp "$FAKE_CUDA/libnvrtc.so.13" own/libnvrtc.so.12
  export LD_LIBRARY_PATH=$PWD/own:$LD_LIBRARY_PATH
  WEFT_FAKE_CUDA=version=12040 weft train --data data.txt "${model[@]}" --device cuda --steps 1
  fails 69 "the driver, for CUDA 12, does not run cublasLt 13"
  hints
  cp "$FAKE_CUBLASLT/libcublasLt.so.13" own/libcublasLt.so.12
  WEFT_FAKE_CUDA=version=12040 weft train --data data.txt "${model[@]}" --device cuda --steps 1
  succeeds
}

# The first kernel never ends, so that all are launched and none of this large batch is computed.
@test "train on GPUs: sequences times heads may be more than a grid has in y" {
  text >data.txt
  run --separate-stderr env "LD_LIBRARY_PATH=$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    WEFT_FAKE_CUDA=hang=weft_gpt_embed:1 "$WEFT" train --data data.txt --device cuda --layers 1 \
    --dim 128 --heads 8 --context 4 --batch 8192 -m 1 --ranks 1 --steps 1 \
    --eval-every 100 --stall-limit 0.3
  [ "$status" -eq 75 ] || { echo "$stderr"; false; }
}

@test "train on GPUs: a timeline, a sample and an evaluation, as on the host" {
  local words=(--steps 4 --eval-every 2 --ranks 2 --schedule ZBH1)
  [ -e data.txt ] || text >data.txt
  model=("${model[@]/--json/--tied}")
  on_gpus --data data.txt "${words[@]}" -o timeline.html --checkpoint c
  succeeds
  [[ $output == *"validation "*"Sample:"* ]]
  grep -q "measured on cuda" timeline.html
  # The sample is what the checkpoint says, on the host.
  local drawn=${output##*Sample:}
  weft sample --checkpoint c --tokens 200 --json
  succeeds
  [[ $drawn == *"$(jq -r '.text[:20]' <<<"$output" | head -n 1)"* ]]
  on_gpus --data data.txt "${words[@]}" -o trace.json --eager
  succeeds
  jq -e '.traceEvents | length > 10' trace.json
}

@test "train on GPUs: a kernel that does not end is named, and so is one that fails" {
  text >data.txt
  local on=(env "LD_LIBRARY_PATH=$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
  run --separate-stderr "${on[@]}" WEFT_FAKE_CUDA=hang=weft_gpt_cross_entropy:1 \
    "$WEFT" train "${model[@]}" --data data.txt --device cuda --ranks 2 --stall-limit 0.5
  [ "$status" -eq 75 ]
  [[ $stderr == *"look at rank 1's stage 1: GPU 0 has not ended its forward"* ]]
  run --separate-stderr "${on[@]}" WEFT_FAKE_CUDA=fail=cuLaunchKernel:30 \
    "$WEFT" train "${model[@]}" --data data.txt --device cuda --ranks 2
  [ "$status" -ne 0 ]
  [[ $stderr == *"cuLaunchKernel failed"* ]]
}

@test "train: GPT-2's shapes by name" {
  local words
  for words in "124m 768" "350m 1024" "774m 1280"; do
    weft train --synthetic --model "gpt2-${words% *}" --heads 7
    fails 2 "${words#* }"
  done
}

@test "train without a driver, and without cublasLt, says what to install" {
  [ ! -e /dev/nvidiactl ] || skip "there is one"
  text >data.txt
  weft train --data data.txt --device cuda
  fails 69 "there is no CUDA driver here"
  hints
  run --separate-stderr env "LD_LIBRARY_PATH=$FAKE_CUDA" "$WEFT" train --data data.txt --device cuda
  fails 69 "there is no libcublasLt here"
  hints
}

@test "train on GPUs: attention by Hopper's matrix instructions where heads and tokens allow it" {
  on_gpus --synthetic --dim 64 --heads 1 --context 64 --steps 1 --eval-every 100
  succeeds
  jq -es 'last.attention == "wgmma"' <<<"$output"
  on_gpus --synthetic --dim 64 --heads 1 --context 48 --steps 1 --eval-every 100
  succeeds
  jq -es 'last.attention == "mma"' <<<"$output"
  weft train --synthetic "${model[@]}" --steps 1
  succeeds
  jq -es 'last | has("attention") | not' <<<"$output"
}

@test "the kernels' own source, emulated on the host, computes attention, norms and cross entropy" {
  local name
  for name in emulated_attention emulated_layers; do
    g++ -std=c++17 -O1 -Wno-unknown-pragmas -I "$WEFT_SOURCE_DIR"/trainer/cuda -o "$name" \
      "$WEFT_SOURCE_DIR/trainer/tests/cuda/$name.cpp"
    ./"$name"
  done
}

@test "nvcc compiles the kernels, and none that GPT-2 needs on Hopper spills" {
  command -v nvcc >/dev/null || skip "there is no nvcc"
  local folder=$WEFT_SOURCE_DIR/trainer/cuda target
  cat "$folder"/gpt_{layers,optimizer,attention,attention_hopper}.cu >k.cu
  for target in 80 90a; do # the last is the one that is looked at
    nvcc -gencode="arch=compute_$target,code=sm_$target" -cubin -Xptxas -v -Werror all-warnings \
      -o k.cubin k.cu 2>log || { cat log; false; }
  done
  # Attention without wgmma has few registers left: next to nothing.
  awk '/Function properties/ { name = $NF; most = name ~ /_64$/ ? 48 : name ~ /_(16|32|128)$/ ? 1000 : 0 }
       /bytes spill/ { if ($5 + $9 > most) { print name ": " $0; bad = 1 } count++ }
       END { exit bad || count < 34 }' log
  # Products of warpgroups that wait for each other would be no faster than the others.
  run grep -i "wgmma.*serialized" log
  [ "$status" -eq 1 ]
  # Sums have one order.
  cat "$WEFT_SOURCE_DIR"/{src/device/cuda/kernels,bench/linear/linear_kernels}.cu >other.cu
  run grep -E "atomic[A-Z]|\bred\.|\batom\." k.cu other.cu
  [ "$status" -eq 1 ]
  nvcc -gencode=arch=compute_90a,code=sm_90a -cubin -Xptxas -v -Werror all-warnings -o k.cubin \
    other.cu 2>log || { cat log; false; }
  awk '/bytes spill/ { bad += $5 + $9; count++ } END { exit bad || count < 14 }' log
}
