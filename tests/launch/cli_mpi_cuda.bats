#!/usr/bin/env bats
# weft run and weft train on MPI with stages on GPUs: every rank a process with one GPU, on the
# driver without a GPU of tests/device/fake_cuda. The bits of one process, and its failures.
# Not under sanitizers: whole jobs take long.
# shellcheck disable=SC2030,SC2031,SC2154
load ../setup/cli_setup
load ../setup/mpi_setup

setup_file() {
  mpi_machine_begin
  export OMPI_MCA_btl=^tcp UCX_LOG_LEVEL=error # one host
  export LD_LIBRARY_PATH=$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
teardown_file() {
  mpi_machine_end
}

# per_rank OPTIONS: writes ./weft, the command with that fake driver, whose findings are in
# report.RANK.
per_rank() {
  cat >weft <<END
#!/bin/sh
WEFT_FAKE_CUDA=report=$PWD/report.\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}${1:+,$1} exec "$WEFT" "\$@"
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

@test "run on MPI with GPUs: each rank has one, and nothing is wrong with what it is given" {
  local mpi schedule
  for mpi in $(mpi_names); do
    mpi_launcher "$mpi"
    for schedule in 1F1B ZBVZeroBubble; do
      "$WEFT" gen "$schedule" -p 2 -m 4 >t.csv
      per_rank seed=7,devices=2
      mpi_run -n 2 ./weft run t.csv --device cuda --f 1 --b 2 --json -o report.json
      [ "$status" -eq 0 ]
      is_sound 2
      [ "$(cat report.? | grep -cx "pageable copies 0")" -eq 2 ] # messages are in pinned memory
      [ "$(jq -r .transport report.json)" = mpi ]
    done
  done
  mpi_is_tidy
}

@test "run on MPI with GPUs: ranks take them in turns, or those of --gpus" {
  mpi_launcher "$(mpi_names | head -n 1)"
  "$WEFT" gen 1F1B -p 4 -m 4 >t.csv
  # GPU 3 does not exist, and only the last rank would have it.
  per_rank devices=3
  mpi_run -n 4 ./weft run t.csv --device cuda --gpus 0,1,2,3
  [ "$status" -eq 2 ]
  reports "rank 3: there is no GPU 3: this machine has 3, from 0 on"
  mpi_run -n 4 ./weft run t.csv --device cuda
  [ "$status" -eq 0 ]
  is_sound 4
  [ "$(grep -c 'note: 4 ranks share the 3 GPUs of this host$' <<<"$stderr")" -eq 1 ]
  per_rank devices=4
  mpi_run -n 4 ./weft run t.csv --device cuda
  [ "$status" -eq 0 ]
  [[ $stderr != *" share the "* ]]
  mpi_run -n 4 ./weft run t.csv --device cuda --partitions 2
  [ "$status" -eq 2 ]
  reports "--partitions splits GPUs between ranks of one process"
}

model=(--layers 6 --dim 32 --heads 2 --context 16 --batch 8 -m 4 --json --steps 2 --device cuda)

# hash: of the parameters at the end.
hash() {
  jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output"
}

# same RANKS WORDS...: as many processes end with the parameters of one.
same() {
  local expected
  run --separate-stderr "$WEFT" train --data data.txt "${model[@]}" "${@:2}"
  expected=$(hash)
  [[ $expected =~ ^[0-9a-f]{16}$ ]]
  per_rank "seed=$1,devices=2"
  mpi_run -n "$1" ./weft train --data data.txt "${model[@]}" "${@:2}"
  [ "$status" -eq 0 ]
  [ "$(hash)" = "$expected" ] || { echo "$*: $(hash) instead of $expected" >&2; return 1; }
  is_sound "$1"
}

@test "Open MPI: training on GPUs of processes gives the parameters of one process" {
  mpi_needs openmpi
  mpi_launcher openmpi
  seq 1 900 >data.txt
  same 2 -p 2 --tied
  same 4 -p 2 --dp 2 --shard full --schedule ZBH1
  same 2 -p 2 --tied --skips --predict-tokens 2
  mpi_is_tidy
}

@test "MPICH: training on GPUs of processes gives the parameters of one process" {
  mpi_needs mpich
  mpi_launcher mpich
  seq 1 900 >data.txt
  same 2 -p 2 --schedule ZBVZeroBubble --tied
  same 4 --dp 2 --shard grads
  same 4 -p 4 --skips --predict-tokens 2 --split 3,3,0,0 --schedule ZBH1
  mpi_is_tidy
}

@test "a rank with a GPU that is killed ends the job, and is named" {
  local mpi k=0
  for mpi in $(mpi_names); do
    mpi_launcher "$mpi"
    "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
    per_rank
    mpi_signal_at "$mpi" 1 $((9 + 5 * k++)) 9
    mpi_run -n 2 "${preloaded[@]}" ./weft run t.csv --device cuda --f 1 --b 2 --stall-limit 5
    [ -s signal_time ]
    ends_with 75
    reports "rank 1 (" "was killed by signal 9 (SIGKILL)"
  done
  mpi_is_tidy
}
