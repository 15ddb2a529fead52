#!/usr/bin/env bats
# Jobs of processes under mpirun when a rank is killed, is stopped, or is not like the others:
# the job ends with status 75, names it, and leaves nothing behind.
# shellcheck disable=SC2154
load cli_setup
load mpi_setup

setup_file() {
  mpi_machine_begin
}
teardown_file() {
  mpi_machine_end
}

# table: four ranks, rows of 16 to 24 calls that can be struck; a step takes 21 ms.
table() {
  "$WEFT" gen 1F1B -p 4 -m 4 >t.csv
}

# kill_at MPI RANK CALL: SIGKILL before that call of that rank; all is said.
kill_at() {
  mpi_launcher "$1"
  mpi_strike "$1" "$2" "$3" 9
  mpi_run -n 4 "${struck[@]}" "$WEFT" run t.csv --f 1 --b 2
  [ -s blow ] || { echo "rank $2 has no call $3" >&2; return 1; }
  ends_with 75
  says "weft: rank $2 (pid " "was killed by signal 9 (SIGKILL)" ": rank $2 (" ") died"
  [ "$("$WEFT" explain-hang --json weft-hang.json | jq .culprit)" = "$2" ]
  rm weft-hang.json
  mpi_note_time times
}

# kills_in FOLDER MPI FIRST: every second of twenty kills; ranks in turns, calls of both steps.
kills_in() {
  local k
  mkdir "$1"
  cd "$1"
  table
  for ((k = $3; k < 20; k += 2)); do
    kill_at "$2" $((k % 4)) $((1 + 3 * (k / 4) + 7 * (k % 3)))
  done
}

# Two jobs at a time: starting one is mostly waiting.
kills() {
  local other
  mpi_needs "$1"
  kills_in odd "$1" 1 &
  other=$!
  (kills_in even "$1" 0)
  wait "$other"
  mpi_is_tidy
  cat odd/times even/times >times
  mpi_say_times times "$1: SIGKILL of a rank"
}

@test "Open MPI: a rank that is killed at any action ends the job, and is named" {
  kills openmpi
}

@test "MPICH: a rank that is killed at any action ends the job, and is named" {
  kills mpich
}
