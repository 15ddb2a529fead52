#!/usr/bin/env bats
# weft train, weft sample: tiny models, trained in a moment.
# Not under sanitizers: test_gpt_* train there.
# shellcheck disable=SC2030,SC2031,SC2154
load ../../tests/setup/cli_setup

# Some text to learn, the same every time.
text() {
  for k in $(seq 1 "${1:-120}"); do
    echo "line $k: the quick brown fox jumps over the lazy dog, $((k * 7919 % 1000)) times."
  done
}

# train WORDS: a small model on data.txt, which is made if it is not there.
train() {
  [ -e data.txt ] || text >data.txt
  weft train --data data.txt --layers 4 --dim 16 --heads 2 --context 16 --batch 8 -m 4 --steps 6 "$@"
}

hash_of() {
  jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output"
}

# hashes WORDS: the parameters' hash after such a training is $hash, or becomes it.
hashes() {
  train --json "$@"
  succeeds
  local found
  found=$(hash_of)
  [[ $found =~ ^[0-9a-f]{16}$ ]]
  : "${hash:=$found}"
  if [ "$found" != "$hash" ]; then
    echo "$*: $found instead of $hash" >&2
    return 1
  fi
}

@test "train says what it does, how it goes, and what came of it" {
  train
  succeeds
  [[ $output == "model     4 blocks, 16 wide, 2 heads, context 16; "*" parameters"* ]]
  [[ $output == *"pipeline  2 ranks, 2 stages, 1F1B, 4 microbatches of 2 sequences, threads"* ]]
  [[ $output == *"stages    embedding, block"*"| block"*"head"* ]]
  [[ $output == *"step 1/6  loss "*"step 6/6  loss "*"validation "*"tokens/s"* ]]
  [[ $output == *"unigram baseline "*"parameters_hash  "*"Sample:"* ]]
}

@test "--json writes a line per step and a last one, and nothing else" {
  train --json --eval-every 3
  succeeds
  [ "${#lines[@]}" -eq 7 ]
  [ "$(jq -s '[.[:6][] | select(.step and .loss > 0 and .tokens_per_s > 0 and .gradient_norm > 0
         and has("rate") and has("bubble") and has("predicted_bubble"))] | length' <<<"$output")" = 6 ]
  [ "$(jq -s -c '[.[] | select(.step and .validation_loss) | .step]' <<<"$output")" = "[3,6]" ]
  [ "$(jq -s '.[6].final_loss == .[5].loss and .[6].steps == 6 and .[6].unigram_entropy > 1' \
    <<<"$output")" = true ]
  [ "$(jq -s -r '.[6] | "\(.ranks) \(.stages) \(.schedule) \(.transport)"' <<<"$output")" = \
    "2 2 1F1B threads" ]
}

@test "it learns" {
  train --json --steps 150 --lr 1e-2 --dim 32
  succeeds
  [ "$(jq -s '.[-1] | .final_loss < .unigram_entropy and .validation_loss < .unigram_entropy' \
    <<<"$output")" = true ]
}

@test "the parameters are the same for every number of ranks, schedule, split and transport" {
  hashes -p 1
  hashes -p 2
  hashes -p 3 --transport loopback
  hashes -p 2 --transport loopback --schedule ZBH1
  for schedule in GPipe 1F1B ZBH1 Interleaved1F1B ZBVZeroBubble; do
    hashes -p 2 --schedule $schedule
  done
  hashes -p 2 --split even
  hashes -p 2 --split 0,4
  hashes -p 2 --split 3,1
  hashes -p 2 -v 3 --schedule interleaved-1f1b
  "$WEFT" gen ZBH1 -p 3 -m 4 >table.csv
  "$WEFT" lower table.csv >program.csv
  hashes --schedule table.csv
  hashes --schedule program.csv -p 3 -m 4
  train --json --seed 2
  [ "$(hash_of)" != "$hash" ]
  train --json --microbatches 2
  [ "$(hash_of)" != "$hash" ]
}

@test "tied weights likewise, and they are others" {
  hashes
  local untied=$hash
  hash=
  hashes --tied -p 1
  hashes --tied -p 2 --schedule ZBH1
  hashes --tied -p 3 --transport loopback
  [ "$hash" != "$untied" ]
}

@test "a resumed training ends where an uninterrupted one does, on other ranks too" {
  hashes --steps 9 --checkpoint whole
  train --steps 9 --checkpoint half --checkpoint-every 4 --checkpoint-keep 0
  succeeds
  [ -e half/step-00000004/manifest.json ]
  for words in '-p 2' '-p 1' '-p 3 --schedule ZBH1' '--transport loopback' '--split 1,3'; do
    # shellcheck disable=SC2086
    weft train --data data.txt --json --resume half/step-00000004 $words
    succeeds
    [ "$(jq -s '.[0].step' <<<"$output")" = 5 ]
    [ "$(hash_of)" = "$hash" ]
  done
}

@test "--checkpoint-keep keeps the newest checkpoints, and --log all lines of all parts of a run" {
  train --steps 7 --checkpoint c --checkpoint-every 2 --checkpoint-keep 2 --log log.jsonl
  succeeds
  [ "$(echo c/*)" = "c/step-00000006 c/step-00000007" ]
  [ "$(wc -l <log.jsonl)" -eq 8 ]
  weft train --data data.txt --resume c --steps 9 --log log.jsonl --json
  succeeds
  [ "$(jq -c 'select(.step) | .step' log.jsonl | tr '\n' ' ')" = "1 2 3 4 5 6 7 8 9 " ]
}

@test "nothing left to train is no error, and says the same hash" {
  hashes --checkpoint c
  weft train --data data.txt --resume c --json
  succeeds
  [ "${#lines[@]}" -eq 1 ]
  [ "$(hash_of)" = "$hash" ]
  weft train --data data.txt --resume c --steps 5
  fails 2 "--steps 5 is over already: the checkpoint has 6"
  hints
}

@test "what contradicts a checkpoint is refused, with both values" {
  train --checkpoint c
  succeeds
  for pair in 'layers 5 4' 'dim 32 16' 'heads 4 2' 'context 8 16' 'batch 4 8' 'microbatches 2 4' \
    'seed 9 1'; do
    read -r name given has <<<"$pair"
    weft train --data data.txt --resume c "--$name" "$given"
    fails 2 "--$name $given is not what the checkpoint in 'c' was trained with: that is $has"
    hints
  done
  weft train --data data.txt --resume c --tied
  fails 2 "--tied is not what"
  text 121 >other.txt
  weft train --data other.txt --resume c
  fails 2 "the data is not what the checkpoint was trained on"
  hints
  weft train --data data.txt --resume c --steps 8 --layers 4 --seed 1 --lr 0.01 --json
  succeeds
}

@test "a folder has the checkpoints of one training" {
  hashes --checkpoint c
  hashes --checkpoint c -p 1
  train --checkpoint c --seed 2
  fails 2 "in 'c' there is a checkpoint of another training, after step 6 of 6"
  hints
  train --checkpoint c --steps 9
  fails 2 "another training"
  mv c "c 'd"
  train --checkpoint "c 'd" --steps 9
  [[ $stderr == *"hint: --resume 'c '\\''d' continues that training; "* ]] # a word of a shell
  mv "c 'd" c
  weft train --data data.txt --resume c --checkpoint c --steps 9 --json
  succeeds
}

# One rank's thread writes the log, so what is in it has been trained.
wait_for_lines() { # FILE COUNT
  await 30 "$2 lines in $1" has_lines "$@"
}
has_lines() {
  [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]
}

@test "SIGTERM ends the step, writes a checkpoint, and --resume goes on as if nothing was" {
  text >data.txt
  local words=(--data data.txt --layers 4 --dim 32 --heads 2 --context 32 --batch 8 -m 4
    --steps 300 --eval-every 0)
  "$WEFT" train "${words[@]}" --json >whole.jsonl
  for signal in TERM:143 INT:130 HUP:129; do
    local expected=${signal#*:}
    signal=${signal%:*}
    # A shell has what it runs in the background ignore SIGINT.
    env --default-signal=INT,HUP "$WEFT" train "${words[@]}" --checkpoint "c$signal" --log log.jsonl --json \
      >out.jsonl 2>err 3>&- &
    local pid=$!
    wait_for_lines log.jsonl 20
    kill "-$signal" $pid
    await_end 60 $pid "the training"
    [ "$status" -eq "$expected" ]
    has "stopped by SIG$signal after step [0-9]* of 300; a checkpoint is written" err
    has "weft train --resume c$signal" err
    [ "$(tail -n 1 out.jsonl | jq -r .stopped_by)" = "SIG$signal" ]
    rm log.jsonl
    weft train --data data.txt --resume "c$signal" -p 1 --json
    succeeds
    [ "$(hash_of)" = "$(tail -n 1 whole.jsonl | jq -r .parameters_hash)" ]
    [ "$(jq -c 'select(.step)' out.jsonl | wc -l)" -lt 300 ]
  done
}

@test "a signal while inputs are read ends the process at once" {
  text >data.txt
  mkfifo slow
  for option in --schedule --split; do
    "$WEFT" train --data data.txt --layers 2 --dim 32 --heads 2 --context 32 --steps 2 "$option" slow \
      >out 2>err 3>&- &
    local pid=$!
    exec 4>slow # both ends are open: it reads
    kill -TERM $pid
    await_end 20 $pid "the command that reads its $option"
    exec 4>&-
    [ "$status" -eq 143 ]
  done
}

@test "a machine that allows no further thread gets a sentence" {
  text >data.txt
  [ "$(id -u)" -eq 0 ] || skip "needs root, for a user without processes"
  setpriv --reuid=54321 --clear-groups test -x "$WEFT" || skip "other users cannot run what was built here"
  chmod 755 . && chmod 644 data.txt
  # shellcheck disable=SC2016
  run --separate-stderr setpriv --reuid=54321 --clear-groups bash -c 'ulimit -u 1
    exec "$1" train --data data.txt --layers 2 --dim 32 --heads 2 --context 32 --steps 2' - "$WEFT"
  [ "$status" -eq 70 ]
  [[ $stderr = *"cannot start a thread for rank 1 of 2"* ]]
}

@test "without --checkpoint a signal says that nothing was saved" {
  text >data.txt
  "$WEFT" train --data data.txt --layers 2 --dim 32 --heads 2 --context 32 --steps 100000 \
    --log log.jsonl --json >out 2>err 3>&- &
  local pid=$!
  wait_for_lines log.jsonl 3
  kill -TERM $pid
  await_end 60 $pid "the training"
  [ "$status" -eq 143 ]
  has "nothing was saved" err
  has "hint: --checkpoint DIR" err
}

@test "a folder of checkpoints is locked: a second training names the first, until that is gone" {
  text >data.txt
  "$WEFT" train --data data.txt --layers 2 --dim 32 --heads 2 --context 32 --steps 100000 \
    --checkpoint c --checkpoint-every 20 --json >out 2>err 3>&- &
  local pid=$!
  await 60 "the first checkpoint" compgen -G 'c/step-*/manifest.json'
  for words in "" "--resume c"; do
    # shellcheck disable=SC2086
    weft train --data data.txt --layers 2 --dim 32 --heads 2 --context 32 --steps 100000 \
      --checkpoint c $words
    fails 2 "another training writes its checkpoints into 'c': process $pid on $(hostname) since 2"
    hints
  done
  kill -KILL $pid
  await_end 60 $pid "the killed training"
  [ -e c/.weft-lock ]
  local step
  step=$(printf '%s\n' c/step-*/manifest.json | tail -n 1 | tr -dc 0-9)
  weft train --data data.txt --resume c --checkpoint c --steps $((10#$step + 2)) --json
  succeeds
  [ ! -e c/.weft-lock ]
}

@test "a stage that never returns is named after the stall limit, and nothing is left" {
  text >data.txt
  stuck_library 2000 # the fourth step
  for words in "-p 1" "-p 2" "-p 1 --dp 2 --shard full" "-p 2 --transport loopback"; do
    rm -rf c
    # shellcheck disable=SC2086
    LD_PRELOAD=$PWD/stuck.so timeout --kill-after=5 60 "$WEFT" train --data data.txt --layers 2 --dim 16 --heads 2 \
      --context 16 --batch 8 -m 4 --steps 1000 --stall-limit 0.3 --checkpoint c \
      --checkpoint-every 1 --dump hang.json --json $words >out 2>err 3>&- &
    local pid=$!
    await_end 60 $pid "the training with $words"
    [ "$status" -eq 75 ]
    grep -qE '^weft: rank [0-9] has (been in 0F[0-3] \(stage 0, microbatch [0-3]\) for [0-9]\.|waited .* for rank [0-9], which is in 0F[0-3] )' err
    has "hint: look at " err
    jq -e .schema hang.json
    [ ! -e c/.weft-lock ]
    "$WEFT" sample --checkpoint c --tokens 1 >/dev/null # what was saved before is whole
    [ "$(jq -s '.[-1].step' out)" = "$(printf '%s\n' c/step-* | tail -n 1 | tr -dc 1-9)" ]
  done
}

@test "--profile is read by sim and compare" {
  train --profile costs.json --schedule ZBH1
  succeeds
  [ "$(jq -r '.schema, .unit, (.stages | length)' costs.json | tr '\n' ' ')" = "weft-costs/1 ms 2 " ]
  "$WEFT" gen ZBH1 -p 2 -m 4 >table.csv
  weft sim table.csv --costs costs.json --json
  succeeds
  [ "$(jq '.makespan > 0 and .bubble_ratio > 0 and .bubble_ratio < 1' <<<"$output")" = true ]
  weft compare -p 2 -m 4 --costs costs.json
  succeeds
  weft plan --ranks 2 --global-batch 16 --costs costs.json --effort 0.02 --json
  succeeds
  [ "$(jq '.microbatch_size * .candidates[0].microbatches * .candidates[0].replicas' <<<"$output")" = 16 ]
}

# splits EXPECTED WORDS: blocks of each stage, and the same parameters as ever.
splits() {
  local expected=$1
  shift
  hashes "$@"
  [ "$(jq -c 'select(.split) | .split' <<<"$output")" = "$expected" ]
}

# parts NUMBER...: costs of a model whose parts take so long in all.
parts() {
  printf '%s\n' "$@" | jq -s '{schema: "weft-costs/1", stages: [{}],
    parts: map({f: (. / 4), i: (. / 4), w: (. / 2)})}'
}

@test "--split by given numbers and by measured times, with the same parameters" {
  splits "[3,1]"
  splits "[3,1]" --split even
  splits "[1,3]" --split 1,3
  parts 4 1 1 1 1 0 >embedding.json
  splits "[0,4]" --split embedding.json
  parts 0 1 1 1 1 8 >head.json
  splits "[4,0]" --split head.json
  splits "[2,2,0]" --split - -p 3 --transport loopback <head.json
  parts 0 1 9 1 1 0 >block.json
  splits "[1,1,2]" --split ./block.json -p 3 --schedule ZBH1
  train --split block.json -p 3 --steps 2
  succeeds
  [[ $output == *"stages    embedding, block 0 | block 1 | blocks 2-3, head; by the times in block.json"* ]]
  train --split 3,1 --steps 2
  [[ $output == *"stages    embedding, blocks 0-2 | block 3, head; as given"* ]]
}

@test "--split takes what --profile wrote, for another number of stages, and when resumed" {
  hashes --profile costs.json --split 1,3 --checkpoint c --checkpoint-every 3 --checkpoint-keep 0
  [ "$(jq '.parts | length, (map(select(.f > 0 and .w > 0)) | length), .[0].i' costs.json |
    tr '\n' ' ')" = "6 6 0 " ]
  hashes --split costs.json
  hashes --split costs.json -p 2 -v 2 --schedule Interleaved1F1B
  weft train --data data.txt --json --resume c/step-00000003 --split costs.json -p 3
  succeeds
  [ "$(hash_of)" = "$hash" ]
}

@test "a split that cannot be is refused, with the status for it" {
  train --split 1,2
  fails 2 "the 2 stages have 3 blocks; the model has 4"
  train --split 1,2,1
  fails 2 "--split '1,2,1' has 3 numbers, and there are 2 stages"
  train --split 2,0,2 -p 3
  fails 2 "stage 1 has no block"
  train --split odd
  fails 2 "'odd' is not a list of numbers" "even"
  hints
  train --split nowhere.json
  fails 66 nowhere.json
  hints
  parts 1 1 1 1 1 >short.json
  train --split short.json
  fails 2 "'short.json' was not measured with such a model: it has times of 5 parts" "are 6"
  hints
  jq 'del(.parts)' short.json >stages.json
  train --split stages.json
  fails 65 "'stages.json' has no times of the model's parts"
  hints
  jq -c '.parts[3].w = -1' short.json >negative.json
  train --split negative.json
  fails 65 "negative.json:1:" "parts[3].w: expected a number"
  echo '{' >cut.json
  train --split cut.json
  fails 65 "cut.json:"
  "$WEFT" gen 1F1B -p 2 -m 4 >table.csv
  train --split - --schedule - <table.csv
  fails 2 "standard input can be read only once"
}

@test "-o draws the last step" {
  train -o timeline.html
  succeeds
  [[ $output == *"timeline         timeline.html"* ]]
  has "measured on threads" timeline.html
  has "1F1B on 2 ranks, predicted" timeline.html
  has "step [0-9]*, the last; memory in MiB" timeline.html
  has "from the mean times of .*[0-9] steps" timeline.html
  train -o trace.json
  succeeds
  [ "$(jq '.traceEvents | length > 10' trace.json)" = true ]
  [[ $output != *"What it writes"* ]]
  train -o timeline.txt
  fails 2 "has an unknown ending" ".html"
}

@test "what a training needs is said, with the status for it" {
  text >data.txt
  weft train
  fails 2 "--data FILE is needed"
  hints
  weft train --data nowhere.txt
  fails 66 nowhere.txt
  printf tiny >tiny.txt
  weft train --data tiny.txt
  fails 2 ""
  train --dim 17
  fails 2 "heads is 2; expected a divisor"
  train --batch 10
  fails 2 "a batch of 10 sequences" "4"
  train -p 9
  fails 2 ""
  train --schedule 1F1C
  fails 2 "1F1B"
  train --schedule ForwardOnly
  fails 2 "no backward"
  train --schedule nowhere.csv
  fails 66 nowhere.csv
  "$WEFT" gen 1F1B -p 2 -m 4 >table.csv
  train --schedule table.csv -p 3
  fails 2 "--ranks 3 does not fit 'table.csv': that has 2"
  train --schedule table.csv -m 8
  fails 2 "--microbatches 8 does not fit 'table.csv': that has 4"
  hang_table >hang.csv
  train --schedule hang.csv -m 2
  fails 1 "deadlock"
  "$WEFT" gen ForwardOnly -p 2 -m 4 >forward.csv
  train --schedule forward.csv
  fails 1 "no backward"
  for split in 1 1,2 1,2,1 2,x 2,,2 "2,"; do
    train --split "$split"
    fails 2 ""
  done
  train --lr 1e
  fails 2 "3e-4"
  train --lr -1
  fails 2 negative
}

@test "options without an effect are refused" {
  train --checkpoint-every 3
  fails 2 "--checkpoint-every has no effect"
  train --checkpoint-keep 3
  fails 2 "--checkpoint-keep has no effect"
  train --steps 1 --profile costs.json
  fails 2 "warm-up"
  train --transport loopback --profile costs.json
  fails 2 "--profile is not possible on loopback"
  train --transport loopback -o x.html
  fails 2 "--output is not possible on loopback"
}

@test "replicas: the same parameters however they are shared out, and on any transport" {
  hash=
  for words in '--shard none' '--shard grads' '--shard full' '-p 1 --shard full' \
    '-p 2 --shard full --transport loopback' '-p 2 --schedule ZBH1'; do
    # shellcheck disable=SC2086
    hashes --dp 2 -m 2 $words
  done
  train --dp 2 -m 2
  succeeds
  [[ $output == *"2 microbatches of 2 sequences, threads"*"replicas  2, unsharded"* ]]
  train --dp 2 -m 2 --json --shard grads
  succeeds
  [ "$(jq -s -r '.[-1] | "\(.ranks) \(.replicas) \(.shard)"' <<<"$output")" = "2 2 grads" ]
}

@test "replicas: what cannot be" {
  train --dp 3
  fails 2 "8 sequences cannot be divided among 3 replicas"
  train --dp 2 -m 3
  fails 2 "4 sequences of each replica cannot be cut into 3"
  # shellcheck disable=SC2089
  for words in "pp 2:'--ranks' now" "placement v:is a V" "window 2:three stages" "threads-per-rank 2:more ranks" \
    "partitions 2:share a GPU" "progress calls:see to messages" "prompt x:'weft sample --prompt'" \
    "no-sample:--json" "curve c.svg:--log FILE" "no-graph:'--eager' now"; do
    # shellcheck disable=SC2086,SC2090
    train --${words%%:*}
    fails 2 "unknown option '--" "${words#*:}"
  done
}

@test "a checkpoint of two replicas goes on with one, and back" {
  train --dp 2 -m 2 --shard full --checkpoint a --steps 3
  succeeds
  train --resume a -m 2 --steps 6 --json -p 1
  succeeds
  train --resume a --steps 6 --json --dp 4 -m 1 -p 3 --shard grads
  succeeds
  train --steps 3 --checkpoint b
  succeeds
  train --resume b --dp 2 -m 1 --shard full --steps 6
  succeeds
  train --resume b -m 1 --steps 6
  fails 2 "--microbatches 1 is not what the checkpoint"
}

@test "operands are data too, and folders will do" {
  mkdir folder
  text 60 >folder/a.txt
  text 50 >folder/b.md
  text >data.txt
  weft train --layers 1 --dim 8 --heads 1 --steps 2 --json folder data.txt
  succeeds
  local both
  both=$(hash_of)
  weft train --layers 1 --dim 8 --heads 1 --steps 2 --json --data folder --data data.txt
  [ "$(hash_of)" = "$both" ]
}

@test "Weft's own sources are the default in their folder" {
  cd "$WEFT_SOURCE_DIR"
  weft train --layers 1 --dim 8 --heads 1 --steps 1
  succeeds
  [[ $output == *"data      "???????" bytes"* ]]
}

@test "checkpoints that are missing or damaged: 66 and 65" {
  text >data.txt
  weft train --data data.txt --resume data.txt
  fails 66 "data.txt" "a checkpoint is a folder"
  weft sample --checkpoint data.txt
  fails 66 "data.txt" "a checkpoint is a folder"
  weft train --data data.txt --resume nowhere
  fails 66 nowhere
  weft sample --checkpoint nowhere
  fails 66 nowhere
  weft sample
  fails 2 "--checkpoint DIR"
  train --checkpoint c
  cp -r c d
  echo '{' >d/*/manifest.json
  weft train --data data.txt --resume d
  fails 65 manifest.json
  weft sample --checkpoint d
  fails 65 manifest.json
  local part
  part=$(echo c/*/part-0001.safetensors)
  printf X | dd of="$part" bs=1 seek=900 conv=notrunc status=none
  weft train --data data.txt --resume c
  fails 65 part-0001.safetensors
  weft sample --checkpoint c
  fails 65 part-0001.safetensors
}

@test "a process that may open too few files for a checkpoint ends with 74, and says so" {
  text >data.txt
  # shellcheck disable=SC2016
  run --separate-stderr bash -c 'ulimit -n 5; exec "$0" train data.txt --layers 1 --dim 16 --heads 2 \
    --context 16 --steps 1 --checkpoint c' "$WEFT" 3>&- 4>&-
  [ "$status" -eq 74 ]
  [[ $stderr == "weft: cannot create 'c/"*"Too many open files"*"hint: this process may open too few files: raise 'ulimit -n'" ]]
}

@test "a full disk ends with 74" {
  text >data.txt
  weft train --data data.txt --steps 2 --layers 1 --dim 8 --heads 1 --json --log /dev/full
  [ "$status" -eq 74 ]
  [[ $stderr == *"/dev/full"*"No space left"* ]]
  weft train --data data.txt --steps 2 --layers 1 --dim 8 --heads 1 --json --log nowhere/log
  fails 74 nowhere/log
  for written in '--checkpoint c' '--log long.jsonl --steps 99'; do
    # shellcheck disable=SC2086
    run --separate-stderr bash -c "ulimit -f 4; exec \"\$@\"" - "$WEFT" train --data data.txt \
      --steps 2 --layers 1 --dim 16 --heads 1 --context 16 $written
    [ "$status" -eq 74 ]
    [[ $stderr == "weft: "*"File too large"* ]]
  done
  # Other layers' files were written; they are no use.
  [ "$(ls -A c)" = "" ]
  weft sample --checkpoint c
  fails 66 c
}

@test "places that cannot be written are found before the training" {
  for words in '--checkpoint no/where' '--profile no/p.json' '-o no/t.html' \
    '--log no/log'; do
    # shellcheck disable=SC2086
    train $words
    fails 74 "No such file or directory"
    hints
  done
  touch file
  train --checkpoint file
  fails 74 "Not a directory"
}

@test "a reader that goes away ends the training with 74" {
  text >data.txt
  run bash -c '"$@" | head -n 1 >/dev/null; echo "${PIPESTATUS[0]}"' - "$WEFT" train \
    --data data.txt --layers 1 --dim 8 --heads 1 --steps 1000000 --json
  [ "$output" = 74 ]
}

@test "a rank that does not come ends all with 75, and explain-hang reads the dump" {
  train --dim 64 --context 64 --batch 32 --split 4,0 --stall-limit 0.0001 --dump hang.json
  [ "$status" -eq 75 ]
  [[ $stderr == *"what all ranks were doing is in 'hang.json'"* ]]
  weft explain-hang hang.json
  succeeds
  [[ $output == *"verdict: "* ]]
}

@test "sample is the same for the same seed, and goes on with the prompt" {
  train --steps 60 --lr 0.01 --checkpoint c
  succeeds
  weft sample --checkpoint c --prompt 'line ' --tokens 40
  succeeds
  [[ $output == "line "* ]]
  local first=$output
  weft sample --checkpoint c --prompt 'line ' --tokens 40 --seed 1
  [ "$output" = "$first" ]
  weft sample --checkpoint c --prompt 'line ' --tokens 40 --seed 2
  [ "$output" != "$first" ]
  weft sample --checkpoint c --prompt 'line ' --tokens 40 --temperature 0 --seed 1 -o a.txt
  succeeds
  weft sample --checkpoint c --prompt 'line ' --tokens 40 --top-k 1 --seed 2 -o b.txt
  cmp a.txt b.txt
  [ "$(wc -c <a.txt)" -eq 46 ]
  weft sample --checkpoint c --prompt 'line ' --tokens 40 --json
  succeeds
  [ "$(jq -r '.prompt, .step' <<<"$output" | tr '\n' ' ')" = "line  60 " ]
  weft sample --checkpoint c --tokens 0
  succeeds
}

# Parameters grow a millionfold per step.
diverging=(--lr 1000 --clip 0 --weight-decay 1000 --warmup 0 --steps 8)

@test "a training that diverges ends with status 1, a null loss and the last finite checkpoint" {
  train "${diverging[@]}" --json --checkpoint c --checkpoint-every 1
  [ "$status" -eq 1 ]
  [[ $stderr == "weft: training has diverged at step "*" of 8: "*"--resume c"*"step 1"* ]]
  hints
  [ "$(jq -s -c '.[-1] | [.final_loss, .validation_loss, .stopped_by, .steps < 8]' <<<"$output")" = \
    '[null,null,"divergence",true]' ]
  [ "$(echo c/*)" = c/step-00000001 ]
  weft sample --checkpoint c --tokens 5
  succeeds
}

@test "--on-divergence skip skips alike on all ranks; continue says so, and writes no such checkpoint" {
  train "${diverging[@]}" --json --on-divergence skip -p 1
  [ "$status" -eq 0 ]
  [[ $stderr == "weft: step 2 has loss "*"it does not change parameters"* ]]
  [ "$(jq -s -c '[.[] | .skipped // false]' <<<"$output")" = \
    '[false,true,true,true,true,true,true,true,false]' ]
  [ "$(jq -s '.[-1].skipped_steps' <<<"$output")" = 7 ]
  local hash
  hash=$(hash_of)
  for words in '-p 2' '-p 2 --schedule ZBVZeroBubble' '-p 3 --transport loopback'; do
    # shellcheck disable=SC2086
    train "${diverging[@]}" --json --on-divergence skip $words
    [ "$status" -eq 0 ]
    [ "$(hash_of)" = "$hash" ]
  done
  train "${diverging[@]}" --on-divergence continue --checkpoint c --checkpoint-every 1
  [ "$status" -eq 0 ]
  [[ $stderr == *"no checkpoint is written from step "*"training continues"* ]]
  [[ $output == *"loss             nan nats"*"validation       nan on"* ]]
  [ "$(echo c/*)" = c/step-00000001 ]
}
