#!/usr/bin/env bats
# weft train --schedule auto: schedules that change between two steps, results that do not.
# When it changes them, from times that are made up, is test_gpt_autotune.c's.
# Not under sanitizers: test_gpt_* train there.
# shellcheck disable=SC2030,SC2031,SC2154
load ../../tests/setup/cli_setup

# train WORDS: a small model, cut unequally.
train() {
  [ -e data.txt ] || seq 1 2000 >data.txt
  weft train --data data.txt --layers 5 --dim 16 --heads 2 --context 16 --batch 16 -m 8 \
    --split 3,1,1 -p 3 --eval-every 100 --steps 8 "$@"
}

last() {
  jq -s -r ".[-1] | $1" <<<"$output"
}

@test "auto: another schedule, the same bits, and what it gained" {
  train --json
  succeeds
  hash=$(last .parameters_hash)
  [ "$(last 'has("replanned")')" = false ]
  train --json --schedule auto
  succeeds
  [ "${#lines[@]}" -eq 9 ]
  [ "$(last .parameters_hash)" = "$hash" ]
  [ "$(last '.replanned == 1 and .returned <= .switched and .switched <= 1')" = true ]
  [ "$(last '[has("gain", "promised_gain", "before_ms", "promised_ms", "after_ms")] | all')" = true ]
  # Four steps, then the plan is told with the first step that runs it.
  jq -s -e '[.[:4][].schedule] == ["1F1B", "1F1B", "1F1B", "1F1B"]
            and (.[:4] | all(has("tuning") | not)) and .[4].tuning.step == 4' <<<"$output" >/dev/null
  jq -s -e '.[4].tuning as $t | if .[-1].switched == 0 then $t.news == "stayed"
            else $t.news == "tries" and $t.before == "1F1B" and $t.promised_gain > 0.01
                 and $t.promised_ms < $t.before_ms and .[4].schedule == $t.schedule
                 and $t.memory > 0 and $t.memory < $t.memory_limit end' <<<"$output" >/dev/null
}

@test "auto says it in words" {
  train --schedule auto
  succeeds
  [[ $output == *"3 stages, auto from 1F1B, 8 microbatches"* ]]
  [[ $output == *$'\n'"schedule after step 4: "*$'\nstep 5/8'* ]]
  [[ $output == *$'\n'"schedule         "*", after 1 plan"* ]]
}

@test "auto: on loopback, with replicas, on every placement" {
  for words in "-v 1" "-v 2 --split even" "-v 3 --layers 9 --split even" \
    "--dp 2 -m 4" "--dp 2 -m 4 --shard full --tied"; do
    # shellcheck disable=SC2086
    train --json --transport loopback --schedule auto $words
    succeeds
    hash=$(last .parameters_hash)
    [ "$(last .replanned)" = 1 ]
    # shellcheck disable=SC2086
    train --json $words --schedule "$(jq -s -r '.[0].schedule' <<<"$output")"
    succeeds
    if [ "$(last .parameters_hash)" != "$hash" ]; then
      echo "$words: other parameters" >&2
      return 1
    fi
  done
}

@test "auto: checkpoints know nothing of it" {
  train --json
  hash=$(last .parameters_hash)
  train --json --schedule auto --steps 8 --checkpoint a --checkpoint-every 6
  succeeds
  [ "$(last .parameters_hash)" = "$hash" ]
  weft train --data data.txt --resume a/step-00000006 --json --schedule auto -p 2 --eval-every 100
  succeeds
  [ "$(last '"\(.parameters_hash) \(.replanned)"')" = "$hash 0" ] # two steps are too few
}

@test "auto: too little memory is refused, with what is needed" {
  train --schedule auto --memory 0.01
  fails 1 "no schedule fits into 0.01 MiB" "rank 0 needs "
  hints
  least=$(sed -n 's/.* needs \([0-9.]*\) MiB.*/\1/p' <<<"$stderr")
  train --json --schedule auto --memory "$(jq -n "$least * 1.001")"
  succeeds
  [ "$(last ".memory_bytes < 3 * 1048576 * $least * 1.001")" = true ]
  train --schedule auto --memory 0
  fails 2 "--memory is 0"
}

@test "auto: options without an effect are refused" {
  train --memory 100
  fails 2 "--memory has no effect without --schedule auto"
}

@test "auto: a bad split is replaced by a planned one, with the same bits" {
  # Wide enough that a core which is taken away for a moment does not decide what was measured.
  bad=(--layers 8 --dim 32 --context 32 -p 2 --split "7,1" --steps 20)
  train --json "${bad[@]}"
  succeeds
  hash=$(last .parameters_hash)
  for transport in threads loopback; do
    # A few steps are measured: on a busy machine their times may promise nothing, whatever the split.
    for _ in {1..5}; do
      train --json "${bad[@]}" --schedule auto --transport "$transport"
      succeeds
      [ "$(last .parameters_hash)" = "$hash" ]
      [ "$(last '(.split | add) == 8 and .steps == 20')" = true ]
      [ "${#lines[@]}" -eq 21 ]
      planned=$(last '(.split | max) < 7 and .split_gain > 0.03')
      [ "$planned" = true ] && break
    done
    [ "$planned" = true ]
  done
  for _ in {1..5}; do
    train "${bad[@]}" --schedule auto
    succeeds
    [[ $output != *"; planned from measured times"* ]] || break
  done
  [[ $output == *$'\n'"stages    "*"; planned from measured times, promises "*" % less than 7,1"$'\n'* ]]
  train --json "${bad[@]}" --schedule auto --keep-partition
  succeeds
  [ "$(last '.split == [7, 1] and .split_gain == 0')" = true ]
  train "${bad[@]}" --keep-partition
  fails 2 "--keep-partition has no effect without --schedule auto"
}
