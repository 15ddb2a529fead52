#!/usr/bin/env bats
# weft bench mpi, all of it: a minute
# shellcheck disable=SC2154
load ../setup/cli_setup

setup_file() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# The launchers of those MPIs that this build has a driver for.
launchers() {
  [[ -e $WEFT_BUILD_DIR/lib/weft-mpi-openmpi.so ]] && command -v mpirun.openmpi
  [[ -e $WEFT_BUILD_DIR/lib/weft-mpi-mpich.so ]] && command -v mpiexec.mpich
  true
}

@test "bench mpi starts its own jobs, and steps of processes and of threads agree" {
  [[ -n $(launchers) ]] || skip "no MPI"
  "$WEFT" bench mpi --repeats 1 --json >b.json
  jq -e '(.ways | length) >= 2 and (.ways | all(.overlap | all(.receiver.transfer_ns > 0 and .sender.compute_ns > 0)))' b.json >/dev/null
  jq -e '.steps | length >= 4 and all(.threads_step_ms > 0 and .mpi_step_ms > 0)' b.json >/dev/null
  jq -e '.steps | all((.pairs | length) == if .stages == "gpt" then 4 else 1 end)' b.json >/dev/null
  jq -e '.steps | all(.ratio >= .ratio_middle_half[0] and .ratio <= .ratio_middle_half[1])' b.json >/dev/null
  jq -e '[.steps[].pairs[]] | all(.threads_step_ms > 0 and .mpi_step_ms > 0)' b.json >/dev/null
  # Cost stages cannot be faster than simulated, on neither.
  jq -e '.steps | map(select(.stages == "spin"))
         | all(.threads_over_simulated >= 1 and .mpi_over_simulated >= 1)' b.json >/dev/null
  # Where each rank can have a core, it has one, and not the other's.
  [[ $(nproc) -lt 2 ]] || jq -e '.rank_processors | length == 2 and .[0] != .[1]' b.json >/dev/null
  [[ -z $(compgen -G "${TMPDIR:-/tmp}/weft-turns-*") ]]
  # 1F1B: (m + p - 1)(f + b) = 27 ms. Whatever else runs, nothing is faster than simulated.
  jq -e '.steps | map(select(.stages == "spin" and .schedule == "1F1B"))
         | length > 0 and all(.threads_step_ms >= 27 and .mpi_step_ms >= 27)' b.json >/dev/null
}
