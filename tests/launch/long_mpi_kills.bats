#!/usr/bin/env bats
# SIGKILL of every rank before each of its calls in the first two steps, on every MPI:
# cli_mpi_faults.bats has twenty of these on each.
# shellcheck disable=SC2154
load ../setup/cli_setup
load ../setup/mpi_setup

setup_file() {
  mpi_machine_begin
}
teardown_file() {
  mpi_machine_end
}

# Calls of a step on the ranks at the ends, and on those between.
kills() {
  local rank call calls=(16 24 24 16)
  mpi_needs "$1"
  mpi_table
  for ((rank = 0; rank < 4; rank++)); do
    for ((call = 1; call <= 2 * calls[rank]; call++)); do
      mpi_kill_at "$1" $rank $call
    done
  done
  mpi_is_tidy
  mpi_print_times times "$1: SIGKILL of a rank"
}

@test "Open MPI: every rank, every call" {
  kills openmpi
}

@test "MPICH: every rank, every call" {
  kills mpich
}
