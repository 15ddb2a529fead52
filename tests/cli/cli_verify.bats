#!/usr/bin/env bats
# weft verify
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

@test "a good program in one line" {
  "$WEFT" gen Interleaved1F1B -p 4 -v 2 -m 8 | "$WEFT" lower >p.csv
  weft verify p.csv
  succeeds
  [ "$output" = "ok: 4 ranks, 8 stages, 8 microbatches, 376 actions; complete, in order, cannot hang (rendezvous sends, one channel per stage boundary)" ]
  weft verify p.csv --comm eager --channel rank
  succeeds
  [[ $output == *"(eager sends, one channel per sending rank)" ]]
  weft verify p.csv --comm slots:2 --channel nccl-world
  succeeds
  [[ $output == *"(slots:2 sends, one NCCL communicator for all ranks)" ]]
  weft verify p.csv --comm slots:2 --channel pair
  succeeds
  [[ $output == *"(slots:2 sends, one channel per pair of ranks)" ]]
}

@test "a good table is told that it is not a program yet" {
  printf '0F0,,0B0\n' >t.csv
  weft verify t.csv
  succeeds
  [[ $output == "ok: 1 rank, 1 stage, 1 microbatch, 2 actions; complete, in order, "*"weft lower"* ]]
  printf '0F0\n' >f.csv
  weft verify f.csv
  succeeds
  [[ $output == *"forward only"* ]]
}

@test "standard input is verified" {
  run -0 bash -c '"$WEFT" gen GPipe -p 3 -m 3 | "$WEFT" lower | "$WEFT" verify'
  [[ $output == ok:* ]]
}

@test "findings name rank, step, action and rule, with the grid" {
  printf '0F0,0F0,0B0\n1F0,1B0\n' >t.csv
  weft verify t.csv
  [ "$status" -eq 1 ]
  [ "$stderr" = "" ]
  [[ ${lines[0]} == "rank 0 step 1 0F0: "*"[duplicate]" ]]
  [[ $output == *"Step 1: >0F0<"*"<-- ERROR HERE"* ]]
  [[ ${lines[-1]} == "1 finding in t.csv"* ]]
}

@test "several findings in one run" {
  printf '0F0,0B1,3W0\n1F0\n' >t.csv
  weft verify t.csv
  [ "$status" -eq 1 ]
  [ "$(grep -c '\[[a-z.]*\]$' <<<"$output")" -ge 3 ]
}

@test "a deadlock is a cycle, one rank a line" {
  hang_table >hang.csv
  weft verify hang.csv
  [ "$status" -eq 1 ]
  [[ ${lines[0]} == "rank 0 step 3 0RECV_B0: "*"[deadlock]" ]]
  [[ ${lines[1]} == "    rank 0 step 3 0RECV_B0 waits for "*1SEND_B0* ]]
  [[ ${lines[2]} == "    rank 1 step 2 1RECV_F1 waits for "*0SEND_F1* ]]
  [[ $output != *"waits for waits for"* ]]
  [[ $output == *">0RECV_B0<"* && $output == *">1RECV_F1<"* ]]
}

@test "the model decides: rendezvous hangs where eager does not" {
  printf '%s\n' 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1 \
    1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1 >p.csv
  weft verify p.csv
  [ "$status" -eq 1 ]
  weft verify p.csv --comm slots:0
  [ "$status" -eq 1 ]
  [[ ${lines[-1]} == "  hint: --comm slots:1 is the smallest without a deadlock" ]]
  run -1 "$WEFT" verify p.csv --json
  [ "$(jq .smallest_slots <<<"$output")" = 1 ]
  weft verify p.csv --comm slots:1
  [ "$status" -eq 0 ]
  weft verify p.csv --comm eager
  [ "$status" -eq 0 ]
  # Both receive first.
  printf '%s\n' 0F0,2RECV_F0,2F0,0SEND_F0 1RECV_F0,1F0,1SEND_F0 >q.csv
  weft verify q.csv --comm slots:3
  [ "$status" -eq 1 ]
  [[ ${lines[-1]} == "  hint: no number of buffers helps, not even --comm eager" ]]
  run -1 "$WEFT" verify q.csv --json
  [ "$(jq -c '[.smallest_slots, has("smallest_slots")]' <<<"$output")" = '[null,true]' ]
  # A table waits for data, not for buffers.
  printf '%s\n' 0F0,0B0,0F1,0B1 1F1,1B1,1F0,1B0 >t.csv
  weft verify t.csv
  [ "$status" -eq 1 ]
  [[ $output != *hint* ]]
}

@test "the smallest slots:K of a large program is found at once, and is the smallest" {
  # The first rank runs ahead with stage 0 while the messages for its stage 16 pile up.
  awk 'BEGIN { p = 16; m = 2000
    for (r = 0; r < p; r++) {
      for (s = r; s < 2 * p; s += p) for (k = 0; k < m; k++)
        printf "%s%sF%d%s", (s > 0 ? s "RECV_F" k "," : ""), s, k, (s < 2 * p - 1 ? "," s "SEND_F" k "," : ",")
      print "" } }' | sed 's/,$//' >p.csv
  run -1 timeout 10 "$WEFT" verify p.csv --json
  slots=$(jq .smallest_slots <<<"$output")
  [ "$slots" -gt 100 ]
  "$WEFT" verify p.csv --comm "slots:$slots" >/dev/null
  run -1 "$WEFT" verify p.csv --comm "slots:$((slots - 1))"
}

@test "the grid excerpt stays small" {
  # 40 ranks that each wait for their neighbour, far apart in a long table.
  "$WEFT" gen 1F1B -p 40 -m 64 | "$WEFT" lower >p.csv
  sed -i '20s/\(19RECV_F3\),\(.*\),\(19RECV_F60\)/\3,\2,\1/' p.csv
  weft verify p.csv
  [ "$status" -eq 1 ]
  [ "$(grep -c '^Step' <<<"$output")" -le 30 ]
  [ "$(grep '  Rank' <<<"$output" | head -1 | grep -o Rank | wc -l)" -le 12 ]
  [[ $output == *"<-- ERROR HERE"* ]]
}

# A skip connection over rank 1: rank 0 sends it before what rank 1 needs, rank 2 takes it last.
skip_in_the_wrong_order() {
  printf '%s\n' '#graph,0>1,0>2,1>2' '0F0,0SEND_F0>2,0SEND_F0' 1RECV_F0,1F0,1SEND_F0 \
    '2RECV_F0,2RECV_F0<0,2F0'
}

@test "a skip connection in the wrong order: the cycle over three edges" {
  skip_in_the_wrong_order >skip.csv
  weft verify skip.csv
  [ "$status" -eq 1 ]
  diff - <(echo "$output") <<'END'
rank 0 step 1 0SEND_F0>2: deadlock: 3 ranks wait for each other in a cycle forever, when a send blocks until it is received; 3 of 3 ranks never finish [deadlock]
    rank 0 step 1 0SEND_F0>2 waits for rank 2 to do 2RECV_F0<0 (step 1): its message has not been received
    rank 2 step 0 2RECV_F0 waits for rank 1 to do 1SEND_F0 (step 2): its message has not been sent
    rank 1 step 0 1RECV_F0 waits for rank 0 to do 0SEND_F0 (step 2): its message has not been sent

        Rank 0       Rank 1     Rank 2    
Step 0: 0F0          >1RECV_F0< >2RECV_F0< <-- ERROR HERE
Step 1: >0SEND_F0>2< 1F0        2RECV_F0<0 <-- ERROR HERE
Step 2: 0SEND_F0     1SEND_F0   2F0       

1 finding in skip.csv
  hint: --comm slots:1 is the smallest without a deadlock
END
  weft verify skip.csv --comm slots:1
  succeeds
  weft verify skip.csv --channel nccl-pair
  succeeds
  weft verify skip.csv --channel nccl-world --json
  [ "$status" -eq 1 ]
  [ "$(jq -c '[.cycle[].action], .smallest_slots' <<<"$output" | paste -sd' ')" = \
    '["0SEND_F0>2","2RECV_F0","1RECV_F0"] 1' ]
  # What lowering makes of the table does not hang.
  sed -E 's/[0-9](SEND|RECV)_F0([<>][0-9])?,?//g; s/,$//' skip.csv | "$WEFT" lower --no-unshard >lowered.csv
  weft verify lowered.csv
  succeeds
}

@test "what is wrong with transfers over edges, with the stages named" {
  skip_in_the_wrong_order >skip.csv
  # findings GRAPH: those that skip.csv has with another first row, without the steps
  findings() {
    run -1 "$WEFT" verify <(printf '%s' "$1" && sed 1d skip.csv)
    grep '\]$' <<<"$output" | sed -E 's/ step [0-9]+//'
  }
  diff - <(findings '') <<'END'
rank 0 0SEND_F0>2: no edge goes from stage 0 to stage 2: without a graph the pipeline is a chain, where every stage feeds the next one alone; a first row such as #graph,0>1,1>2,0>2 lists other edges [comm.boundary]
rank 2 2RECV_F0<0: no edge goes from stage 0 to stage 2: without a graph the pipeline is a chain, where every stage feeds the next one alone; a first row such as #graph,0>1,1>2,0>2 lists other edges [comm.boundary]
END
  diff - <(findings $'#graph,0>1,1>2\n') <<'END'
rank 0 0SEND_F0>2: the graph has no edge from stage 0 to stage 2; take this out, or add 0>2 to the row #graph [comm.boundary]
rank 2 2RECV_F0<0: the graph has no edge from stage 0 to stage 2; take this out, or add 0>2 to the row #graph [comm.boundary]
END
  printf '%s\n' '#graph,0>1,0>2F,1>2' 0F0,1F0,1B0,0B0,0SEND_F0,1SEND_F0,0SEND_F0 \
    '2RECV_F0<0,2RECV_F0,2F0,2B0,2SEND_B0>0,2SEND_B0' >edges.csv
  run -1 "$WEFT" verify edges.csv
  diff - <(grep '\]$' <<<"$output") <<'END'
rank 0 step 6 0SEND_F0: this action is in the program already; take one of them out [duplicate]
rank 1 step 4 2SEND_B0>0: the edge from stage 0 to stage 2 carries no gradient; take this out, or write 0>2 without an F in the row #graph [comm.boundary]
rank 0 step 4 0SEND_F0: stages 0 and 1 both live on rank 0; data between them is handed over without a send [comm.self]
rank 0 step 6 0SEND_F0: stages 0 and 1 both live on rank 0; data between them is handed over without a send [comm.self]
rank 1 step 0 2RECV_F0<0: its 0SEND_F0>2 on rank 0 is missing: the message is never sent, and the rank waits forever [pair.send]
rank 1 step 5 2SEND_B0: its 1RECV_B0 on rank 0 is missing: the message is never received [pair.recv]
END
  # Two inputs, each on its own: one is not received yet, the other is never sent.
  printf '%s\n' '#graph,0>2F,1>2' '0F0,0SEND_F0>2,0B0,0TIE_GRAD' '1F0,1B0' \
    '2F0,2RECV_F0<0,2B0' >inputs.csv
  run -1 "$WEFT" verify inputs.csv
  diff - <(grep '\]$' <<<"$output") <<'END'
rank 0 step 2 0B0: stage 0 is frozen: none of its edges brings it a gradient, so that microbatch 0 has no backward there; take it out, or let an edge from stage 0 carry gradients [coverage.frozen]
rank 0 step 3 0TIE_GRAD: stage 0 is frozen: none of its edges brings it a gradient; take this out [coverage.frozen]
rank 1 step 1 1B0: its input comes from stage 2 on rank 2, and no SEND and RECV transfer it; take out those that are there and let lowering place all [comm.missing]
rank 2 step 0 2F0: its input comes from stage 1 on rank 1, and no SEND and RECV transfer it; take out those that are there and let lowering place all [comm.missing]
rank 2 step 0 2F0: precedes 2RECV_F0<0, which receives its input [order.receive]
END
  # Two messages over the skip connection, taken in another order than sent.
  printf '%s\n' '#graph,0>1,0>2,1>2' '0F0,0F1,1F0,1F1,0SEND_F1>2,0SEND_F0>2,1SEND_F0,1SEND_F1' \
    '2RECV_F0<0,2RECV_F1<0,2RECV_F0,2RECV_F1,2F0,2F1' >swapped.csv
  run -1 "$WEFT" verify swapped.csv
  diff - <(grep '\]$' <<<"$output") <<'END'
rank 1 step 0 2RECV_F0<0: is receive number 0 on its boundary and expects 0SEND_F0>2, but rank 0 sends 0SEND_F1>2 there; put both sides in the same order [channel.order]
END
}

@test "a graph says how many stages there are" {
  printf '#graph,0>1,0>2\n0F0\n1F0\n' >g.csv
  weft verify g.csv
  [ "$status" -eq 1 ]
  [[ ${lines[0]} == *"no rank computes stage 2 [coverage.forward]" ]]
  weft verify g.csv --stages 2
  fails 2 "2 stages are asked for, and the graph has 3"
  hints
}

@test "--max-findings limits the list, not the count" {
  "$WEFT" gen 1F1B -p 2 -m 40 | sed 's/0F[0-9]*/0F0/g' >t.csv
  weft verify t.csv --max-findings 2
  [ "$status" -eq 1 ]
  [[ $output == *"more; --max-findings shows them"* ]]
}

@test "--stages and --microbatches say what should be there" {
  printf '0F0,0B0\n' >t.csv
  weft verify t.csv --microbatches 2
  [ "$status" -eq 1 ]
  [[ $output == *coverage.forward* ]]
  weft verify t.csv --stages 2
  [ "$status" -eq 1 ]
  weft verify t.csv --stages 1 --microbatches 1
  [ "$status" -eq 0 ]
  printf '0F0,0B0,0F1,0B1\n' >t.csv
  weft verify t.csv -m 1
  [ "$status" -eq 1 ]
  [[ $output == *range.microbatch* ]]
}

@test "--json: ok, model, counts" {
  "$WEFT" gen 1F1B -p 2 -m 2 | "$WEFT" lower | "$WEFT" verify --json --comm slots:3 --channel pair >v.json
  [ "$(jq -c '[.ok, .findings, .model.comm, .model.channel, .ranks, .stages, .microbatches, .liveness_checked, .findings_left_out]' v.json)" = \
    '[true,[],"slots:3","pair",2,2,2,true,0]' ]
  [ "$(jq 'has("cycle")' v.json)" = false ]
}

@test "--json: findings and the cycle" {
  hang_table >hang.csv
  run -1 "$WEFT" verify hang.csv --json
  echo "$output" >v.json
  [ "$(jq -c '[.ok, .findings[0].rule, .findings[0].rank, .findings[0].step, .findings[0].action]' v.json)" = \
    '[false,"deadlock",0,3,"0RECV_B0"]' ]
  [ "$(jq -c '[.cycle[] | [.rank, .step, .action]]' v.json)" = '[[0,3,"0RECV_B0"],[1,2,"1RECV_F1"]]' ]
  [ "$(jq -c .cycle v.json)" = "$(jq -c '.findings[0].cycle' v.json)" ]
  [ "$(jq -r '.cycle[0].waits_for' v.json | cut -c1-7)" = "rank 1 " ]
}

@test "--json -o writes the document and still ends with 1" {
  hang_table >hang.csv
  weft verify hang.csv --json -o v.json
  [ "$status" -eq 1 ]
  [ "$output" = "" ]
  jq -e '.ok | not' v.json >/dev/null
}

@test "no colour without a terminal; colour on one, unless NO_COLOR or TERM=dumb" {
  printf '0F0,0B0\n' >t.csv
  TERM=xterm weft verify t.csv
  [[ $output == ok:* ]]
  if ! script -qec true /dev/null >/dev/null 2>&1; then
    skip "script(1) cannot make a terminal here"
  fi
  run -0 env TERM=xterm script -qec "'$WEFT' verify t.csv" /dev/null
  [[ $output == $'\e[32mok\e[0m:'* ]]
  run -0 env TERM=xterm NO_COLOR=1 script -qec "'$WEFT' verify t.csv" /dev/null
  [[ $output == ok:* ]]
  run -0 env TERM=dumb script -qec "'$WEFT' verify t.csv" /dev/null
  [[ $output == ok:* ]]
}

@test "verify --channel nccl-*: queues of sends and receives, on the communicators" {
  # The last send of both ranks comes before the receive that the other one's send is for.
  printf '%s\n' 0F0,2RECV_F0,0SEND_F0,2F0 1RECV_F0,1F0,1SEND_F0 >early.csv
  weft verify early.csv
  [ "$status" -eq 1 ]
  weft verify early.csv --channel nccl-directed
  succeeds
  for kind in nccl-pair nccl-world; do
    weft verify early.csv --channel $kind --comm eager --json
    [ "$status" -eq 1 ]
    [ "$(jq -c '[.model.channel, .smallest_slots, .findings[0].rule]' <<<"$output")" = "[\"$kind\",null,\"deadlock\"]" ]
    jq -e '.findings[0].cycle | map(.action) | index("2RECV_F0") != null and index("1RECV_F0") != null' <<<"$output"
    jq -e '.findings[0].cycle[1].waits_for | endswith("on its communicator 2RECV_F0 comes first")' <<<"$output"
  done
  # The simulator's transfers begin when both ends have come: it needs buffers on fewer.
  printf '%s\n' 0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1 \
    1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1 >ahead.csv
  weft sim ahead.csv --channel nccl-directed
  succeeds
  weft sim ahead.csv --channel nccl-pair
  [ "$status" -eq 1 ]
  [[ $stderr == *"it never finishes: 2 of 2 ranks wait for an input that does not come"* ]]
}

@test "verify --trace lists what ranks do in turn, and what is left" {
  printf '%s\n' 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1 \
    1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1 >crossed.csv
  weft verify crossed.csv --trace
  fails 2 "--trace" "add --json"
  run -1 "$WEFT" verify crossed.csv --json --trace -o trace.json
  [ "$(jq -c '[.moves[].action]' trace.json)" = '["0F0","1RECV_F0","0SEND_F0","1F0","0F1","1B0"]' ]
  [ "$(jq -c '[.waits[] | [.action, .after.rank, .after.action]]' trace.json)" = \
    '[["0SEND_F1",1,"1RECV_F1"],["1SEND_B0",0,"0RECV_B0"]]' ]
  "$WEFT" verify crossed.csv --json --trace --comm slots:1 -o trace.json
  [ "$(jq -c '[(.moves | length), .waits]' trace.json)" = '[16,[]]' ]
  "$WEFT" verify crossed.csv --json --comm slots:1 -o plain.json
  [ "$(jq 'has("moves")' plain.json)" = false ]
}

@test "verify --list names the models that --comm and --channel take" {
  "$WEFT" verify --list --json >models.json
  for comm in $(jq -r '.comm[].name' models.json); do
    for channel in $(jq -r '.channel[].name' models.json); do
      "$WEFT" gen 1F1B -p 2 -m 2 | "$WEFT" lower | "$WEFT" verify --comm "${comm/K/2}" --channel "$channel"
    done
  done
  "$WEFT" verify --list | grep -q '  rendezvous '
}
