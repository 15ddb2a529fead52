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

@test "bench mpi starts its own jobs, and compares steps of processes with steps of threads" {
  [[ -n $(launchers) ]] || skip "no MPI"
  TMPDIR=$BATS_TEST_TMPDIR "$WEFT" bench mpi --repeats 1 --json >b.json
  jq -e '.ways | length >= 1 and all(.over == "memory" and (.messages | all(.weft_ns > 0)))' b.json >/dev/null
  jq -e '.steps | length >= 2 and all(.threads_step_ms > 0 and .mpi_step_ms > 0)' b.json >/dev/null
  jq -e '.steps | all((.pairs | length) == 1)' b.json >/dev/null
  jq -e '.steps | all(.ratio >= .ratio_middle_half[0] and .ratio <= .ratio_middle_half[1])' b.json >/dev/null
  # Where each rank can have a core, it has one, and not the other's.
  [[ $(nproc) -lt 2 ]] || jq -e '.rank_processors | length == 2 and .[0] != .[1]' b.json >/dev/null
  [[ -z $(compgen -G "$BATS_TEST_TMPDIR/weft-bench-*") ]]
  # 1F1B: (m + p - 1)(f + b) = 27 ms. Whatever else runs, nothing is faster than simulated.
  jq -e '.steps | map(select(.stages == "spin" and .schedule == "1F1B"))
         | length > 0 and all(.threads_step_ms >= 27 and .mpi_step_ms >= 27)' b.json >/dev/null
}
