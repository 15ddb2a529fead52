#!/usr/bin/env bats
# weft gen
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

@test "gen writes the table and nothing else" {
  weft gen 1F1B -p 2 -m 3
  succeeds
  [ "$output" = $'0F0,0F1,0B0,0F2,0B1,0B2,0REDUCE_GRAD\n1F0,1B0,1F1,1B1,1F2,1B2,1REDUCE_GRAD' ]
}

@test "gen takes names without regard to case, hyphens and underscores" {
  "$WEFT" gen ZBVZeroBubble -p 2 -m 4 >a
  "$WEFT" gen zbv-zero_bubble -p 2 -m 4 >b
  cmp a b
}

@test "gen takes options in every spelling and order" {
  "$WEFT" gen Interleaved1F1B -p 2 -v 2 -m 4 >expected
  for words in '-p2 -v2 -m4 Interleaved1F1B' '--ranks=2 --stages-per-rank=2 --microbatches=4 Interleaved1F1B' \
    '--ranks 2 Interleaved1F1B --stages-per-rank 2 --microbatches 4' '-p 2 -m 4 -v 2 -- Interleaved1F1B' \
    '-p 9 -p 2 -m 4 -v 2 Interleaved1F1B'; do
    # shellcheck disable=SC2086
    "$WEFT" gen $words >got
    cmp expected got
  done
}

@test "gen uses the usual number of stages without -v" {
  "$WEFT" gen DualPipeV -p 2 -m 4 >a
  "$WEFT" gen DualPipeV -p 2 -v 2 -m 4 >b
  cmp a b
}

@test "gen writes the fixed tables without -p and -m" {
  for name in VShaped Unbalanced WithW ReorderedB; do
    weft gen $name
    succeeds
    [ "${#lines[@]}" -eq 2 ]
  done
  weft gen VShaped
  [ "${lines[0]}" = 0F0,,,3F0,3B0,,,0B0 ]
  weft gen VShaped -p 3
  fails 2 "fixed table" "p = 3"
  hints
  weft gen VShaped -v 2
  fails 2 "fixed table"
}

@test "gen places ForwardOnly as asked, and nothing else" {
  weft gen ForwardOnly -p 2 -v 2 -m 2 --placement v
  succeeds
  [[ ${lines[0]} == *3F0* ]]
  weft gen ForwardOnly -p 2 -v 2 -m 2
  [[ ${lines[0]} == *2F0* ]]
  weft gen 1F1B -p 2 -m 2 --placement v
  fails 2 "placement of 1F1B"
  hints
}

names_in_list() { grep -v '^NAME\|^ \|^$\|:$' | cut -d' ' -f1; }

@test "gen --list names every schedule, its facts and its paper" {
  weft gen --list
  [[ $output == *$'\n    all forwards'* ]]
  [[ $output == *$'\n\nTables of one shape, for tests:\nVShaped '* ]]
  succeeds
  [[ ${lines[0]} == NAME*BUBBLE*PEAK*PAPER ]]
  for name in GPipe 1F1B LoopedBFS Interleaved1F1B InterleavedZeroBubble ZBVZeroBubble DualPipeV \
    ForwardOnly ZBH1 Eager1F1B VShaped Unbalanced WithW ReorderedB; do
    grep -q "^$name " <<<"$output"
  done
  grep -q '^DualPipeV .*2412.19437' <<<"$output"
}

@test "gen --list NAME: that one, by any of its names" {
  [ "$("$WEFT" gen --list --json zb-v | jq -r '.schedules[].name')" = ZBVZeroBubble ]
  [ "$("$WEFT" gen --list PipeDream-Flush | names_in_list)" = 1F1B ]
  weft gen --list --json nonsense
  fails 2 "unknown schedule 'nonsense'" "'weft gen --list' lists all"
}

@test "gen --list --json has the same schedules" {
  "$WEFT" gen --list --json >list.json
  [ "$(jq -r .schema list.json)" = weft-schedules/1 ]
  diff <(jq -r '.schedules[].name' list.json) <("$WEFT" gen --list | names_in_list)
  [ "$(jq '.schedules[] | select(.name == "DualPipeV") | .stages_per_rank_max' list.json)" = 2 ]
  [ "$(jq '.schedules[] | select(.name == "LoopedBFS") | .stages_per_rank_max' list.json)" = null ]
}

@test "every listed schedule can be generated, lowered and verified" {
  for name in $("$WEFT" gen --list --json | jq -r '.schedules[] | select(.fixed | not) | .name'); do
    "$WEFT" gen "$name" -p 3 -m 6 >table.csv
    "$WEFT" lower table.csv >program.csv 2>messages
    [ ! -s messages ]
    "$WEFT" verify table.csv >/dev/null
    "$WEFT" verify program.csv >/dev/null
  done
}

@test "gen --json is the program document" {
  "$WEFT" gen WithW --json >doc.json
  "$WEFT" gen WithW >doc.csv
  [ "$(jq -r .schema doc.json)" = weft-program/1 ]
  [ "$(jq -c '[.level, .ranks, .stages, .microbatches, .actions]' doc.json)" = '["compute",2,4,2,26]' ]
  [[ $(jq -r .hash doc.json) =~ ^[0-9a-f]{16}$ ]]
  diff doc.csv <(jq -r '.rows[] | join(",")' doc.json)
}

@test "gen names what is missing" {
  weft gen
  fails 2 "no schedule named"
  hints
  weft gen 1F1B -m 4
  fails 2 "1F1B needs -p"
  weft gen 1F1B -p 4
  fails 2 "1F1B needs -m"
  hints
}

@test "gen: an unknown name gets a suggestion" {
  weft gen 1F1C -p 4 -m 8
  fails 2 "unknown schedule '1F1C'" "did you mean '1F1B'"
  weft gen InterleavedZeroBuble -p 4 -m 8
  fails 2 "did you mean 'InterleavedZeroBubble'"
  weft gen weft -p 4 -m 8
  fails 2 "unknown schedule 'weft'" "hint: 'weft gen --list' lists all"
  [[ $stderr != *"did you mean"* ]]
  weft gen v-half -p 4 -m 8
  fails 2 "search for a plan on a V placement" "; 'weft gen --list' lists all, 'weft plan' (--placement v, --memory LIMIT) finds others"
  [ "$("$WEFT" gen zbv -p 4 -m 8)" = "$("$WEFT" gen ZBVZeroBubble -p 4 -m 8)" ]
  weft gen $'ev\x1b[31mil\n' -p 4 -m 8
  fails 2 'ev\x1b[31mil'
}

@test "gen: the limits of a recipe are named" {
  weft gen DualPipeV -p 4 -m 7
  fails 2 "2p" "8"
  weft gen DualPipeV -p 4 -m 8
  succeeds
  weft gen 1F1B -p 4 -v 2 -m 8
  fails 2 "stage" "v = 2"
  hints
}

@test "gen: a million by a million is refused at once, with both numbers" {
  start=$SECONDS
  weft gen 1F1B -p 1000000 -m 1000000
  fails 2 "actions" "the limit is 268435456"
  [[ $stderr =~ [0-9]{13} ]]
  hints
  [ $((SECONDS - start)) -le 1 ]
}

@test "gen --for: a table without REDUCE_GRAD, which PyTorch refuses, and otherwise the same" {
  for name in 1F1B GPipe ZBVZeroBubble; do
    "$WEFT" gen $name -p 2 -m 3 | sed 's/,[0-9]*REDUCE_GRAD//g' >expected.csv
    for target in pytorch torchtitan; do
      weft gen $name -p 2 -m 3 --for $target -o t.csv
      [ "$status" -eq 0 ]
      cmp t.csv expected.csv
    done
  done
  weft gen 1F1B -p 2 -m 1 --for torchtitan -o t.csv
  [[ $output == *"the table has 1 microbatch; "* ]]
}

@test "gen --for: names of files are quoted for the shell and for Python" {
  local names=('a b.csv' "it's.csv" "a';touch PWN;'.csv" '$(touch PWN).csv' 'q"+x+".csv' 'back\slash\x41.csv'
    '`touch PWN`.csv' '~.csv' 'größe.csv' $'tab\tnew\nline\e[31m.csv' $'no\xffutf8.csv' $'\xc2\x85.csv' '-.csv')
  for name in "${names[@]}"; do
    weft gen 1F1B -p 2 -m 2 --for torchtitan -o "$name"
    [ "$status" -eq 0 ]
    [ -e "$name" ]
    local line
    line=$(grep -a schedule_csv <<<"$output" | sed 's/ \\$//')
    [[ $line != *$'\e'* ]]
    eval "set -- $line"
    [ "$#" -eq 2 ]
    [[ $2 -ef $name && $2 != -* ]]
    weft gen 1F1B -p 2 -m 2 --for pytorch -o "$name"
    line=$(grep -a _load_csv <<<"$output")
    [[ $line != *$'\e'* ]]
    printf '%s\0%s\0' "${line#*runtime.}" "$name" >>read_back
  done
  python3 -c 'if True:
    import ast, os
    parts = open("read_back", "rb").read().split(b"\0")[:-1]
    for line, name in zip(parts[::2], parts[1::2]):
      assert os.fsencode(ast.parse(line.decode(), mode="eval").body.args[0].value) == name'
  [ ! -e PWN ]
}
