#!/usr/bin/env bats
# weft train on tokens of 16 bits, on the host and on GPUs, those of tests/device/fake_cuda: files of
# nanoGPT and llm.c, models by name, random tokens, and what is wrong with files.
# Not under sanitizers: test_gpt_* train there.
# shellcheck disable=SC2030,SC2031,SC2154
load ../../tests/setup/cli_setup

model=(--layers 2 --dim 32 --heads 2 --context 16 --batch 4 -m 2 --json --vocabulary 512)
rates=(--lr 0.001 --lr-min 0.001 --warmup 0)

# tokens FILE: 2000 of them, as nanoGPT writes them.
tokens() {
  python3 -c 'import array; array.array("H", [k * 31 % 256 + k % 2 * 256 for k in range(2000)]).tofile(open("'"$1"'", "wb"))'
}

# with_header: in front of 2000 tokens what llm.c writes there, 256 numbers of 32 bits: 20240520, 1, 2000.
with_header() {
  printf '\x88\xd8\x34\x01\x01\0\0\0\xd0\x07\0\0'
  head -c 1012 /dev/zero
  cat
}

# on_gpus WORDS: weft train with the fake driver, and nothing wrong with what it was given.
on_gpus() {
  run --separate-stderr env "LD_LIBRARY_PATH=$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    "WEFT_FAKE_CUDA=report=$PWD/report" "$WEFT" train "${model[@]}" --device cuda "$@"
  local what
  for what in races deadlocks faults early pending blocks; do
    grep -qx "$what 0" report || { echo "$(cat report) $stderr" >&2; return 1; }
  done
}

# hash_of COMMAND WORDS: the parameters' hash after it is $hash, or becomes it.
hash_of() {
  local found
  "$@"
  succeeds
  found=$(jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output")
  [ "$found" = "${hash:=$found}" ] || { echo "$*: $found instead of $hash" >&2; return 1; }
}

on_host() {
  weft train "${model[@]}" "$@"
}

last_loss() {
  jq -s 'map(select(.loss)) | last | .loss' <<<"$output"
}

@test "tokens: nanoGPT's files and llm.c's, on the host and on GPUs" {
  local hash there where
  tokens tokens.bin
  with_header <tokens.bin >llmc.bin
  for where in on_host on_gpus; do
    hash=
    hash_of $where --steps 2 --data tokens.bin
    jq -en "($(last_loss) - ${there:-$(last_loss)}) | fabs < 0.005"
    there=$(last_loss)
    hash_of $where --steps 2 --data llmc.bin --ranks 2 --schedule ZBVZeroBubble
  done
  # The host has any vocabulary, and schedules, splits and replicas as with bytes.
  hash=
  hash_of on_host --steps 2 --data tokens.bin --vocabulary 513 --dp 2 --tied --skips --layers 4 --predict-tokens 2
  hash_of on_host --steps 2 --data tokens.bin --vocabulary 513 --dp 2 --tied --skips --layers 4 --predict-tokens 2 \
    --ranks 3 --schedule ZBH1 --shard full
}

@test "tokens: a training goes on on GPUs and back" {
  local hash there
  tokens tokens.bin
  on_host --data tokens.bin "${rates[@]}" --steps 6
  succeeds
  there=$(last_loss)
  on_host --data tokens.bin "${rates[@]}" --steps 2 --checkpoint host
  succeeds
  on_gpus --data tokens.bin "${rates[@]}" --steps 4 --resume host --checkpoint gpu --ranks 2
  succeeds
  on_host --data tokens.bin "${rates[@]}" --steps 6 --resume gpu --ranks 3
  succeeds
  jq -en "($there - $(last_loss)) | fabs < 0.01"
  # From one checkpoint each comes to the same bits on any shape.
  hash=
  hash_of on_host --data tokens.bin "${rates[@]}" --steps 6 --resume gpu --ranks 1
  hash_of on_host --data tokens.bin "${rates[@]}" --steps 6 --resume gpu --ranks 2 --schedule Interleaved1F1B
}

@test "tokens: bad files, and nothing is lost" {
  local before where
  tokens tokens.bin
  on_gpus --data tokens.bin --steps 1 --checkpoint c
  succeeds
  before=$(find c -type f -exec cksum {} + | sort)
  head -c 1001 tokens.bin >odd.bin
  with_header <odd.bin >cut.bin
  for where in on_host on_gpus; do
    $where --vocabulary 264 --data tokens.bin
    fails 65 "tokens.bin: token 1 is 287; the vocabulary has 264"
    hints
    $where --data odd.bin
    fails 65 "odd.bin has 1001 bytes of tokens, an odd number"
    hints
    $where --data cut.bin
    fails 65 "cut.bin has 1001 bytes of tokens; its header says 2000 tokens of 2 bytes"
    hints
    $where --data odd.bin --resume c --checkpoint c --steps 2
    fails 65 "odd.bin has 1001 bytes"
    $where --data data.none
    fails 66 "data.none cannot be read: No such file or directory"
    head -c 100 tokens.bin >short.bin
    $where --data short.bin
    fails 2 "50 tokens: the tenth that validates has 5, expected at least 17"
    hints
    head -c 1000 tokens.bin >other.bin
    $where --data other.bin --resume c --steps 2
    fails 2 "the data is not what the checkpoint was trained on"
    hints
  done
  [ "$(find c -type f -exec cksum {} + | sort)" = "$before" ]
  on_host --data tokens.bin --resume c --steps 2
  succeeds
}

@test "tokens: models by name, and random tokens" {
  local hash small=(--layers 1 --dim 64 --heads 1 --context 16 --batch 2 -m 1 --steps 1)
  model=(--json)
  hash_of on_host --synthetic --model gpt2-124m "${small[@]}" --checkpoint c
  jq -es 'map(select(.loss)) | last.loss > 10.5 and last.loss < 11.2' <<<"$output"
  jq -e '.model.vocabulary == 50304 and .model.tied' c/*/manifest.json
  hash_of on_host --synthetic --model gpt2-124m "${small[@]}" --ranks 1
  on_gpus --synthetic --resume c --steps 2
  succeeds
  weft train --synthetic --model gpt2-350m --resume c --steps 2
  fails 2 "--model gpt2-350m is not what the checkpoint was trained with: that has 1 layers, dim 64, context 16"
  hints
  weft train --synthetic --model gpt2-124m "${small[@]}" --resume c --steps 2
  succeeds
  weft train --synthetic --data data.txt
  fails 2 "--synthetic and --data contradict each other"
  hints
}

@test "tokens: a sample takes and gives their numbers" {
  tokens tokens.bin
  on_host --data tokens.bin --steps 30 --lr 0.01 --checkpoint c --ranks 1
  succeeds
  weft sample --checkpoint c --prompt '0 287, 62' --tokens 20
  succeeds
  [[ $output =~ ^0\ 287,\ 62(\ [0-9]+){20}$ ]]
  awk '{ for (k = 1; k <= NF; k++) if ($k + 0 >= 512) exit 1 }' <<<"$output"
  awk '{ for (k = 4; k <= NF; k++) wide += $k + 0 > 255; exit wide == 0 }' <<<"$output" # not the first 256 alone
  weft sample --checkpoint c --prompt '0 512'
  fails 2 "'512' is no token of this model, whose vocabulary has 512"
  hints
  weft sample --checkpoint c --prompt 'the fox'
  fails 2 "'the' is no token of this model"
  weft sample --checkpoint c
  fails 2 "there is no prompt: the model's tokens are 512 numbers"
  hints
}
