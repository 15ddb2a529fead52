#!/usr/bin/env bats
# weft run and weft train over NCCL: every rank a process with one GPU, on the driver and the NCCL
# without a GPU of tests/device/fake_cuda. The bits of one process, its limits and its failures.
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

@test "run over NCCL: by default where it is, on one hardware queue and on many" {
  mpi_launcher "$(mpi_names | head -n 1)"
  local schedule seed=0
  for schedule in 1F1B ZBVZeroBubble; do
    "$WEFT" gen "$schedule" -p 2 -m 4 >t.csv
    seed=$((seed + 1))
    per_rank "seed=$seed,queues=$((seed == 1 ? 1 : 8))" "seed=$seed"
    mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --json -o report.json
    [ "$status" -eq 0 ]
    is_sound 2
    [ "$(jq -r .transport report.json)" = nccl ]
  done
  mpi_is_tidy
}

@test "training over NCCL gives the parameters of one process" {
  mpi_launcher "$(mpi_names | head -n 1)"
  seq 1 900 >data.txt
  same 2 -p 2 --schedule ZBVZeroBubble --tied
  same 4 -p 2 --dp 2 --shard full --schedule ZBH1
  same 3 -p 1 --dp 3 --shard grads --batch 12
  same 4 -p 2 --dp 2 --tied
  same 3 -p 3 --skips --predict-tokens 2 --split 6,0,0 --schedule ZBH1
  mpi_is_tidy
}

@test "sums in NCCL's own order: other bits, and the option is for NCCL" {
  local expected
  mpi_launcher "$(mpi_names | head -n 1)"
  seq 1 900 >data.txt
  per_rank
  mpi_run -n 3 ./weft train --data data.txt "${model[@]}" -p 1 --dp 3 --batch 12
  [ "$status" -eq 0 ]
  expected=$(hash)
  mpi_run -n 3 ./weft train --data data.txt "${model[@]}" -p 1 --dp 3 --batch 12 --sum-order nccl
  [ "$status" -eq 0 ]
  [[ $(hash) =~ ^[0-9a-f]{16}\ nccl$ ]] && [ "$(hash)" != "$expected" ] # the fake adds backwards
  run --separate-stderr "$WEFT" train --data data.txt "${model[@]}" --sum-order nccl
  ends_with 2
  reports "--sum-order has no effect: it is for the transport nccl"
  mpi_is_tidy
}

@test "no NCCL, or one that is too old, is one report" {
  mpi_launcher "$(mpi_names | head -n 1)"
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  per_rank "" version=22506
  mpi_run -n 2 ./weft run t.csv --device cuda --transport nccl
  ends_with 69
  reports "libnccl.so.2 is NCCL 2.25.6, and 2.26 or later is needed" "install libnccl2"
  [ "$(grep -c "is needed" <<<"$stderr")" -eq 1 ]
  mpi_run -n 2 ./weft run t.csv --device cuda --json
  [ "$status" -eq 0 ]
  [ "$(jq -r .transport <<<"$output")" = mpi ]
}

@test "transfers that could hold all multiprocessors are refused, with the numbers" {
  mpi_launcher "$(mpi_names | head -n 1)"
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv # two communicators, each with an end on both ranks
  export NCCL_MAX_CTAS=2
  local sms
  for sms in 7 8; do
    per_rank "sms=$sms"
    mpi_run -n 2 ./weft run t.csv --device cuda
    ends_with 2
    reports "has $sms multiprocessors, and transfers of its 2 ranks could hold 8 of them" \
      "4 communicators of up to 2 blocks" "NCCL_MAX_CTAS=1"
  done
  per_rank sms=9
  mpi_run -n 2 ./weft run t.csv --device cuda
  [ "$status" -eq 0 ]
  per_rank sms=5,devices=2 # a GPU each: the sum is 4
  mpi_run -n 2 ./weft run t.csv --device cuda
  [ "$status" -eq 0 ]
}

@test "groups count among the blocks" {
  mpi_launcher "$(mpi_names | head -n 1)"
  seq 1 900 >data.txt
  export NCCL_MAX_CTAS=2 # two replicas of one stage: one communicator, with an end on both ranks
  per_rank sms=4
  mpi_run -n 2 ./weft train --data data.txt "${model[@]}" -p 1 --dp 2
  ends_with 2
  reports "has 4 multiprocessors, and transfers of its 2 ranks could hold 4 of them" \
    "2 communicators of up to 2 blocks"
  per_rank sms=5
  mpi_run -n 2 ./weft train --data data.txt "${model[@]}" -p 1 --dp 2
  [ "$status" -eq 0 ]
}

# blows FIRST: every second of these; two jobs at a time.
blows() {
  local k=0 how where call rank
  while read -r how where call rank; do
    if ((k++ % 2 == $1)); then
      wound "$how" "$where" "$call" "$rank" || return 1
      is_named "$how" "$rank" || { echo "$how $where $call $rank" >&2; return 1; }
    fi
  done <<'END'
die nccl 45 2
die nccl 150 3
die cuda 1500 1
die mpi 9 3
stop nccl 8 3
stop nccl 90 2
END
}

@test "a rank that is killed or stopped in training over NCCL ends the job, and is named" {
  local other
  mpi_needs openmpi
  mpi_launcher openmpi
  seq 1 900 >data.txt
  mkdir odd even
  cp data.txt odd
  mv data.txt even
  (
    cd odd
    blows 1
  ) &
  other=$!
  (
    cd even
    blows 0
  )
  wait "$other"
  mpi_is_tidy
}

@test "a rank whose GPU fails before the ranks are connected is named" {
  mpi_launcher "$(mpi_names | head -n 1)"
  seq 1 900 >data.txt
  local call
  for call in cuDevicePrimaryCtxRetain:1 cuStreamCreate:1 cuStreamCreate:3 cuEventCreate:1; do
    per_rank "" "" 1 "fail=$call"
    mpi_run -n 2 ./weft train --data data.txt "${model[@]}" -p 2
    ends_with 70
    reports "rank 1: ${call%:*} failed"
    [ "$(grep -c "failed" <<<"$stderr")" -eq 1 ]
  done
  mpi_is_tidy
}

@test "a rank that dies in a call of NCCL, or in which NCCL fails, ends the job and is named" {
  mpi_launcher "$(mpi_names | head -n 1)"
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  per_rank "" "die=ncclRecv:4@1"
  mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --stall-limit 5
  ends_with 75
  reports "rank 1 (" "was killed by signal 9 (SIGKILL)"
  per_rank "" "die=ncclCommFinalize:1@1" # when all is done
  mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --stall-limit 5
  ends_with 75
  reports "rank 1 (" "was killed by signal 9 (SIGKILL)"
  per_rank "" "die=ncclRecv:4@1,stuck_abort=1" # and NCCL does not end its communicators either
  mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --stall-limit 5
  ends_with 75
  reports "rank 1 (" "was killed by signal 9 (SIGKILL)"
  per_rank "" "async=9:3@1" # an internal error, after nine transfers
  mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --steps 500 --stall-limit 5
  ends_with 70
  reports "rank 1" "internal error" "NCCL_DEBUG=INFO"
  mpi_is_tidy
}

@test "processes that share a GPU by MPS share its connections" {
  mpi_launcher "$(mpi_names | head -n 1)"
  "$WEFT" gen 1F1B -p 4 -m 4 >t.csv
  mkdir mps
  touch mps/control
  export CUDA_MPS_PIPE_DIRECTORY=$PWD/mps NCCL_MAX_CTAS=2
  per_rank mps=120 # as a GPU has: 60 processes with 2
  mpi_run -n 4 ./weft run t.csv --device cuda --f 1 --b 2
  [ "$status" -eq 0 ]
  CUDA_DEVICE_MAX_CONNECTIONS=32 mpi_run -n 4 ./weft run t.csv --device cuda --f 1 --b 2
  ends_with 70
  reports "cuDevicePrimaryCtxRetain failed" "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" \
    "a smaller CUDA_DEVICE_MAX_CONNECTIONS lets more of them in"
}
