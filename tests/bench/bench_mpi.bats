#!/usr/bin/env bats
# weft bench mpi
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

@test "bench mpi without MPI says what to install" {
  run --separate-stderr env PATH=/nowhere "$WEFT" bench mpi
  fails 69 "no MPI is installed here" "openmpi-bin"
}

@test "bench mpi as a job measures messages beside bare MPI" {
  for launcher in $(launchers); do
    timeout --kill-after=5 120 "$launcher" -n 2 "$WEFT" bench mpi --repeats 1 --progress thread --json >b.json
    jq -e '.schema == "weft-bench-mpi/1" and (.ways | length) == 1' b.json >/dev/null
    jq -e '.ways[0] | .progress == "thread" and ([.messages[].bytes] == [8, 64, 512, 4096, 32768, 262144, 2097152, 16777216])
           and (.messages | all(.bare_ns > 0 and .weft_ns > 0 and .of_bare > 0))' b.json >/dev/null
    run --separate-stderr timeout --kill-after=5 120 "$launcher" -n 1 "$WEFT" bench mpi
    fails 2 "is for two processes, and there is 1"
  done
}

@test "bench mpi starts its own jobs" {
  [[ -n $(launchers) ]] || skip "no MPI"
  "$WEFT" bench mpi --repeats 1 --json >b.json
  jq -e '.ways | length >= 1 and all(.over == "memory" and (.messages | all(.weft_ns > 0)))' b.json >/dev/null
  # Where each rank can have a core, it has one, and not the other's.
  [[ $(nproc) -lt 2 ]] || jq -e '.rank_processors | length == 2 and .[0] != .[1]' b.json >/dev/null
}
