#!/usr/bin/env bats
# A machine without MPI: Weft is configured without the drivers and all that needs one, and
# says what to install when it is asked for them. Nothing is built here.
# Not under sanitizers: it is about files, pages and other programs.
# shellcheck disable=SC2154
load ../setup/cli_setup

@test "where no MPI is found, its drivers and their tests are left out, and nothing else" {
  cmake -G Ninja -S "$WEFT_SOURCE_DIR" -B . -DWEFT_MPICC_openmpi="$PWD/none" \
    -DWEFT_MPICC_mpich="$PWD/none" >configured
  has 'no MPI (libopenmpi-dev openmpi-bin, or libmpich-dev mpich): built without its transport' configured
  ninja -t targets all >targets.txt
  ctest -N >tests.txt
  lacks 'weft[-_]mpi[-_]\(openmpi\|mpich\)' targets.txt
  lacks 'signal_at_call\|hosts/wire' targets.txt
  lacks '_\(openmpi\|mpich\)$\|cli_mpi_' tests.txt
  has '^weft: ' targets.txt
  has '^libweft-run.so: \|^lib/libweft-run.so: ' targets.txt
  has ' test_run_threads$' tests.txt
  has ' cli_run$' tests.txt
  # WEFT_MPI=OFF leaves them out where there is one.
  cmake -S "$WEFT_SOURCE_DIR" -B . -DWEFT_MPI=OFF -UWEFT_MPICC_openmpi -UWEFT_MPICC_mpich >configured
  ninja -t targets all >off.txt
  lacks 'weft[-_]mpi[-_]\(openmpi\|mpich\)' off.txt
}

# refused LAUNCHER'S-VARIABLE PACKAGES WORDS: by a command that has no driver beside it.
refused() {
  run --separate-stderr env ${1:+"$1"} ./weft "${@:3}"
  fails 69 "there is no driver for " "install $2, and build Weft again"
}

@test "without a driver, asking for MPI exits with 69 and names the packages" {
  "$WEFT" gen 1F1B -p 1 -m 4 >t.csv
  cp "$WEFT" weft
  refused "" "libopenmpi-dev and openmpi-bin" run t.csv --transport mpi
  refused PMIX_RANK=0 "libopenmpi-dev and openmpi-bin" run t.csv --transport mpi
  refused PMI_RANK=0 "libmpich-dev and mpich" run t.csv --transport mpi
  run --separate-stderr ./weft run t.csv --stage null # what does not need it works
  succeeds
  WEFT_MPI_DRIVER=$PWD/t.csv weft run t.csv --transport mpi
  fails 69 "the MPI driver cannot be loaded"
}
