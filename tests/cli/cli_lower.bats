#!/usr/bin/env bats
# weft lower
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

@test "lower writes the program and nothing else" {
  printf '0F0,0B0\n1F0,1B0\n' >t.csv
  weft lower t.csv
  succeeds
  [ "${lines[0]}" = 0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD ]
  [ "${lines[1]}" = 1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD ]
}

@test "lower reads standard input, as - and as nothing" {
  "$WEFT" gen LoopedBFS -p 2 -v 2 -m 2 >t.csv
  "$WEFT" lower t.csv >a
  "$WEFT" lower - <t.csv >b
  "$WEFT" lower <t.csv >c
  cmp a b
  cmp a c
}

@test "TIE_GRAD where it is asked for" {
  "$WEFT" gen ZBVZeroBubble -p 2 -m 4 >t.csv
  "$WEFT" lower t.csv >plain
  lacks TIE_GRAD plain
  "$WEFT" lower --tie-grad t.csv >tied
  has 'W3,0TIE_GRAD,3TIE_GRAD,0REDUCE_GRAD,3REDUCE_GRAD,0RESHARD$' tied
  "$WEFT" verify tied
  "$WEFT" sim --steps tied >dry
  has TIE_GRAD dry
  "$WEFT" diff plain tied >difference || [ $? -eq 1 ]
  has 0TIE_GRAD difference
  "$WEFT" show --grid tied | grep -q 3TIE_GRAD
  "$WEFT" sim <plain >a
  "$WEFT" sim <tied >b
  cmp a b # it takes no time
  "$WEFT" explain tied | grep -q '0TIE_GRAD .* with #[0-9]* 3TIE_GRAD, after #[0-9]* 0W3'
  "$WEFT" gen GPipe -p 2 -m 1 | "$WEFT" lower --tie-grad >two
  "$WEFT" explain two | grep -q '1TIE_GRAD .* with rank 0 #5 0TIE_GRAD, after #3 1B0'
  "$WEFT" explain --json two | grep -A3 '"peer"' | grep -q 1TIE_GRAD
  "$WEFT" run --transport loopback two
  "$WEFT" lower tied 2>error && return 1
  has already error
}

@test "each pass can be left out" {
  "$WEFT" gen Interleaved1F1B -p 2 -v 2 -m 2 >t.csv
  "$WEFT" lower t.csv >all
  has UNSHARD all
  has REDUCE_GRAD all
  has SEND_F all
  "$WEFT" lower t.csv --no-unshard >out
  lacks 'UNSHARD\|RESHARD' out
  has REDUCE_GRAD out
  has RECV_B out
  "$WEFT" lower t.csv --no-reduce-grad >out
  lacks REDUCE_GRAD out
  has UNSHARD out
  "$WEFT" lower t.csv --no-comm >out
  lacks 'SEND\|RECV' out
  has UNSHARD out
}

@test "lower --merge-bw joins I and W" {
  printf '0F0,0I0,,0W0\n' >t.csv
  weft lower t.csv --merge-bw --no-unshard --no-reduce-grad
  [ "$output" = 0F0,0B0 ]
}

@test "lower --window limits the stages that are unsharded at once" {
  printf '0F0,1F0,2F0\n' >t.csv
  weft lower t.csv --window 1 --no-reduce-grad
  [ "$output" = 0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1RESHARD,2UNSHARD,2F0,2RESHARD ]
  weft lower t.csv --window=3 --no-reduce-grad
  [[ $output == 0UNSHARD,1UNSHARD,2UNSHARD,0F0,* ]]
}

@test "lower --json" {
  "$WEFT" gen 1F1B -p 3 -m 6 >t.csv
  "$WEFT" lower t.csv >p.csv
  "$WEFT" lower t.csv --json >doc.json
  [ "$(jq -c '[.schema, .level, .ranks, .stages, .microbatches]' doc.json)" = \
    '["weft-program/1","comms",3,3,6]' ]
  diff p.csv <(jq -r '.rows[] | join(",")' doc.json)
}

@test "options that contradict each other" {
  weft lower --no-unshard --window 2 x.csv
  fails 2 "--window"
  hints
}

@test "an incomplete table is lowered with a warning" {
  printf '0F0,0F1,0B0\n' >part.csv
  weft lower part.csv
  [ "$status" -eq 0 ]
  [[ $output == *0F0* ]]
  [[ $stderr == "weft: warning: part.csv is not a complete schedule: 1 finding; 'weft verify part.csv' lists them" ]]
}

@test "a table that cannot be executed, and a program, are refused with status 1" {
  printf '1F0,0F0\n' >stuck.csv
  weft lower stuck.csv
  fails 1 "stuck.csv" "1F0"
  hints
  "$WEFT" gen 1F1B -p 2 -m 2 | "$WEFT" lower >p.csv
  weft lower p.csv
  fails 1 "p.csv"
  hints
}
