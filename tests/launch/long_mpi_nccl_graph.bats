#!/usr/bin/env bats
# Graphs over NCCL: every schedule on 2 to 4 processes, and every wait of a recording left out once.
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

model=(--layers 10 --dim 32 --heads 2 --context 16 --batch 16 -m 8 --json --steps 3 --device cuda)

@test "every schedule as graphs over NCCL: the parameters of one process" {
  local schedule ranks queues expected seed=0 found=0
  mpi_launcher "$(mpi_names | head -n 1)"
  seq 1 900 >data.txt
  for schedule in GPipe 1F1B Eager1F1B LoopedBFS Interleaved1F1B InterleavedZeroBubble ZBH1 \
    ZBVZeroBubble DualPipeV; do
    for ranks in 2 3 4; do
      run --separate-stderr "$WEFT" train --data data.txt "${model[@]}" -p "$ranks" --schedule "$schedule"
      [ "$status" -eq 0 ] || continue # not for so many ranks or microbatches
      expected=$(hash)
      for queues in 1 8; do
        seed=$((seed + 1))
        per_rank "seed=$seed,queues=$queues" "seed=$seed"
        mpi_run -n "$ranks" ./weft train --data data.txt "${model[@]}" -p "$ranks" --schedule "$schedule"
        [ "$status" -eq 0 ]
        [ "$(hash)" = "${expected% *} nccl" ] || { echo "$schedule $ranks $queues: $(hash)" >&2; return 1; }
        is_sound "$ranks"
        [ "$(launches 0)" -gt 0 ]
        found=$((found + 1))
      done
    done
  done
  echo "# $found trainings" >&3
  [ "$found" -ge 40 ]
}

# waits FILE: calls of cuStreamWaitEvent that it counts.
waits() {
  sed -n 's/^calls cuStreamWaitEvent //p' "$1"
}

# Without one of the waits, a race is found, the graph is refused, or the bits are others. Some
# waits are for what other edges order as well.
@test "a wait that a recording leaves out is noticed, or covered by others" {
  local words=(-p 2 --schedule 1F1B --eval-every 0) n first last expected covered=0 noticed=0
  mpi_launcher "$(mpi_names | head -n 1)"
  seq 1 900 >data.txt
  per_rank seed=1,queues=1 seed=1
  mpi_run -n 2 ./weft train --data data.txt "${model[@]}" "${words[@]}" --steps 1
  first=$(waits report.1)
  mpi_run -n 2 ./weft train --data data.txt "${model[@]}" "${words[@]}" --steps 2
  last=$(waits report.1)
  expected=$(hash)
  [ "$last" -gt "$first" ]
  for ((n = first + 1; n <= last; n++)); do
    per_rank seed=$n,queues=1 seed=$n 1 drop=cuStreamWaitEvent:$n
    mpi_run -n 2 ./weft train --data data.txt "${model[@]}" "${words[@]}" --steps 2 --stall-limit 5
    if [ "$status" -ne 0 ] || ! is_sound 2 2>/dev/null || [ -z "$(launches 1)" ] ||
      [ "$(hash)" != "$expected" ]; then
      noticed=$((noticed + 1))
    else
      covered=$((covered + 1))
      echo "# wait $n is covered by others" >&3
    fi
  done
  echo "# $noticed of $((last - first)) are noticed" >&3
  [ "$noticed" -gt "$covered" ]
}

@test "graphs of stages: a wait that a recording leaves out is noticed, or covered by others" {
  local ranks
  mpi_needs openmpi
  mpi_launcher openmpi
  export NCCL_MAX_CTAS=1
  for ranks in 2 3; do
    mpi_run -n "$ranks" "$WEFT_BUILD_DIR/tests/test_run_graph_nccl_openmpi" mutants
    [ "$status" -eq 0 ] || { echo "$output" "$stderr" >&2; return 1; }
    echo "# $ranks ranks: $(grep -m 1 noticed <<<"$output$stderr")" >&3
  done
}

@test "blocks in a process per rank: eager and graph steps have the same bits" {
  local ranks
  mpi_needs openmpi
  mpi_launcher openmpi
  export NCCL_MAX_CTAS=1
  for ranks in 2 4; do
    mpi_run -n "$ranks" "$WEFT_BUILD_DIR/tests/job_blocks_nccl_openmpi" 16 3
    [ "$status" -eq 0 ] || { echo "$stderr" >&2; return 1; }
    [ "$(jq '[.blocks[] | select(.graph_steps == 5)] | length' <<<"$output")" -eq 7 ]
  done
}
