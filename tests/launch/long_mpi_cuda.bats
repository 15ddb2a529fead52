#!/usr/bin/env bats
# weft train on MPI with stages on GPUs: more schedules, replicas and MPIs than cli_mpi_cuda.bats.
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

model=(--layers 14 --dim 32 --heads 2 --context 16 --batch 16 -m 4 --json --steps 2 --device cuda)

# hash_of WORDS...: the parameters at the end of a training.
hash_of() {
  run --separate-stderr "$@" train --data data.txt "${model[@]}" "${words[@]}" 9<&-
  [ "$status" -eq 0 ] || return 1
  jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output"
}

@test "training on GPUs of processes gives the parameters of one process, in every way" {
  local mpi ranks line seed expected found words
  seq 1 900 >data.txt
  while read -r ranks line <&9; do
    read -ra words <<<"$line"
    expected=$(hash_of "$WEFT")
    [[ $expected =~ ^[0-9a-f]{16}$ ]]
    for mpi in $(mpi_names); do
      mpi_launcher "$mpi"
      for seed in 1 2 3; do
        export WEFT_FAKE_CUDA=seed=$seed,devices=$seed
        found=$(hash_of "${launcher[@]}" -n "$ranks" "$WEFT")
        unset WEFT_FAKE_CUDA
        [ "$found" = "$expected" ] || { echo "$mpi $line seed $seed: $found, $expected" >&2; return 1; }
      done
    done
  done 9<<'END'
1 -p 1
2 -p 2 --schedule GPipe
2 -p 2 --schedule 1F1B --tied
2 -p 2 --schedule Eager1F1B
2 -p 2 --schedule Interleaved1F1B
2 -p 2 --schedule InterleavedZeroBubble
2 -p 2 --schedule ZBH1
2 -p 2 --schedule ZBVZeroBubble --tied
2 -p 2 --schedule DualPipeV
3 -p 3 --schedule 1F1B
4 -p 4 --schedule ZBVZeroBubble
4 -p 4 --schedule ZBH1 --tied
2 -p 1 --dp 2
2 -p 1 --dp 2 --shard full --tied
4 -p 2 --dp 2
4 -p 2 --dp 2 --shard grads --tied
4 -p 2 --dp 2 --shard full --schedule ZBVZeroBubble
4 -p 1 --dp 4 --shard full
END
}
