#!/usr/bin/env bats
# weft sim --steps, show --grid, explain, diff
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

@test "sim --steps adds communication to a table and shows the waiting" {
  printf '0F0,0B0\n1F0,1B0\n' >t.csv
  weft sim --steps t.csv
  succeeds
  [ "${lines[0]}" = 0F0,0SEND_F0,,,0RECV_B0,0B0 ]
  [ "${lines[1]}" = ,1RECV_F0,1F0,1B0,1SEND_B0 ]
}

@test "sim --steps takes a program as it is" {
  "$WEFT" gen 1F1B -p 2 -m 2 | "$WEFT" lower >p.csv
  weft sim --steps p.csv
  succeeds
  [[ $output == *UNSHARD* ]]
  "$WEFT" gen ReorderedB | "$WEFT" sim --steps --json | jq -e '.schema == "weft-program/1"' >/dev/null
}

@test "sim --steps on what is stuck ends with 1" {
  hang_table >hang.csv
  weft sim --steps hang.csv
  fails 1 "hang.csv" "waits for"
  hints
}

@test "show --grid draws PyTorch's grid" {
  printf '0F0,0F1,,0B0\n,1F0,1B0\n' >t.csv
  weft show --grid t.csv
  succeeds
  [ "$output" = "        Rank 0 Rank 1
Step 0: 0F0          
Step 1: 0F1    1F0   
Step 2:        1B0   
Step 3: 0B0          " ]
}

@test "explain lists index, step, action, channel and peer" {
  "$WEFT" gen 1F1B -p 2 -m 2 | "$WEFT" lower >p.csv
  weft explain p.csv
  succeeds
  [ "${lines[0]}" = "rank 0: 11 instructions, 11 steps" ]
  [ "${lines[4]}" = "     2      2  0SEND_F0          F 0>1 (rank 0>1)    to rank 1 #1 1RECV_F0, after #1 0F0" ]
  grep -q ' 1RECV_F0  *F 0>1 (rank 0>1)  *from rank 0 #2 0SEND_F0$' <<<"$output"
  grep -q ' 0B0  *-  *after #1 0F0, #5 0RECV_B0$' <<<"$output"
  grep -q '^RECV_F  *receive the activation' <<<"$output"
}

@test "explain --rank limits the listing" {
  "$WEFT" gen 1F1B -p 3 -m 2 | "$WEFT" lower >p.csv
  weft explain p.csv --rank 1
  succeeds
  [ "$(grep -c '^rank' <<<"$output")" -eq 1 ]
  [[ ${lines[0]} == "rank 1: "* ]]
  weft explain p.csv --rank 3
  fails 2 "the program has 3 ranks"
}

@test "explain lists a table as it is, with a note" {
  printf '0F0,,0B0\n,1F0,1B0\n' >t.csv
  weft explain t.csv
  [ "$status" -eq 0 ]
  [[ $stderr == "weft: note: "* ]]
  grep -q ' 1F0 .* after rank 0 #0 0F0$' <<<"$output"
  grep -q '(bubble)' <<<"$output"
}

@test "explain shows the parts of an overlap, and what has no peer" {
  printf '(0F1;1B0)OVERLAP_F_B,1RECV_F7,0SEND_B0,0RECV_F0\n' >t.csv
  weft explain t.csv
  [ "$status" -eq 0 ]
  grep -q '^ *0 *0  (0F1;1B0)OVERLAP_F_B' <<<"$output"
  grep -q '^ *2 *0    1B0' <<<"$output"
  grep -q '1RECV_F7 .*from nobody' <<<"$output"
  "$WEFT" explain t.csv --json | jq -e '.rows[0].instructions | length == 6' >/dev/null
}

@test "explain --json has the same" {
  "$WEFT" gen 1F1B -p 2 -m 2 | "$WEFT" lower | "$WEFT" explain --json >e.json
  [ "$(jq -c '[.schema, .ranks, (.rows | length)]' e.json)" = '["weft-explain/1",2,2]' ]
  [ "$(jq -c '.rows[0].instructions[2] | [.index, .step, .action, .channel.kind, .channel.to_rank, .peer.rank, .peer.index, .peer.action]' e.json)" = \
    '[2,2,"0SEND_F0","F",1,1,1,"1RECV_F0"]' ]
  # Peers point at each other.
  jq -e '[.rows[] as $row | $row.instructions[] | select(.peer) | [$row.rank, .index, .peer.rank, .peer.index]] as $all
         | $all | map([.[2], .[3], .[0], .[1]]) | sort == ($all | sort)' e.json >/dev/null
}

@test "diff: equal is silent, with status 0" {
  "$WEFT" gen 1F1B -p 2 -m 4 >a.csv
  sed 's/$/\r/' a.csv >b.csv
  weft diff a.csv b.csv
  succeeds
  [ "$output" = "" ]
}

@test "diff: changed, removed, added, per rank" {
  printf '0F0,0F1,0B0\n1F0,1B0\n' >a.csv
  printf '0F0,0B0\n1F0,1I0,1W0\n' >b.csv
  weft diff a.csv b.csv
  [ "$status" -eq 1 ]
  grep -qx 'rank 0 step 1: - 0F1' <<<"$output"
  grep -q '^rank 1 step 1: 1B0 -> 1I0' <<<"$output"
  grep -qx 'rank 1 step 2: + 1W0' <<<"$output"
  [ "${lines[-1]}" = "3 differences" ]
}

@test "diff: ranks that only one has" {
  printf '0F0\n' >a.csv
  printf '0F0\n""\n' >b.csv
  weft diff a.csv b.csv
  [ "$status" -eq 1 ]
  grep -qx '1 rank -> 2 ranks' <<<"$output"
}

@test "diff --json, and --max-differences" {
  "$WEFT" gen 1F1B -p 4 -m 8 >a.csv
  "$WEFT" gen GPipe -p 4 -m 8 >b.csv
  run -1 "$WEFT" diff a.csv b.csv --json --max-differences 3
  [ "$(jq -c '[.schema, .equal, (.differences | length), .differences_left_out > 0]' <<<"$output")" = \
    '["weft-diff/1",false,3,true]' ]
  "$WEFT" diff a.csv a.csv --json | jq -e .equal >/dev/null
  run -1 "$WEFT" diff a.csv b.csv --max-differences 3
  [[ $output == *"more; --max-differences shows them"* ]]
}

@test "diff reads one of them from standard input" {
  printf '0F0\n' >a.csv
  run -0 bash -c '"$WEFT" diff a.csv - <a.csv'
  run -0 bash -c '"$WEFT" diff - a.csv <a.csv'
  weft diff - -
  fails 2 "only once"
  weft diff a.csv
  fails 2 "expected two files"
  weft diff a.csv none.csv
  fails 66 "none.csv"
}
