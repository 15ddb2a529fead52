#!/usr/bin/env bats
# weft train with --skips and --predict-tokens 2: models whose stages form a graph. The bits are
# compared with layers called one after the other in test_gpt_graph.c.
# Not under sanitizers: test_gpt_* train there.
# shellcheck disable=SC2030,SC2031,SC2154
load ../../tests/setup/cli_setup

text() {
  for k in $(seq 1 120); do
    echo "line $k: the quick brown fox jumps over the lazy dog, $((k * 7919 % 1000)) times."
  done
}

# train WORDS: a small model on data.txt, which is made if it is not there.
train() {
  [ -e data.txt ] || text >data.txt
  weft train --data data.txt --layers 6 --dim 16 --heads 2 --context 16 --batch 8 -m 4 --steps 6 \
    "$@"
}

# hashes WORDS: the parameters' hash after such a training is $hash, or becomes it.
hashes() {
  train --json "$@"
  succeeds
  local found
  found=$(jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output")
  [[ $found =~ ^[0-9a-f]{16}$ ]]
  : "${hash:=$found}"
  if [ "$found" != "$hash" ]; then
    echo "$*: $found instead of $hash" >&2
    return 1
  fi
}

@test "graph: train says what it is, and what came of both heads" {
  train --skips --predict-tokens 2 -p 4 --split 3,3,0,0
  succeeds
  [[ $output == *"graph     2 skips, a second head of weight 0.3, 3 edges between stages"* ]]
  [[ $output == *"stages    embedding, blocks 0-2 | blocks 3-5 | head | second head"* ]]
  [[ $output == *"second head      "*" for the byte after it"*"Sample:"* ]]
  train --skips --predict-tokens 2 -p 4 --split 3,3,0,0 -o train.html
  succeeds
  has '"stageNames":\["embedding, blocks 0-2","blocks 3-5","head","second head"\]' train.html
  train --predict-tokens 2 --json
  succeeds
  [ "$(jq -s '[.[:6][] | select(.second_loss > 1)] | length' <<<"$output")" = 6 ]
  [ "$(jq -s '.[6].second_loss == .[5].second_loss' <<<"$output")" = true ]
  train --json
  [ "$(jq -s '[.[] | select(has("second_loss") or has("graph"))] | length' <<<"$output")" = 0 ]
}

@test "graph: the same parameters for every number of ranks, schedule, split and transport" {
  local graph=(--skips --predict-tokens 2)
  hashes "${graph[@]}" -p 1
  hashes "${graph[@]}" -p 3 --transport loopback
  hashes "${graph[@]}" -p 2 --schedule ZBVZeroBubble
  hashes "${graph[@]}" -p 4 --schedule ZBH1 --split 0,3,3,0
  hashes "${graph[@]}" -p 2 --schedule Interleaved1F1B --split 4,2,0,0
  "$WEFT" gen GPipe -p 4 -m 4 >table.csv
  hashes "${graph[@]}" --schedule table.csv
  local both=$hash
  hash=
  hashes --skips
  [ "$hash" != "$both" ]
}

@test "graph: the graph of the stages, for a plan from measured costs" {
  hashes --skips --predict-tokens 2 -p 4 --split 3,3,0,0 --profile costs.json
  jq 'select(.graph) | .graph' <<<"$output" >graph.json
  [ "$(jq -c '[.stages[3], (.edges[] | "\(.from)>\(.to)")]' graph.json)" = \
    '["second head","0>1","1>2","1>3"]' ]
  "$WEFT" plan --graph graph.json --costs costs.json --keep-partition -p 4 -m 4 --no-split \
    --threads 1 -o plan.csv >/dev/null
  hashes --skips --predict-tokens 2 --split 3,3,0,0 --schedule plan.csv
}

@test "graph: it learns" {
  train --skips --predict-tokens 2 --json --steps 150 --lr 1e-2 --dim 32
  succeeds
  [ "$(jq -s '.[-1] | .final_loss < .unigram_entropy and .validation_loss < .unigram_entropy
         and .second_loss < .unigram_entropy and .second_loss > .final_loss' <<<"$output")" = true ]
}

@test "graph: a checkpoint continues on another shape, samples, and keeps its model" {
  hashes --skips --predict-tokens 2
  train --skips --predict-tokens 2 -p 4 --split 3,3,0,0 --checkpoint c --checkpoint-every 3 \
    --checkpoint-keep 0
  succeeds
  grep -q '"skips": true' c/step-00000003/manifest.json
  grep -q '"predict_tokens": 2' c/step-00000003/manifest.json
  grep -aq '"mtp.lm_head.weight"' c/step-00000003/part-0008.safetensors
  weft train --data data.txt --resume c/step-00000003 -p 2 --schedule ZBVZeroBubble --json
  succeeds
  [[ $output == *"\"parameters_hash\":\"$hash\""* ]]
  weft sample --checkpoint c --tokens 20
  succeeds
  weft train --data data.txt --resume c --predict-tokens 1
  fails 2 "--predict-tokens 1 is not what the checkpoint in 'c' was trained with: that is 2"
  hints
  train --checkpoint plain
  succeeds
  run grep -e skips -e predict plain/step-00000006/manifest.json
  [ "$status" -eq 1 ] # as they always were
  weft train --data data.txt --resume plain --skips
  fails 2 "--skips is not what the checkpoint was trained with"
  hints
}

@test "graph: --schedule auto keeps the split and the bits; --profile is read by --split" {
  local graph=(--skips --predict-tokens 2 --steps 24)
  hashes "${graph[@]}" -p 1
  hashes "${graph[@]}" -p 3 --schedule auto --split 2,2,2
  [ "$(jq -s -c '.[-1] | [.split, .split_gain]' <<<"$output")" = "[[2,2,2],0]" ]
  hashes "${graph[@]}" -p 4 --schedule auto --transport loopback
  train --skips --predict-tokens 2 -p 3 --profile costs.json
  succeeds
  [ "$(jq '.parts | length' costs.json)" = 9 ]
  train --skips --predict-tokens 2 -p 4 --split costs.json
  succeeds
  train -p 4 --split costs.json
  fails 2 "'costs.json' was not measured with such a model: it has times of 9 parts" "are 8"
}

@test "graph: what cannot be is refused, with the reason" {
  train --layers 2 --skips
  fails 2 "2 layers have no room for skips"
  hints
  train --predict-tokens 3
  fails 2 "--predict-tokens '3' is over the limit"
  train --predict-tokens 2 --tied -p 4 --split 3,3,0,0
  fails 2 "stage 3 has the second head alone"
  hints
  train --predict-tokens 2 -p 4 --split 3,0,3,0
  fails 2 "stage 1 has no block" "the last one or both of the last two, with the heads"
  train --layers 300 --skips -p 260
  fails 2 "stage 0 would skip 257 stages to send to stage 258; the limit is 255" "fewer stages"
  "$WEFT" gen 1F1B -p 4 -m 4 | "$WEFT" lower >program.csv
  train --skips --schedule program.csv
  fails 2 "the program has the SEND and RECV of a chain of stages"
  hints
}
