#!/usr/bin/env bats
# weft run on stages that form a graph: what is verified and simulated is executed.
# shellcheck disable=SC2154
load ../setup/cli_setup

# Stage 0 is frozen, a skip connection goes from 1 to 4, and stage 5 is a second loss.
setup_graph() {
  cat >g.csv <<'EOF'
#graph,0>3F,1>2,1>4,2>3,2>5,3>4
0F0,1F0,1F1,0F1,1B0,1B1
2F0,3F0,5F0,5B0,2F1,3F1,5F1,5B1,3B0,2B0,3B1,2B1
4F0,4B0,4F1,4B1
EOF
}

@test "run executes a graph on threads and loopback, in every mode" {
  setup_graph
  for transport in threads loopback; do
    for comm in posted eager slots:1 rendezvous; do
      weft run g.csv --transport "$transport" --comm "$comm" --stage null
      succeeds
      [[ ${lines[0]} == "g.csv: 3 ranks, 6 stages, 2 microbatches, "* ]]
    done
  done
}

@test "run on loopback takes exactly the simulated time of a graph" {
  setup_graph
  "$WEFT" run g.csv --transport loopback --f 2 --b 3 --hop 1 --json >r.json
  jq -e '.measured_makespan == .simulated_makespan and .simulated_makespan > 10' r.json
  jq -e 'all(.ranks[]; .busy == .simulated_busy and .idle == .simulated_idle)' r.json
}

@test "run --graph: a bare table, with the sizes of edges to the tick" {
  setup_graph
  tail -n +2 g.csv >bare.csv
  echo '{"schema": "weft-costs/1", "stages": [{"f": 2, "b": 3}],
    "hop": {"latency": 0.5, "bytes": 2, "bytes_per_unit": 4}}' >costs.json
  echo '{"schema": "weft-graph/1", "stages": ["image", "text", "join", "up", "head", "second"], "edges": [
    {"from": "image", "to": "up", "gradient": false, "bytes": 40}, {"from": "text", "to": "join"},
    {"from": "text", "to": "head", "bytes": 30, "gradient_bytes": 12}, {"from": "join", "to": "up"},
    {"from": "join", "to": "second"}, {"from": "up", "to": "head", "bytes": 1}]}' >g.json
  weft run bare.csv --transport loopback --costs costs.json
  [ "$status" -eq 1 ]
  "$WEFT" run bare.csv --graph g.json --transport loopback --costs costs.json --json >r.json
  jq -e '.measured_makespan == .simulated_makespan' r.json
  [ "$(jq .simulated_makespan r.json)" = "$("$WEFT" lower bare.csv --graph g.json |
    "$WEFT" sim --graph g.json --costs costs.json --json | jq .makespan)" ]
  weft run g.csv --transport loopback --costs costs.json --json
  [ "$(jq .simulated_makespan <<<"$output")" != "$(jq .simulated_makespan r.json)" ]
  weft run bare.csv --graph g.json --stage null -o run.html
  succeeds
  has '"stageNames":\["image","text","join"' run.html
  sed 's/"to": "up", "gradient": false/"to": "up"/' g.json >other.json
  weft run g.csv --graph other.json --stage null
  fails 2 "the row #graph of g.csv and the graph of other.json differ"
}

@test "a graph that hangs names the edges" {
  cat >h.csv <<'EOF'
#graph,0>1,0>2,1>2
0F0,0SEND_F0,0SEND_F0>2,0RECV_B0,0RECV_B0<2,0B0
2RECV_F0<0,1RECV_F0,1F0,2F0,2B0,1B0,1SEND_B0,2SEND_B0>0
EOF
  weft run h.csv --unchecked --comm rendezvous --transport loopback --stage null
  [ "$status" -eq 75 ]
  [[ $stderr == *"rank 1 waits in 2RECV_F0<0 for rank 0 (0SEND_F0>2)"* ]]
}
