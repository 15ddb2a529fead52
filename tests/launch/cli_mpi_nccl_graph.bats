#!/usr/bin/env bats
# A graph per rank over NCCL: the bits of steps action by action and of one process, what is no
# graph and why, and failures while graphs run.
# Not under sanitizers: whole jobs take long.
# shellcheck disable=SC2030,SC2031,SC2154
load ../setup/cli_setup
load ../setup/mpi_setup
load ../setup/nccl_setup

setup_file() {
  nccl_begin
}
teardown_file() {
  mpi_machine_end
}

model=(--layers 6 --dim 32 --heads 2 --context 16 --batch 8 -m 4 --json --steps 3 --device cuda)

# same RANKS QUEUES WORDS...: as many processes end with the parameters of one, which are in
# $expected then.
same() {
  local words=("${@:3}")
  run --separate-stderr "$WEFT" train --data data.txt "${model[@]}" "${words[@]}"
  expected=$(hash)
  [[ $expected =~ ^[0-9a-f]{16}\ cuda$ ]]
  per_rank "seed=$1,queues=$2" "seed=$2"
  mpi_run -n "$1" ./weft train --data data.txt "${model[@]}" "${words[@]}"
  [ "$status" -eq 0 ]
  [ "$(hash)" = "${expected% *} nccl" ] || { echo "$*: $(hash) instead of $expected" >&2; return 1; }
  is_sound "$1"
  [ "$(launches 0)" -gt 0 ]
}

@test "graphs over NCCL give the parameters of one process, on one hardware queue and on many" {
  local expected
  mpi_launcher "$(mpi_names | head -n 1)"
  seq 1 900 >data.txt
  same 2 8 -p 2 --schedule ZBVZeroBubble
  mpi_run -n 2 ./weft train --data data.txt "${model[@]}" -p 2 --schedule ZBVZeroBubble --eager
  [ "$(hash)" = "${expected% *} nccl" ]
  is_sound 2
  [ -z "$(launches 0)" ]
  same 3 1 -p 3 --schedule Interleaved1F1B
  same 2 8 -p 1 --dp 2 # without messages
  # Steps that follow each other are replayed: what replicas sum after them is where it was recorded.
  same 4 8 -p 2 --dp 2 --shard grads --eval-every 0 --steps 4
  [ "$(launches 0)" -eq 3 ]
  same 4 1 -p 2 --dp 2 --shard full --tied --eval-every 0 --steps 4
  mpi_is_tidy
}

# steps RANKS WORDS...: weft run, and how many of five steps were graphs.
steps() {
  mpi_run -n "$1" ./weft run t.csv --device cuda --f 1 --b 2 --steps 5 --json "${@:2}"
  [ "$status" -eq 0 ]
  jq -r .graph_steps <<<"$output"
}

@test "what is no graph over NCCL, and why" {
  mpi_launcher "$(mpi_names | head -n 1)"
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  per_rank seed=1 seed=1
  [ "$(steps 2)" -eq 4 ]
  is_sound 2
  [ "$(steps 2 --eager)" -eq 0 ]
  per_rank "" "" 1 fail=cuGraphInstantiate:1 # of rank 1: nobody has a graph then
  mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --steps 5 --json
  [ "$(jq -r .graph_steps <<<"$output")" -eq 0 ]
  [[ $(jq -r .no_graph <<<"$output") == "rank 1: it cannot be recorded as a CUDA graph: cuGraphInst"* ]]
  is_sound 2
  per_rank
  "$WEFT" gen Interleaved1F1B -p 4 -m 4 >table.csv
  "$WEFT" lower table.csv >t.csv # in PyTorch's order, SENDs wait behind RECVs of later messages
  mpi_run -n 4 ./weft run t.csv --device cuda --f 1 --b 2 --json
  [[ $(jq -r .no_graph <<<"$output") == "one transfer at a time per rank"*longer* ]]
  mv table.csv t.csv
  [ "$(steps 4)" -eq 4 ]
  # Without blocking ranks it ends, but not with one transfer at a time.
  cat >t.csv <<END
0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3,2RECV_F0,2F0,2RECV_F1,2F1,2RECV_F2,2F2,2RECV_F3,2F3
1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_F2,1F2,1SEND_F2,1RECV_F3,1F3,1SEND_F3
END
  mpi_run -n 2 ./weft run t.csv --unchecked --device cuda --f 1 --json
  [ "$status" -eq 0 ]
  [[ $(jq -r .no_graph <<<"$output") == "the program would hang"*"channel model nccl-world"* ]]
  mpi_is_tidy
}

# skips SCHEDULE: t.csv, a table of four stages with two skip connections.
skips() {
  echo '{"schema": "weft-graph/1", "stages": 4, "edges": [{"from": 0, "to": 1}, {"from": 1, "to": 2},
    {"from": 2, "to": 3}, {"from": 0, "to": 3}, {"from": 0, "to": 2}]}' >skip.json
  "$WEFT" gen "$1" --graph skip.json -m 4 >t.csv
}

@test "steps of stages that form a graph are graphs over NCCL, and failures in them are named" {
  mpi_launcher "$(mpi_names | head -n 1)"
  local schedule
  for schedule in 1F1B ZBH1; do
    skips "$schedule"
    per_rank "seed=5,queues=$([ "$schedule" = ZBH1 ] && echo 1 || echo 8)" seed=5
    [ "$(steps 4 --i 1 --w 1)" -eq 4 ]
    is_sound 4
  done
  per_rank "" "die=transfer:90@2"
  mpi_run -n 4 ./weft run t.csv --device cuda --f 1 --i 1 --w 1 --steps 50 --stall-limit 5
  ends_with 75
  reports "rank 2 (" "was killed by signal 9 (SIGKILL)"
  per_rank "" "" 3 hang=weft_spin:27
  mpi_run -n 4 ./weft run t.csv --device cuda --f 1 --i 1 --w 1 --steps 50 --stall-limit 2
  ends_with 75
  reports "rank 3 (" " is in 3" "GPU 0 has not ended its"
  # A rank that receives from both before it sends to either: one communicator for all would hang.
  cat >t.csv <<END
#graph,0>1,0>2,1>2
0F0,0SEND_F0,0F1,0SEND_F1,0SEND_F0>2,0SEND_F1>2
1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1
2RECV_F0<0,2RECV_F0,2F0,2RECV_F1<0,2RECV_F1,2F1
END
  per_rank
  mpi_run -n 3 ./weft run t.csv --unchecked --device cuda --f 1 --json
  [ "$status" -eq 0 ]
  [[ $(jq -r .no_graph <<<"$output") == "the program would hang"*"channel model nccl-world"* ]]
  mpi_is_tidy
}

@test "a rank that dies, a transfer that fails and a kernel that hangs in a graph are named" {
  mpi_launcher "$(mpi_names | head -n 1)"
  "$WEFT" gen 1F1B -p 3 -m 4 >t.csv
  per_rank "" "die=transfer:60@1"
  mpi_run -n 3 ./weft run t.csv --device cuda --f 1 --b 2 --steps 50 --stall-limit 5
  ends_with 75
  reports "rank 1 (" "was killed by signal 9 (SIGKILL)"
  per_rank "" "async=60:3@1"
  mpi_run -n 3 ./weft run t.csv --device cuda --f 1 --b 2 --steps 500 --stall-limit 5
  ends_with 70
  reports "rank 1" "internal error" "NCCL_DEBUG=INFO"
  per_rank "" "fail=ncclSend:13:3@1" # while it is recorded
  mpi_run -n 3 ./weft run t.csv --device cuda --f 1 --b 2 --steps 50 --stall-limit 5
  ends_with 70
  reports "rank 1" "while the step was recorded as a CUDA graph" "internal error" "eager steps"
  per_rank "" "" 1 hang=weft_spin:45
  mpi_run -n 3 ./weft run t.csv --device cuda --f 1 --b 2 --steps 50 --stall-limit 2
  ends_with 75
  reports "rank 1 (" "is in 1B1" "GPU 0 has not ended its backward"
  mpi_is_tidy
}
