#!/usr/bin/env bats
# weft train on MPI: the same parameters as on threads, whatever the MPI, the schedule, the
# number of replicas and what they share out. Tiny models, a few steps.
# Not under sanitizers: whole jobs take long.
# shellcheck disable=SC2030,SC2031,SC2154
load ../../tests/setup/cli_setup

setup_file() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_LOG_LEVEL=error
  export OMPI_MCA_btl=^tcp # one host; Open MPI 5 warns of networks that it would not use
  mpis=
  for mpi in openmpi mpich; do
    if [ -e "$WEFT_BUILD_DIR/lib/weft-mpi-$mpi.so" ]; then
      mpis+=" $mpi"
    fi
  done
  export mpis
}

needs_mpi() {
  [ -n "$mpis" ] || skip "built without MPI: libopenmpi-dev openmpi-bin"
}

model=(--layers 6 --dim 16 --heads 2 --context 16 --batch 8 --steps 4)

# train RANKS WORDS: under $mpi, or on threads when RANKS is 0; by $program, if given.
train() {
  local start=()
  [ -e data.txt ] || seq 1 900 >data.txt
  if [ "$1" -gt 0 ]; then
    start=(timeout --kill-after=5 120 "mpirun.$mpi")
    [ "$mpi" = mpich ] || start+=(--oversubscribe)
    start+=(-n "$1")
  fi
  run --separate-stderr "${start[@]}" "${program:-$WEFT}" train --data data.txt "${model[@]}" "${@:2}"
}

# hash_of RANKS WORDS
hash_of() {
  train "$1" --json "${@:2}"
  succeeds
  hash=$(jq -r 'select(.parameters_hash) | .parameters_hash' <<<"$output")
  [[ $hash =~ ^[0-9a-f]{16}$ ]]
}

# same RANKS WORDS: comes to $expected, with a line per step and one at the end.
same() {
  hash_of "$@"
  if [ "$hash" != "$expected" ]; then
    echo "$mpi $*: $hash instead of $expected" >&2
    return 1
  fi
  [ "${#lines[@]}" -eq 5 ]
  [ "$(jq -r 'select(.transport) | .transport' <<<"$output")" = mpi ]
}

@test "parameters are those of threads, on every schedule" {
  needs_mpi
  for words in '1F1B 2' 'ZBVZeroBubble 2' 'Interleaved1F1B 2' '1F1B 4' 'ZBH1 4' 'GPipe 3'; do
    read -r schedule ranks <<<"$words"
    hash_of 0 -m 4 --schedule "$schedule" -p "$ranks"
    expected=$hash
    for mpi in $mpis; do
      same "$ranks" -m 4 --schedule "$schedule"
    done
  done
}

@test "parameters are those of threads when the schedule changes on the way" {
  needs_mpi
  hash_of 0 -m 8 --steps 8 -p 3 --dp 1
  expected=$hash
  for mpi in $mpis; do
    hash_of 3 -m 8 --steps 8 --schedule auto
    [ "$hash" = "$expected" ]
    [ "$(jq -s '.[-1].replanned' <<<"$output")" = 1 ]
  done
}

@test "parameters are those of threads, for replicas and whatever they share out" {
  needs_mpi
  hash_of 0 -m 2 --dp 2
  expected=$hash
  for mpi in $mpis; do
    same 4 -m 2 --dp 2 --shard none
    same 4 -m 2 --dp 2 --shard grads
    same 4 -m 2 -p 2 --shard full
    same 2 -m 2 --dp 2 --shard full
  done
}

@test "rank 0 says what is said, draws, and samples; all write the checkpoint" {
  needs_mpi
  for mpi in $mpis; do
    train 2 -m 4 --checkpoint model -o t.html --profile costs.json --log log.json
    succeeds
    [ "$(grep -c '^pipeline  2 ranks, 2 stages, 1F1B, .*, mpi$' <<<"$output")" -eq 1 ]
    [ "$(grep -c '^parameters_hash' <<<"$output")" -eq 1 ]
    [ "$(grep -c '^Sample:$' <<<"$output")" -eq 1 ]
    [ "$(wc -l <log.json)" -eq 5 ]
    [ -s t.html ]
    "$WEFT" sim --costs costs.json <("$WEFT" gen 1F1B -p 2 -m 4) >/dev/null
    "$WEFT" sample --checkpoint model --prompt 1 --tokens 5 >/dev/null
    rm -r model t.html costs.json log.json
  done
}

@test "a checkpoint of MPI goes on on threads, and back, with other ranks and replicas" {
  needs_mpi
  hash_of 0 -m 4
  expected=$hash
  for mpi in $mpis; do
    rm -rf a b
    train 3 -m 4 --checkpoint a --checkpoint-every 2 --checkpoint-keep 0
    succeeds
    hash_of 0 -m 4 --resume a/step-00000002 -p 2
    [ "$hash" = "$expected" ]
    train 0 -m 4 --checkpoint b --checkpoint-every 2 --checkpoint-keep 0
    succeeds
    hash_of 4 -m 4 --resume b/step-00000002 --schedule ZBH1
    [ "$hash" = "$expected" ]
    # Other replicas add up in another order; it works all the same.
    hash_of 4 --resume a/step-00000002 --dp 2 -m 2 --shard full
    hash_of 2 --resume b/step-00000002 --dp 2 -m 1 -p 1
  done
}

@test "processes and ranks must fit, and data must be the same" {
  needs_mpi
  cat >odd <<'END'
#!/bin/bash
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || exec "$WEFT" "${@//data.txt/other.txt}"
exec "$WEFT" "$@"
END
  chmod +x odd
  seq 1 900 >data.txt
  seq 2 901 >other.txt
  for mpi in $mpis; do
    train 3 -m 2 --dp 2
    [ "$status" -eq 2 ]
    [[ $stderr == *"weft: the job has 3 processes: 2 replicas of 1 rank need 2"*"mpirun -n 2 "* ]]
    train 3 -m 2 -p 2
    [ "$status" -eq 2 ]
    [[ $stderr == *"the job has 3 processes: 1 replica of 2 ranks need 2"* ]]
    program=./odd train 3 -m 4
    [ "$status" -eq 75 ]
    [[ $stderr == *"rank 1 has another configuration than the others"* ]]
  done
}

@test "a folder of checkpoints is locked: a second job names the process that has it" {
  needs_mpi
  seq 1 900 >data.txt
  for mpi in $mpis; do
    rm -rf c
    "mpirun.$mpi" -n 2 "$WEFT" train --data data.txt "${model[@]}" --steps 100000 -m 4 \
      --checkpoint c --checkpoint-every 20 --json >out 2>err 3>&- &
    local pid=$! owner=
    await 60 "the first checkpoint" compgen -G 'c/step-*/manifest.json'
    owner=$(<c/.weft-lock)
    [[ $owner == "process "*" on $(hostname) since "* ]]
    for ranks in 0 2; do
      train "$ranks" -m 4 --steps 100000 --checkpoint c
      [ "$status" -eq 2 ]
      [ "$output" = "" ]
      [ "$(grep -c "another training writes its checkpoints into 'c': $owner" <<<"$stderr")" -eq 1 ]
      hints
    done
    kill -TERM $pid
    await_end 60 $pid "the first job"
    # The launcher may have killed rank 0 before it removed the file; the lock is gone all the same.
    await 60 "the end of the lock" flock --nonblock c/.weft-lock true
  done
}

@test "a stage that never returns ends the job after the stall limit, and nothing is left" {
  needs_mpi
  seq 1 900 >data.txt
  stuck_library 0
  cat >stuck <<'END'
#!/bin/bash
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || export LD_PRELOAD=$PWD/stuck.so
exec "$WEFT" "$@"
END
  chmod +x stuck
  for mpi in $mpis; do
    program=./stuck train 2 -m 4 --stall-limit 1 --checkpoint "$PWD/c"
    [ "$status" -eq 75 ]
    [[ $stderr == *"weft: rank 0: rank 0 has waited "*" for rank 1 ("*"), which is in 1F"* ]]
    [ ! -e c/.weft-lock ]
    [ -z "$(ls c)" ]
    await 10 "the end of all processes" has_no_process "$PWD/c"
  done
}

@test "all ranks of a training that diverges end with status 1, and one says why" {
  needs_mpi
  for mpi in $mpis; do
    train 4 -m 2 --dp 2 --lr 1000 --clip 0 --weight-decay 1000 --warmup 0 --json
    [ "$status" -eq 1 ]
    [ "$(grep -c 'training has diverged at step' <<<"$stderr")" -eq 1 ]
    [ "$(jq -s '.[-1].stopped_by' <<<"$output")" = '"divergence"' ]
  done
}
