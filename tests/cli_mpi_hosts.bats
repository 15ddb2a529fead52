#!/usr/bin/env bats
# Jobs over several machines: hosts in network namespaces, joined by virtual links, ranks
# started in them by mpirun, messages over TCP. With delay and loss; with the link of one host
# cut in the middle of a step; with a host that loses power.
# shellcheck disable=SC2030,SC2031,SC2154
load cli_setup
load mpi_setup

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  export LC_ALL=C
  local reason
  if reason=$(hosts_missing); then
    skip "$reason"
  fi
  "$WEFT" gen 1F1B -p 4 -m 4 >t.csv
}

teardown() {
  [ -z "${HOSTS:-}" ] || hosts_end
}

# runs MPI: four ranks on three hosts do their steps.
runs() {
  mpi_hosts "$1" a:2 b:1 c:1
  mpi_run -n 4 "$WEFT" run t.csv --f 1 --b 2 --json
  ends_with 0
  [ "$(jq -c '[.transport, .steps, .rank_count]' <<<"$output")" = '["mpi",3,4]' ]
}

# One network without faults, for both MPIs.
@test "a job over three hosts" {
  local mpi
  hosts_begin a b c >&3
  for mpi in $(mpi_names); do
    runs "$mpi"
  done
  mpi_is_tidy
}

@test "a job over three hosts, with 5 ms of delay and every hundredth packet lost" {
  local mpi
  hosts_begin --delay 5 --jitter 1 --loss 1 --seed 7 a b c >&3
  for mpi in $(mpi_names); do
    runs "$mpi"
  done
  if [ "$(hosts_link)" = wire ]; then
    hosts_order count | tee count
    awk '{ exit !($2 > 500 && $4 > 0) }' count
  fi
  mpi_is_tidy
}

# cut MPI: the host of rank 2 is cut off in the middle of a step.
cut() {
  mpi_needs "$1"
  hosts_begin a b c >&3
  mpi_hosts "$1" a:2 b:1 c:1
  mpi_strike "$1" 2 40 0
  mpi_begin -n 4 "${struck[@]}" "$WEFT" run t.csv --f 5 --b 10 --steps 1000 --stall-limit 2
  mpi_await_blow
  hosts_cut b
  echo $EPOCHREALTIME >blow
  mpi_end
  ends_with 75
  says "rank 2, which does not answer" "see whether rank 2's host is up"
  [ "$("$WEFT" explain-hang --json weft-hang.json | jq .culprit)" = 2 ]
  mpi_note_time times
  mpi_say_times times "$1: link of a host cut, stall limit 2 s"
  mpi_is_tidy
}

@test "Open MPI: the link of a host is cut in the middle of a step: the job ends, its rank is named" {
  cut openmpi
}

@test "MPICH: the link of a host is cut in the middle of a step: the job ends, its rank is named" {
  cut mpich
}
