#!/usr/bin/env bats
# Jobs over several machines: hosts in network namespaces, joined by virtual links, ranks
# started in them by mpirun, messages over TCP. With delay and loss; with the link of one host
# cut in the middle of a step; with a host that loses power.
# Not under sanitizers: whole jobs take long.
# shellcheck disable=SC2030,SC2031,SC2154
load ../setup/cli_setup
load ../setup/mpi_setup

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

# needs_trainer: skips where Weft was built without it.
needs_trainer() {
  "$WEFT" train --data t.csv --steps 0 >/dev/null 2>&1 || [ $? -ne 69 ] || skip "built without the trainer"
}

# trains MPI HASH: four ranks on three hosts come to parameters with that hash.
trains() {
  mpi_hosts "$1" a:2 b:1 c:1
  mpi_run -n 4 "$WEFT" train "${training[@]}"
  ends_with 0
  [ "$(tail -n 1 <<<"$output" | jq -c '[.transport, .ranks, .parameters_hash]')" = "[\"mpi\",4,$2]" ]
}

# Both MPIs, and threads.
all_train() {
  local mpi hash training=(--data text --layers 4 --dim 16 --heads 2 --context 16 --batch 8 -m 4
    --steps 2 --json)
  cat "$WEFT_SOURCE_DIR"/docs/*.md >text
  hash=$("$WEFT" train "${training[@]}" -p 4 | tail -n 1 | jq .parameters_hash)
  for mpi in $(mpi_names); do
    trains "$mpi" "$hash"
  done
}

@test "a job over three hosts trains the same parameters as threads, bit for bit" {
  needs_trainer
  hosts_begin a b c >&3
  all_train
  mpi_is_tidy
}

@test "the same with 5 ms of delay and every hundredth packet lost" {
  needs_trainer
  hosts_begin --delay 5 --jitter 1 --loss 1 --seed 7 a b c >&3
  all_train
  if [ "$(hosts_link)" = wire ]; then
    hosts_order count >packets
    sed 's/^/# packets: /' packets >&3
    awk '{ exit !($2 > 500 && $4 > 0) }' packets
  fi
  mpi_is_tidy
}

@test "a rank that is killed on another host ends the job, and is named" {
  local mpi
  hosts_begin a b c >&3
  for mpi in $(mpi_names); do
    mpi_hosts "$mpi" a:2 b:1 c:1
    mpi_signal_at "$mpi" 2 30 9
    mpi_run -n 4 "${preloaded[@]}" "$WEFT" run t.csv --f 1 --b 2 --steps 1000
    ends_with 75
    reports "weft: rank 2 (pid " " on b) was killed by signal 9 (SIGKILL)"
    rm -f times
    mpi_note_time times
    mpi_print_times times "$mpi: SIGKILL of a rank on another host"
  done
  mpi_is_tidy
}

# cut MPI: the host of rank 2 is cut off in the middle of a step.
cut() {
  mpi_needs "$1"
  hosts_begin a b c >&3
  mpi_hosts "$1" a:2 b:1 c:1
  mpi_signal_at "$1" 2 40 0
  mpi_begin -n 4 "${preloaded[@]}" "$WEFT" run t.csv --f 5 --b 10 --steps 1000 --stall-limit 2
  mpi_await_signal
  hosts_cut b
  echo $EPOCHREALTIME >signal_time
  mpi_end
  ends_with 75
  reports "rank 2 (b, process " "), which does not answer" "see whether rank 2's host is up"
  [ "$("$WEFT" explain-hang --json weft-hang.json | jq .culprit)" = 2 ]
  mpi_note_time times
  mpi_print_times times "$1: link of a host cut, stall limit 2 s"
  mpi_is_tidy
}

@test "Open MPI: the link of a host is cut in the middle of a step: the job ends, its rank is named" {
  cut openmpi
}

@test "MPICH: the link of a host is cut in the middle of a step: the job ends, its rank is named" {
  cut mpich
}
