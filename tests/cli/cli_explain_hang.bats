#!/usr/bin/env bats
# weft explain-hang
load ../setup/cli_setup

dumps=$WEFT_SOURCE_DIR/tests/corpus/fuzz_hang

@test "explain-hang says what every rank does, which is the culprit, and what to do" {
  weft explain-hang "$dumps/chain.json"
  succeeds
  [ "${lines[0]}" = "rank 0: waits before 0B0 for rank 1 (1SEND_B0), since 30.0 s; step 7, cell 12; before that 0SEND_F0" ]
  [ "${lines[2]}" = "rank 2: is in 2F0, since 30.4 s; step 7, cell 3; before that 2RECV_F0" ]
  [[ $output == *"verdict: rank 1 has waited 30.2 s in 1RECV_B0 for rank 2, which is in 2F0 since 30.4 s"* ]]
  [[ $output == *"culprit: rank 2"* ]]
  [[ $output == *"hint: look at rank 2's stage 2: it has not returned from its forward" ]]
}

@test "explain-hang reads standard input" {
  "$WEFT" explain-hang "$dumps/cycle.json" >a
  "$WEFT" explain-hang <"$dumps/cycle.json" >b
  "$WEFT" explain-hang - <"$dumps/cycle.json" >c
  cmp a b
  cmp a c
  has '^cycle: ranks 0 1$' a
}

@test "explain-hang without a file looks for weft-hang.json" {
  cp "$dumps/chain.json" weft-hang.json
  "$WEFT" explain-hang </dev/null >out
  grep -q '^culprit: rank 2$' out
  rm weft-hang.json
  run --separate-stderr "$WEFT" explain-hang </dev/null
  fails 66 "weft-hang.json"
}

@test "explain-hang --json has culprit, cycle, message and hint" {
  "$WEFT" explain-hang "$dumps/chain.json" --json >j
  [ "$(jq -c '[.schema, .culprit, .cycle]' j)" = '["weft-explain-hang/1",2,[]]' ]
  jq -e '.message | startswith("rank 1 has waited 30.2 s")' j
  jq -e '.hint | startswith("look at rank 2")' j
  "$WEFT" explain-hang "$dumps/cycle.json" --json >j
  [ "$(jq -c '[.culprit, .cycle]' j)" = '[null,[0,1]]' ]
  jq -e '.message | startswith("a cycle: rank 0 waits in 0RECV_B0 for rank 1 (1SEND_B0)")' j
  "$WEFT" explain-hang "$dumps/error.json" --json >j
  [ "$(jq -c '[.culprit, .cycle, .hint]' j)" = '[1,[],"see its log"]' ]
  [ "$(jq -r .message j)" = "rank 1, 1B0: the stage's backward failed: \"out of \\ memory\", é" ]
}

@test "explain-hang -o writes a file" {
  weft explain-hang "$dumps/chain.json" -o words.txt
  succeeds
  [ "$output" = "" ]
  has '^culprit: rank 2$' words.txt
}

@test "explain-hang refuses what is no dump, and names the place" {
  weft explain-hang "$dumps/broken_1.json"
  fails 65 'broken_1.json:1:' 'not a dump: Object item not found: diagnosis'
  hints
  weft explain-hang "$dumps/broken_4.json"
  fails 65 'not JSON'
  "$WEFT" gen 1F1B -p 2 -m 2 >table.csv
  weft explain-hang table.csv
  fails 65 'table.csv: a table or program' "the weft-hang.json that 'weft run' has written"
  echo hello >words.txt
  weft explain-hang words.txt
  fails 65 'not JSON' "the weft-hang.json that 'weft run' has written"
  : >empty.json
  weft explain-hang empty.json
  fails 65 'empty.json:1:1'
  weft explain-hang /dev/zero
  fails 65 'not JSON'
}

@test "explain-hang of a file that is not there" {
  weft explain-hang gone.json
  fails 66 "cannot open 'gone.json'" 'the dump of a run that hangs'
  hints
  weft explain-hang .
  fails 2 'is a folder'
}
