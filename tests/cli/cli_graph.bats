#!/usr/bin/env bats
# Tables and programs whose stages form a graph: lower, sim, show, explain, diff, compare, --graph.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

# Stage 0 feeds 1 and 2, 1 feeds 2.
write_files() {
  printf '%s\n' '#graph,0>1,0>2,1>2' 0F0,0F1,0B0,0B1 1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1 >graph.csv
  tail -n 2 graph.csv >bare.csv
  echo '{"schema": "weft-graph/1", "stages": ["encoder", "middle", "head"], "edges": [
         {"from": "encoder", "to": "middle"}, {"from": "middle", "to": "head"},
         {"from": "encoder", "to": "head", "bytes": 12, "gradient_bytes": 4}]}' >graph.json
  echo '{"schema": "weft-costs/1", "of": "stage", "stages": [{}],
         "hop": {"latency": 0.5, "bytes": 2, "bytes_per_unit": 4}}' >costs.json
}

@test "sim waits for every edge, and takes the sizes of edges from --graph" {
  write_files
  weft sim graph.csv --costs costs.json --json
  succeeds
  [ "$(jq '.makespan' <<<"$output")" = 17 ]
  weft sim graph.csv --costs costs.json --graph graph.json --json
  succeeds
  # 0F0 ends at 1, its skip connection arrives at 4.5; 1F0 is long done.
  [ "$(jq '.makespan' <<<"$output")" = 18.5 ]
  weft sim bare.csv --costs costs.json --graph graph.json --json
  succeeds
  [ "$(jq '.makespan' <<<"$output")" = 18.5 ]
}

@test "sim --critical-path goes over the edge that arrives last" {
  write_files
  weft sim graph.csv --costs costs.json --graph graph.json --critical-path
  succeeds
  grep -A3 '^critical path' <<<"$output" >path
  has " 0F0  *0 'encoder'$" path
  has " 4.5  *5.5  *1  2F0  *2 'head'$" path
  lacks 1F0 path
}

@test "sim --steps and show --grid have the transfers of every edge" {
  write_files
  weft sim --steps graph.csv
  succeeds
  [ "${lines[0]}" = '#graph,0>1,0>2,1>2' ]
  [[ ${lines[1]} == 0F0,0SEND_F0,0SEND_F0'>'2,* ]]
  printf '%s\n' "$output" >steps.csv
  weft show --grid steps.csv
  succeeds
  [[ $output == *'Step 02: 0SEND_F0>2 2RECV_F0<0'* ]]
}

@test "explain names the other stage and all that an action waits for" {
  write_files
  "$WEFT" lower --no-unshard --no-reduce-grad graph.csv >program.csv
  weft explain program.csv --rank 1
  succeeds
  grep -qE '2RECV_F0<0  +F 0>2 \(rank 0>1\)  +from rank 0 #2 0SEND_F0>2$' <<<"$output"
  grep -qE '2F0  +-  +after #1 2RECV_F0<0, #2 1F0$' <<<"$output"
  [[ $output == *"The stages form a graph"* ]]
  "$WEFT" explain program.csv --json |
    jq -e '.rows[1].instructions[1].channel == {kind: "F", from_stage: 0, to_stage: 2, from_rank: 0, to_rank: 1}
      and (.rows[0].instructions[6].needs | length == 0)
      and (.rows[0].instructions[8].needs | length == 3)' >/dev/null
  "$WEFT" gen 1F1B -p 2 -m 2 | "$WEFT" lower >chain.csv
  weft explain chain.csv
  [[ $output != *"form a graph"* ]]
}

@test "explain --json: what a transfer does names its other stage" {
  write_files
  "$WEFT" lower --no-unshard --no-reduce-grad graph.csv >program.csv
  "$WEFT" explain program.csv --json | jq -r '.rows[].instructions[] | "\(.action): \(.does)"' >does
  has '^2RECV_F0<0: receive the activation of stage 0$' does
  has '^0SEND_F0>2: send the activation to stage 2$' does
  has '^2SEND_B0>0: send the input gradient to stage 0$' does
  has '^0RECV_B0<2: receive the gradient of stage 2$' does
  has '^0SEND_F0: send the activation to stage 1$' does
  lacks 'stage[-+]1' does
  "$WEFT" gen 1F1B -p 2 -m 1 | "$WEFT" lower | "$WEFT" explain --json |
    jq -e '[.rows[].instructions[].does] | index("receive the activation of stage-1") != null' >/dev/null
}

@test "--json of gen, lower and sim --steps has the graph, as a file that --graph takes" {
  write_files
  sed 's/"to": "middle"}/"to": "middle", "gradient": false}/' graph.json >frozen.json
  "$WEFT" gen GPipe --graph frozen.json -m 2 --json | jq .graph >made.json
  jq -e '.schema == "weft-graph/1" and .stages == ["encoder", "middle", "head"] and
    .edges == [{from: 0, to: 1, gradient: false},
               {from: 0, to: 2, bytes: 12, gradient_bytes: 4}, {from: 1, to: 2}]' made.json
  weft gen GPipe --graph made.json -m 2
  succeeds
  [ "$output" = "$("$WEFT" gen GPipe --graph frozen.json -m 2)" ]
  "$WEFT" lower graph.csv --json | jq -e '.graph.stages == 3 and (.graph.edges | length == 3)'
  "$WEFT" sim graph.csv --steps --json | jq -e '.graph.edges[1] == {from: 0, to: 2}'
  "$WEFT" gen GPipe -p 2 -m 2 --json | jq -e 'has("graph") | not'
}

@test "diff: other edges are a difference" {
  write_files
  weft diff graph.csv bare.csv
  [ "$status" -eq 1 ]
  [ "$output" = "graph.csv -> bare.csv; by rank and step: x -> y changed, + added, - removed
edge 0>2: with gradient -> none
1 difference" ]
  sed 's/0>2/0>2F/' graph.csv >forward.csv
  weft diff graph.csv forward.csv --json
  [ "$status" -eq 1 ]
  jq -e '.equal == false and .edges == [{from: 0, to: 2, a: "with gradient", b: "without gradient"}]' <<<"$output"
  weft diff graph.csv bare.csv --graph graph.json
  succeeds
  weft diff graph.csv graph.csv --json
  succeeds
  jq -e '.equal and (has("edges") | not)' <<<"$output"
  sed '1s/.*/#graph,0>1F,0>2F,1>2/' graph.csv >two.csv
  weft diff graph.csv two.csv --max-differences 1
  [ "$(tail -n +2 <<<"$output")" = "edge 0>1: with gradient -> without gradient
and 1 more; --max-differences shows them
2 differences" ]
  weft diff graph.csv two.csv --max-differences 1 --json
  jq -e '(.edges | length) == 1 and .edges_left_out == 1' <<<"$output"
}

@test "show draws graphs in every format" {
  write_files
  weft show graph.csv --graph graph.json --costs costs.json
  succeeds
  [[ $output == *"edges 0>1, 0>2, 1>2"* ]]
  for ending in svg html json; do
    weft show graph.csv --graph graph.json --costs costs.json -o "picture.$ending"
    succeeds
  done
  has 'edges 0&gt;1, 0&gt;2, 1&gt;2' picture.svg
  sed -i 's/head/<head>/' graph.json
  weft show graph.csv --graph graph.json --colour-by stage -o stages.svg
  succeeds
  has '>stage 0 &#39;encoder&#39;<' stages.svg
  has '>stage 2 &#39;&lt;head&gt;&#39;<' stages.svg
  has '"stageNames":\["encoder","middle","head"\]' picture.html
  has 'send activation 0 to 2' picture.json
}

@test "stages without a name among others that have one" {
  write_files
  sed -i 's/"middle", "head"\]/null, "head"]/; s/"middle"/1/g' graph.json
  for ending in svg html json; do
    weft show graph.csv --graph graph.json -o "picture.$ending"
    succeeds
  done
  has '"stageNames":\["encoder","","head"\]' picture.html
  weft verify graph.csv --graph graph.json
  succeeds
  weft run graph.csv --graph graph.json --stage null
  succeeds
}

@test "names of stages: findings, explain, the critical path, pictures" {
  write_files
  sed 's/2B1,//; s/1F1,//' graph.csv >wrong.csv
  weft verify wrong.csv --graph graph.json
  [ "$status" -eq 1 ]
  [[ $output == *": stage 1 'middle', microbatch 1 has no F [coverage.forward]"* ]]
  [[ $output == *": stage 2 'head', microbatch 1 has no backward"* ]]
  weft verify wrong.csv
  [[ $output == *": stage 1, microbatch 1 has no F"* ]]
  "$WEFT" lower graph.csv >program.csv
  weft explain program.csv --graph graph.json
  succeeds
  [[ ${lines[0]} == "rank 0: "*"; stage 0 'encoder'" ]]
  [[ $output == *$'\nrank 1: '*"; stage 1 'middle', stage 2 'head'"$'\n'* ]]
  "$WEFT" explain program.csv --graph graph.json --json |
    jq -e '.rows[1].instructions | map(select(.stage == 2).stage_name) | unique == ["head"]'
  "$WEFT" explain program.csv --json | jq -e '.graph.edges | length == 3'
  weft sim graph.csv --graph graph.json --critical-path --costs-of stage
  succeeds
  grep -qE "^ +0 +1 +0  0F0 +0 'encoder'$" <<<"$output"
  weft sim graph.csv --critical-path --costs-of stage
  grep -qE '^ +0 +1 +0  0F0$' <<<"$output"
  weft show graph.csv --graph graph.json
  [ "${lines[-1]}" = "stages 0 'encoder', 1 'middle', 2 'head'" ]
  weft show graph.csv --graph graph.json -o picture.svg
  has 'stages 0 &#39;encoder&#39;, 1 &#39;middle&#39;' picture.svg
  weft show graph.csv --graph graph.json -o picture.json
  jq -e '[.traceEvents[].args | select(.stage == 2).stage_name] | unique == ["head"]' picture.json
}

@test "lower and verify take the graph from a file" {
  write_files
  weft lower bare.csv --graph graph.json --no-unshard --no-reduce-grad
  succeeds
  [ "${lines[0]}" = '#graph,0>1,0>2,1>2' ]
  [ "$output" = "$("$WEFT" lower graph.csv --no-unshard --no-reduce-grad)" ]
  weft verify bare.csv --graph graph.json
  succeeds
}

@test "verify and sim name the losses, what is frozen, and parts" {
  write_files
  weft verify graph.csv
  succeeds
  [ "${lines[1]}" = "graph: loss in stage 2" ]
  weft verify graph.csv --graph graph.json
  [ "${lines[1]}" = "graph: loss in stage 2 'head'" ]
  weft sim graph.csv --graph graph.json
  grep -qx "graph             loss in stage 2 'head'" <<<"$output"
  # A U-Net whose edge from the middle was forgotten, beside a chain of two stages of its own.
  echo '{"schema": "weft-graph/1", "stages": ["text", "down", "middle", "up", "x", "y"], "edges": [
    {"from": "text", "to": "down", "gradient": false}, {"from": "down", "to": "middle"},
    {"from": "down", "to": "up"}, {"from": "x", "to": "y"}]}' >parts.json
  "$WEFT" gen GPipe --graph parts.json -m 1 >parts.csv
  weft verify parts.csv --graph parts.json
  succeeds
  [ "${lines[1]}" = "graph: losses in stages 2 'middle', 3 'up', 5 'y'; frozen: stage 0 'text'; 2 parts without an edge between them: stages 0 'text', 1 'down', 2 'middle', 3 'up' | stages 4 'x', 5 'y'" ]
  "$WEFT" verify parts.csv --graph parts.json --json | jq -e '.graph_summary == {losses: [{stage: 2, name: "middle"},
    {stage: 3, name: "up"}, {stage: 5, name: "y"}], frozen: [{stage: 0, name: "text"}], parts: 2}'
  "$WEFT" sim parts.csv --json | jq -e '.graph_summary == {losses: [{stage: 2}, {stage: 3}, {stage: 5}],
    frozen: [{stage: 0}], parts: 2}'
  "$WEFT" gen 1F1B -p 2 -m 2 >chain.csv
  weft verify chain.csv
  [ "${#lines[@]}" -eq 1 ]
  "$WEFT" verify chain.csv --json | jq -e 'has("graph_summary") | not'
}

@test "compare ranks files with the same graph among themselves" {
  write_files
  printf '%s\n' '#graph,0>1,0>2,1>2' 0F0,0B0,0F1,0B1 1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1 >other.csv
  weft compare graph.csv other.csv --json
  succeeds
  jq -e '[.schedules[].name] | sort == ["graph.csv", "other.csv"]' <<<"$output"
  weft compare graph.csv bare.csv
  fails 2 "bare.csv has other edges between stages than graph.csv"
  hints
  weft compare graph.csv bare.csv --graph graph.json --json
  succeeds
}

@test "compare ranks the schedules of a graph, with and without files" {
  echo '{"schema": "weft-graph/1", "stages": 6, "edges": [{"from": 0, "to": 2}, {"from": 2, "to": 4},
    {"from": 1, "to": 3}, {"from": 3, "to": 4}, {"from": 4, "to": 5}, {"from": 0, "to": 5}]}' >encoders.json
  weft compare --graph encoders.json -p 6 -m 8 --json
  succeeds
  # A chain of six stages takes 39.
  [ "$(jq -r '.schedules[] | select(.name == "1F1B") | .makespan' <<<"$output")" = 33 ]
  [ "$("$WEFT" gen 1F1B --graph encoders.json -m 8 | "$WEFT" sim --json | jq .makespan)" = 33 ]
  jq -e '[.schedules[].v] | unique == [1]' <<<"$output"
  jq -e '.left_out[] | select(.name == "ZBVZeroBubble") | .why | test("2 stages per rank")' <<<"$output"
  first=$output
  weft compare --graph encoders.json -m 8 --json
  [ "$output" = "$first" ]
  weft compare --graph encoders.json -p 3 -m 6 --json
  succeeds
  jq -e '[.schedules[].v] | unique == [2]' <<<"$output"
  "$WEFT" gen Interleaved1F1B --graph encoders.json -p 3 -m 6 >table.csv
  weft compare table.csv --json
  succeeds
  jq -e '[.schedules[] | select(.name == ("table.csv", "Interleaved1F1B")).makespan] |
    length == 2 and .[0] == .[1]' <<<"$output"
  weft compare --graph encoders.json -p 4 -m 8
  fails 2 "the graph has 6 stages, which is not 4 ranks with v stages each"
  hints
  weft compare --graph encoders.json -p 6 -v 2 -m 8
  fails 2 "the graph has 6 stages, which is not 6 ranks with 2 stages each"
  weft compare --graph encoders.json -p 6
  fails 2 "compare needs -m"
}

@test "compare takes costs of each stage where ranks have different numbers of them" {
  write_files
  echo '{"schema": "weft-costs/1", "stages": [{}, {"f": 2}, {}]}' >stages.json
  weft compare graph.csv --costs stages.json --json
  succeeds
  [ "$(jq '.schedules[0].makespan' <<<"$output")" = "$("$WEFT" sim graph.csv --costs stages.json --json | jq .makespan)" ]
}

@test "a graph that does not fit is refused with what differs" {
  write_files
  printf '%s\n' '#graph,0>1,1>2' 0F0,0B0 1F0,2F0,2B0,1B0 >chain.csv
  weft sim chain.csv --graph graph.json
  fails 2 "only the graph has the edge 0>2"
  hints
  sed 's/"to": "head", "bytes"/"to": "head", "gradient": false, "bytes"/' graph.json >forward.json
  weft sim graph.csv --graph forward.json
  fails 2 "only the row has the edge 0>2"
  printf '0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n' >four.csv
  weft sim four.csv --graph graph.json
  fails 2 "4 stages, and a graph of 3"
  printf '0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n' >two.csv
  weft sim two.csv --graph graph.json
  fails 2 "two.csv: 2 stages, and a graph of 3"
  hints
  sed 's/"bytes": *[0-9.e+]*/"bytes": 1e308/' graph.json >large.json
  weft sim graph.csv --graph large.json
  fails 65 "expected a size from 0 to 1e12, found 1e308"
  weft sim graph.csv --graph none.json
  fails 66 "cannot open 'none.json'" "a graph of stages in JSON"
  echo '{"schema": "weft-graph/1", "stages": 2, "edges": [{"from": 1, "to": 0}]}' >cycle.json
  weft sim graph.csv --graph cycle.json
  fails 65 "weft: cycle.json:" "the edge 1>0 goes back"
  hints
  printf '#graph,1>0\n0F0\n1F0\n' >cycle.csv
  weft sim cycle.csv
  fails 65 "weft: cycle.csv:1:" "the edge 1>0 goes back"
}

@test "gen and plan for a graph, and what they refuse" {
  echo '{"schema": "weft-graph/1", "stages": 4, "edges": [{"from": 0, "to": 1}, {"from": 1, "to": 2},
    {"from": 2, "to": 3}, {"from": 0, "to": 3}]}' >skip.json
  weft gen 1F1B --graph skip.json -m 4 -o table.csv
  succeeds
  weft verify table.csv
  succeeds
  weft plan --graph skip.json -p 2 -m 4 --stage-ranks 0,1,1,0 -o plan.csv
  succeeds
  [[ $output == *"optimal for this placement"* ]]
  "$WEFT" lower plan.csv | "$WEFT" verify
  weft plan --graph skip.json -p 2 -m 4 --stage-ranks 0,1
  fails 2 "expected 4 numbers of ranks"
  hints
  weft plan --graph skip.json -p 2 -m 4 --stage-ranks 0,1,2,3
  fails 2 "stage 2 is placed on rank 2, and there are 2 ranks"
  weft plan -p 2 -m 4 --stage-ranks 0,1
  fails 2 "--graph is not there"
  weft plan --graph skip.json -p 2 -m 4 -v 2
  fails 2 "--stages-per-rank makes the stages of a chain"
  hints
  weft plan --graph skip.json -p 2 -m 4 --for pytorch
  fails 2 "--for does not go with --graph"
  weft plan --graph skip.json -p 2 --global-batch 8 --stage-ranks 0,0,1,1
  fails 2 "--global-batch chooses the ranks"
  weft plan --graph skip.json -p 2 -m 4 --stage-ranks 0,0,1,1 --placement loop
  fails 2 "--placement and --stage-ranks both place the stages"
  weft plan --graph skip.json -p 3 -m 4 --placement v
  fails 2 "4 stages on 3 ranks make no v"
  weft plan --graph skip.json -p 2 -m 10000000
  fails 2 "are more than the 16777216 that a plan of a graph may have"
  weft plan --graph skip.json -p 2 -m 4 --memory 0.1
  fails 1 "the least is 1"
  weft gen Interleaved1F1B --graph skip.json -m 4 -p 1
  fails 2 "the graph has 4 stages, and Interleaved1F1B on 1 rank has 2 on each"
  [[ $stderr == *"hint: use p = 2, or v = 4"* ]]
  weft gen ZBVZeroBubble --graph skip.json -m 4 -p 1
  [[ $stderr == *$'hint: use p = 2'* && $stderr != *"v ="* ]]
  weft gen 1F1B --graph skip.json -m 4 --for pytorch
  fails 2 "--for does not go with --graph"
}

@test "plan --global-batch for a graph leaves out candidates that cannot be" {
  echo '{"schema": "weft-graph/1", "stages": 5, "edges": [{"from": 0, "to": 1}, {"from": 1, "to": 2},
    {"from": 2, "to": 3}, {"from": 3, "to": 4}, {"from": 0, "to": 3}]}' >five.json
  weft plan --graph five.json -p 4 --global-batch 8 --placement loop --effort 0.01 --json
  succeeds
  [ "$(jq -c '[.candidates[] | [.ranks, .placement]]' <<<"$output")" = '[[1,"loop"]]' ]
  weft plan --graph five.json -p 4 --global-batch 2 --placement v
  fails 2 "with equally many stages on each rank, as in a v"
  weft plan --graph five.json -p 4 --global-batch 8 --effort 0.01 --json
  succeeds
  [ "$(jq '[.candidates[] | select(.placement == "inferred" and .schedule)] | length' <<<"$output")" = 0 ]
  weft plan --graph five.json -p 4 --global-batch 16 --memory 1
  fails 1 "no candidate fits into a memory of 1 per rank on the placements tried; the least is 2: a pipeline of 4 ranks"
  weft plan --graph five.json -p 4 --global-batch 1600000 --memory 4
  fails 1 "the least is 5: a pipeline of 1 rank"
  weft plan --graph five.json -p 4 --global-batch 16 --memory 2 --effort 0.01 --json
  succeeds
  # Five activations on one rank, or on two: whatever the placement, some rank has more than two.
  [ "$(jq -c '[.candidates[] | [.ranks, .bound != null]] | sort' <<<"$output")" = '[[1,false],[2,false],[4,true]]' ]
  weft plan --graph five.json -p 1 --global-batch 1600000
  fails 2 "1600000 microbatches with 25 actions and messages each are more than"
}

@test "plan for a graph: placements, speeds of ranks, memory, replicas, signals" {
  echo '{"schema": "weft-graph/1", "stages": 4, "edges": [{"from": 0, "to": 2}, {"from": 1, "to": 2},
    {"from": 2, "to": 3}, {"from": 0, "to": 3}]}' >skip.json
  weft plan --graph skip.json -p 2 -m 4 --slow 1=3 -o plan.csv
  succeeds
  [[ $output == *"placement "*"ranks of stages   "* ]]
  weft plan --graph skip.json -p 2 -m 4 --slow 1=3 --json -o plan.csv
  succeeds
  [ "$(jq '.stage_ranks | length' <<<"$output")" = 4 ]
  [ "$(jq '.open_bound <= .bound and .bound <= .makespan' <<<"$output")" = true ]
  weft plan --graph skip.json -p 4 -m 4 --pareto --effort 0.1
  succeeds
  [[ $output == *$'\n'"no schedule on the placements tried fits into less than 1; "* ]]
  weft plan --graph skip.json -p 4 -m 4 --stage-ranks 0,1,2,3 --pareto --effort 0.1
  [[ $output == *$'\n'"no schedule fits into less than 1; "* ]]
  weft plan --graph skip.json -p 4 -m 4 --pareto --effort 0.1 --json
  [ "$(jq '.least_memory == 1 and .memory_bound == 1' <<<"$output")" = true ]
  weft plan --graph skip.json -p 4 --global-batch 8 --effort 0.1 -o plan.csv
  succeeds
  [[ $output == *"ranks of stages"*"best: "* ]]
  "$WEFT" lower plan.csv | "$WEFT" verify
  jq -n '{schema: "weft-graph/1", stages: 32, edges: ([range(31) | {from: ., to: (. + 1)}]
    + [range(0; 28; 2) | {from: ., to: (. + 4)}])}' >long.json
  env --default-signal=INT,TERM "$WEFT" plan --graph long.json -p 32 -m 64 --memory 16 \
    --effort 1000000 -o plan.csv >out 2>err 3>&- &
  pid=$!
  await_handlers "$pid"
  sleep 0.3
  kill -s INT "$pid"
  await_end 60 "$pid" "weft plan"
  [ "$status" -eq 130 ]
  has "stopped by SIGINT" err
  "$WEFT" lower plan.csv | "$WEFT" verify
}
