#!/usr/bin/env bats
# Whole jobs under mpirun, of each MPI that Weft was built for: they end, with the right
# status and everybody's diagnosis, and leave nothing behind.

setup_file() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_LOG_LEVEL=error
  export OMPI_MCA_btl=^tcp # one host; Open MPI 5 warns of networks that it would not use
  export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" # the MPIs leak; test_transport_mpi counts blocks
}

setup() {
  job=$WEFT_BUILD_DIR/tests/job_mpi
  marker=$BATS_TEST_TMPDIR/marker-$$ # in every process's command line
  mpis=()
  for name in openmpi mpich; do
    [[ -e $WEFT_BUILD_DIR/lib/weft-mpi-$name.so ]] && mpis+=("$name")
  done
  [[ ${#mpis[@]} -gt 0 ]] || skip "built without MPI: libopenmpi-dev openmpi-bin"
}

left_files() { # shared memory of the MPIs and of Weft that no process has: other jobs may run
  comm -23 <(find /dev/shm -type f | grep -E 'vader|mpi|ucx|weft' | sort) \
    <(cat /proc/[0-9]*/maps 2>/dev/null | grep -oE '/dev/shm/.*' | sort -u)
}

start() { # MPI RANKS ARGUMENT...: output, status, seconds
  local more=()
  [[ $1 == openmpi ]] && more=(--oversubscribe)
  before=$(left_files)
  run timeout --kill-after=5 120 "mpirun.$1" "${more[@]}" -n "$2" "$job" "${@:3}" "$marker"
  [ "$status" -ne 124 ] || { echo "waited 120 s for the end of: $*" >&2; return 1; }
}

nothing_stays_behind() {
  for ((i = 0; i < 50; i++)); do # the launcher's last ones take a moment
    if ! pgrep -f "$marker" >/dev/null && ! left_files | grep -qvxF "${before:-none}"; then
      return 0
    fi
    sleep 0.1
  done
  echo "after 5 s these are left:"
  pgrep -fa "$marker"
  left_files
  return 1
}

setup_dir() { cd "$BATS_TEST_TMPDIR" || return 1; }

@test "a job works, on each MPI" {
  setup_dir
  for mpi in "${mpis[@]}"; do
    for progress in "" thread; do
      if [[ -n $progress ]]; then export WEFT_TEST_PROGRESS=$progress; fi
      start "$mpi" 3 works 0
      echo "$mpi: $output"
      [ "$status" -eq 0 ]
      [[ $output == *"3 ranks on $mpi"* ]]
      nothing_stays_behind
    done
    unset WEFT_TEST_PROGRESS
  done
}

@test "a single process needs no mpirun" {
  setup_dir
  for mpi in "${mpis[@]}"; do
    WEFT_MPI_DRIVER=$WEFT_BUILD_DIR/lib/weft-mpi-$mpi.so run "$job" works
    echo "$output"
    [ "$status" -eq 0 ]
    [[ $output == *"1 ranks on $mpi"* ]]
    WEFT_MPI_DRIVER=$WEFT_BUILD_DIR/lib/weft-mpi-$mpi.so run "$job" fails
    [ "$status" -eq 75 ]
    [[ $output == *"job: rank 0 has had enough"* ]]
  done
}

@test "a rank that fails ends the job with 75, and every rank says why" {
  setup_dir
  for mpi in "${mpis[@]}"; do
    start "$mpi" 4 fails 2
    echo "$mpi: $output"
    [ "$status" -eq 75 ]
    [ "$(grep -c 'job: rank 2 has had enough' <<<"$output")" -eq 4 ]
    nothing_stays_behind
  done
}

@test "ranks that fail together agree on one failure" {
  setup_dir
  for mpi in "${mpis[@]}"; do
    start "$mpi" 4 fails-twice
    echo "$mpi: $output"
    [ "$status" -eq 75 ]
    [ "$(grep -c 'has had enough' <<<"$output")" -eq 4 ]
    [ "$(grep 'has had enough' <<<"$output" | sort -u | wc -l)" -eq 1 ]
  done
}

# MPICH's launcher kills the others within a millisecond, so that they may not come to
# say why; the status is its own then, and that of MPICH 4.2 may be 0 (docs/mpi.md).
@test "a rank that is killed, or goes without a word, is named" {
  setup_dir
  for mpi in "${mpis[@]}"; do
    for what in is-killed exits; do
      start "$mpi" 3 "$what" 1
      echo "$mpi: $status $output"
      [ "$status" -ne 0 ] || [ "$mpi $what" = "mpich exits" ] || # whose launcher may lose it
        [[ $mpi == mpich && $(mpirun.mpich --version) =~ Version:\ +4\.2\. ]]
      [[ $mpi == mpich ]] || grep -qE 'job: rank 1 \(.*, process [0-9]+\) died' <<<"$output"
      nothing_stays_behind
    done
  done
}

@test "ranks that are not alike make no world, and name the odd one" {
  setup_dir
  # shellcheck disable=SC2016
  printf '#!/bin/bash\n"%s" "$@"\nstatus=$?\necho $status >>"%s/statuses"\nexit $status\n' "$job" "$PWD" >rank
  chmod +x rank
  job=$PWD/rank
  for mpi in "${mpis[@]}"; do
    : >statuses
    start "$mpi" 3 differs 1
    echo "$mpi: $(tr '\n' ' ' <statuses); $output"
    # Every rank fails by itself; whether the launcher says so is its own affair (docs/mpi.md).
    [ "$(wc -l <statuses)" -ge 1 ]
    ! grep -qx 0 statuses || return 1
    [ "$status" -ne 0 ] ||
      [[ $mpi == mpich && $(mpirun.mpich --version) =~ Version:\ +4\.2\. ]]
    [[ $output == *"rank 1 sends pieces of 4096 bytes"* ]]
  done
}
