#!/usr/bin/env bats
# weft train over NCCL: more schedules, replicas and blows than cli_mpi_nccl.bats.
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

# hash_of WORDS...: the parameters at the end of a training.
hash_of() {
  run --separate-stderr "$@" train --data data.txt "${model[@]}" "${words[@]}" 9<&-
  [ "$status" -eq 0 ] || { echo "$*: $stderr" >&2; return 1; }
  jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output"
}

# trainings: reads lines of ranks and words; all seeds have the parameters of one process.
trainings() {
  local ranks line seed expected found words queues=(0 1 4 32)
  mpi_launcher openmpi
  seq 1 900 >data.txt
  model=(--layers 14 --dim 32 --heads 2 --context 16 --batch 16 -m 4 --json --steps 2 --device cuda)
  while read -r ranks line <&9; do
    read -ra words <<<"$line"
    expected=$(hash_of "$WEFT")
    [[ $expected =~ ^[0-9a-f]{16}$ ]]
    for seed in 1 2 3; do
      export WEFT_FAKE_CUDA=seed=$seed,devices=$seed,queues=${queues[seed]} WEFT_FAKE_NCCL=seed=$seed
      found=$(hash_of "${launcher[@]}" -n "$ranks" "$WEFT")
      unset WEFT_FAKE_CUDA WEFT_FAKE_NCCL
      [ "$found" = "$expected" ] || { echo "$line seed $seed: $found, $expected" >&2; return 1; }
    done
  done
}

@test "training over NCCL gives the parameters of one process, on every schedule" {
  mpi_needs openmpi
  trainings 9<<'END'
2 -p 2 --schedule GPipe
2 -p 2 --schedule 1F1B --tied
2 -p 2 --schedule Eager1F1B
2 -p 2 --schedule Interleaved1F1B
2 -p 2 --schedule InterleavedZeroBubble
2 -p 2 --schedule LoopedBFS
2 -p 2 --schedule ZBH1
2 -p 2 --schedule ZBVZeroBubble --tied
2 -p 2 --schedule DualPipeV
3 -p 3 --schedule 1F1B
4 -p 4 --schedule ZBVZeroBubble
4 -p 4 --schedule ZBH1 --tied
END
}

@test "training over NCCL gives the parameters of one process, however replicas shard" {
  mpi_needs openmpi
  trainings 9<<'END'
2 -p 1 --dp 2
2 -p 1 --dp 2 --shard grads
2 -p 1 --dp 2 --shard full --tied
3 -p 1 --dp 3 --batch 12
3 -p 1 --dp 3 --shard full --batch 12
4 -p 1 --dp 4 --shard full
4 -p 1 --dp 4 --shard grads --tied
4 -p 2 --dp 2
4 -p 2 --dp 2 --tied --schedule ZBVZeroBubble
4 -p 2 --dp 2 --shard grads --tied
4 -p 2 --dp 2 --shard grads --schedule Interleaved1F1B
4 -p 2 --dp 2 --shard full --tied --schedule GPipe
4 -p 2 --dp 2 --shard full --schedule ZBVZeroBubble
4 -p 2 --dp 2 --shard full --schedule InterleavedZeroBubble
END
}

# deaths WHERE FIRST BETWEEN COUNT: SIGKILL of ranks in turns, at so many calls.
deaths() {
  local k call
  mpi_needs openmpi
  mpi_launcher openmpi
  seq 1 900 >data.txt
  for ((k = 0; k < $4; k++)); do
    call=$(($2 + $3 * k))
    wound die "$1" $call $((k % 4)) || return 1
    is_named die $((k % 4)) || { echo "$1: call $call of rank $((k % 4))" >&2; return 1; }
  done
  mpi_is_tidy
}

@test "a rank is killed in forty calls of NCCL" {
  deaths nccl 1 7 40
}

@test "a rank is killed in forty calls of CUDA" {
  deaths cuda 3 50 40
}

@test "a rank is killed in forty calls of MPI" {
  deaths mpi 1 1 40
}

@test "a rank is stopped in twelve calls of NCCL" {
  local k
  mpi_needs openmpi
  mpi_launcher openmpi
  seq 1 900 >data.txt
  for ((k = 0; k < 12; k++)); do
    wound stop nccl $((4 + 19 * k)) $((k % 4)) || return 1
    is_named stop $((k % 4)) || { echo "call $((4 + 19 * k)) of rank $((k % 4))" >&2; return 1; }
  done
  mpi_is_tidy
}
