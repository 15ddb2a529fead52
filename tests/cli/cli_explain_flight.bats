#!/usr/bin/env bats
# weft explain-hang on the dumps of PyTorch's flight recorder. Those in tests/flight/dumps were
# recorded by PyTorch 2.11 over NCCL: in `sleeper` and `1f1b` rank 2 slept in 2F3 in its third step,
# in `gpipe` and `ring` rank 1 in 1F3, in `skewed` rank 1 took no part after two steps. `1f1b` has
# no dump of rank 3; in `ring` only the last 60 entries were kept.
# shellcheck disable=SC2154
load ../setup/cli_setup

dumps=$WEFT_SOURCE_DIR/tests/flight/dumps

@test "a PyTorch job: the rank that sleeps, and the action it sleeps in" {
  weft explain-hang "$dumps/sleeper" --program "$dumps/sleeper/program.csv"
  succeeds
  [ "${lines[0]}" = "rank 0: waits in 4RECV_F3 for rank 3, in step 3" ]
  [ "${lines[2]}" = "rank 2: is in 2F3, in step 3" ]
  [[ $output == *$'\nculprit: rank 2\n'* ]]
  weft explain-hang "$dumps/sleeper" --program "$dumps/sleeper/program.csv" --json
  succeeds
  [ "$(jq -c '[.culprit, .cycle, .hangs, .ranks[2].action]' <<<"$output")" = '[2,[],true,"2F3"]' ]
}

@test "a PyTorch job: the rank that has not begun its step" {
  weft explain-hang "$dumps/skewed" --program "$dumps/skewed/program.csv" --json
  succeeds
  [ "$(jq -c '[.culprit, .ranks[1].state, .ranks[1].step]' <<<"$output")" = '[1,"between steps",2]' ]
}

# They start sends and receives together, in another order than a program has them.
@test "schedules with one stage per rank" {
  "$WEFT" gen 1F1B -p 4 -m 8 -o 1f1b.csv
  "$WEFT" gen GPipe -p 3 -m 6 -o gpipe.csv
  while read -r folder program culprit action; do
    weft explain-hang "$dumps/$folder" --program "$program" --json
    succeeds
    [ "$(jq -c "[.culprit, .ranks[$culprit].action]" <<<"$output")" = "[$culprit,\"$action\"]" ]
  done <<'END'
1f1b 1f1b.csv 2 2F3
gpipe gpipe.csv 1 1F3
ring 1f1b.csv 1 1F3
END
}

@test "the table does instead of the program, and any rank's dump but the culprit's may be missing" {
  "$WEFT" gen Interleaved1F1B -p 4 -v 2 -m 8 -o table.csv
  for missing in 0 1 3; do
    rm -rf job
    cp -R "$dumps/sleeper" job
    rm "job/rank$missing.pkl"
    weft explain-hang job --program table.csv --json
    succeeds
    [ "$(jq .culprit <<<"$output")" = 2 ]
    [ "$(jq -r ".ranks[$missing].state" <<<"$output")" = missing ]
  done
}

# entry NAME BATCH STATE: one of a dump, as JSON.
entry() {
  printf '{"record_id": 0, "profiling_name": "nccl:%s", "p2p_seq_id": %s, "state": "%s"}' "$@"
}

# Rank 1 sleeps in 1F0. The batch of rank 2 has the skip connection's message, and lacks rank 1's.
@test "a graph: what a batch with several peers lacks" {
  printf '%s\n' '#graph,0>1,0>2,1>2' 0F0,0F1,0B0,0B1 1F0,1F1,1B0,1B1 2F0,2F1,2B0,2B1 >skip.csv
  mkdir job
  for rank in 0 1 2; do
    case $rank in
      0) entries="$(entry 'send 0->1' 1 scheduled), $(entry 'send 0->2' 1 scheduled), $(entry coalesced 1 completed),
                  $(entry 'send 0->1' 2 scheduled), $(entry 'send 0->2' 2 scheduled), $(entry coalesced 2 scheduled)" ;;
      1) entries="$(entry 'recv 1<-0' 1 scheduled), $(entry coalesced 1 completed)" ;;
      2) entries="$(entry 'recv 2<-0' 1 scheduled), $(entry 'recv 2<-1' 1 scheduled), $(entry coalesced 1 scheduled)" ;;
    esac
    echo "{\"entries\": [$entries]}" >job/rank$rank.json
  done
  weft explain-hang job --program skip.csv
  succeeds
  [ "${lines[0]}" = "rank 0: waits in 0SEND_F1 for rank 1, in step 1" ]
  [ "${lines[1]}" = "rank 1: is in 1F0, in step 1" ]
  [ "${lines[2]}" = "rank 2: waits in 2RECV_F0 for rank 1, in step 1" ]
  [[ $output == *$'\nculprit: rank 1\n'* ]]
}

@test "a dump that ends too early counts as missing, and is named" {
  cp -R "$dumps/sleeper" job
  truncate -s 1000 job/rank0.pkl
  weft explain-hang job --program job/program.csv
  succeeds
  [[ $output == *"not read: rank0.pkl: byte "* ]]
  [[ $output == *$'\nculprit: rank 2\n'* ]]
  for file in job/rank?.pkl; do
    echo hello >"$file"
  done
  weft explain-hang job --program job/program.csv
  [ "$status" -eq 65 ]
  [[ $stderr == *"rank0.pkl: byte 0: this is no pickle"*"hint: "* ]]
}

@test "a pickle that calls code is refused" {
  mkdir job
  printf '\200\002cos\nsystem\n(X\005\000\000\000touchtR.' >job/rank0.pkl
  weft explain-hang job --program "$dumps/skewed/program.csv"
  [ "$status" -eq 65 ]
  [[ $stderr == *"byte 2: found opcode 0x63, which makes an object or calls code"* ]]
}

@test "what is missing or does not fit is said" {
  weft explain-hang "$dumps/sleeper"
  [ "$status" -eq 2 ]
  [[ $stderr == *"hint: add --program FILE"* ]]
  weft explain-hang "$dumps/sleeper/rank0.pkl" --program "$dumps/sleeper/program.csv"
  [ "$status" -eq 2 ]
  [[ $stderr == *"hint: give the folder"* ]]
  mkdir empty
  weft explain-hang empty --program "$dumps/sleeper/program.csv"
  [ "$status" -eq 66 ]
  [[ $stderr == *"no file with a number at the end of its name"* ]]
  weft explain-hang "$dumps/sleeper" --program "$dumps/skewed/program.csv"
  [ "$status" -eq 1 ]
  [[ $stderr == *"the program has 2"*"hint: "* ]]
}
