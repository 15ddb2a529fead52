#!/usr/bin/env bats
# weft run and weft train over NCCL: every rank a process with one GPU, on the driver and the NCCL
# without a GPU of tests/device/fake_cuda. The bits of one process, its limits and its failures.
# shellcheck disable=SC2030,SC2031,SC2154
load ../setup/cli_setup
load ../setup/mpi_setup

setup_file() {
  mpi_machine_begin
  export OMPI_MCA_btl=^tcp UCX_LOG_LEVEL=error # one host
  export LD_LIBRARY_PATH=$FAKE_NCCL:$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
teardown_file() {
  mpi_machine_end
}

# per_rank CUDA NCCL: writes ./weft, the command with such fake libraries; what the driver of a rank
# found is in report.RANK.
per_rank() {
  cat >weft <<END
#!/bin/sh
WEFT_FAKE_CUDA=report=$PWD/report.\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}${1:+,$1} WEFT_FAKE_NCCL=$2 \
exec "$WEFT" "\$@"
END
  chmod +x weft
  rm -f report.*
}

# is_sound RANKS: no rank's driver found anything, and nothing is left on its GPU.
is_sound() {
  local what rank
  for ((rank = 0; rank < $1; rank++)); do
    for what in races deadlocks faults early pending blocks; do
      grep -qx "$what 0" "report.$rank" || { echo "rank $rank: $(cat "report.$rank")" >&2; return 1; }
    done
  done
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

model=(--layers 6 --dim 32 --heads 2 --context 16 --batch 8 -m 4 --json --steps 2 --device cuda)

# hash: of the parameters at the end.
hash() {
  jq -r 'select(.parameters_hash) | .parameters_hash + " " + .transport' <<<"$output"
}

# same RANKS WORDS...: as many processes end with the parameters of one.
same() {
  local expected
  run --separate-stderr "$WEFT" train --data data.txt "${model[@]}" "${@:2}"
  expected=$(hash)
  [[ $expected =~ ^[0-9a-f]{16}\ cuda$ ]]
  per_rank "seed=$1" "seed=$1"
  mpi_run -n "$1" ./weft train --data data.txt "${model[@]}" "${@:2}"
  [ "$status" -eq 0 ]
  [ "$(hash)" = "${expected% *} nccl" ] || { echo "$*: $(hash) instead of $expected" >&2; return 1; }
  is_sound "$1"
}

@test "training over NCCL gives the parameters of one process" {
  mpi_launcher "$(mpi_names | head -n 1)"
  seq 1 900 >data.txt
  same 2 -p 2 --schedule ZBVZeroBubble --tied
  same 4 -p 2 --dp 2 --shard full --schedule ZBH1
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
  export WEFT_NCCL_CTAS=2
  local sms
  for sms in 7 8; do
    per_rank "sms=$sms"
    mpi_run -n 2 ./weft run t.csv --device cuda
    ends_with 2
    reports "has $sms multiprocessors, and transfers of its 2 ranks could hold 8 of them" \
      "4 communicators of up to 2 blocks" "WEFT_NCCL_CTAS=1"
  done
  per_rank sms=9
  mpi_run -n 2 ./weft run t.csv --device cuda
  [ "$status" -eq 0 ]
  per_rank sms=5,devices=2 # a GPU each: the sum is 4
  mpi_run -n 2 ./weft run t.csv --device cuda
  [ "$status" -eq 0 ]
}

@test "a rank that dies in a call of NCCL, or in which NCCL fails, ends the job and is named" {
  mpi_launcher "$(mpi_names | head -n 1)"
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  per_rank "" "die=ncclRecv:4@1"
  mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --stall-limit 5
  ends_with 75
  reports "rank 1 (" "was killed by signal 9 (SIGKILL)"
  per_rank "" "async=9:3@1" # an internal error, after nine transfers
  mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --steps 500 --stall-limit 5
  ends_with 70
  reports "rank 1" "internal error" "NCCL_DEBUG=INFO"
  mpi_is_tidy
}
