#!/usr/bin/env bats
# Jobs of processes under mpirun when a rank is killed, is stopped, or is not like the others:
# the job ends with status 75, names it, and leaves nothing behind.
# Not under sanitizers: whole jobs take long.
# shellcheck disable=SC2030,SC2031,SC2154
load ../setup/cli_setup
load ../setup/mpi_setup

setup_file() {
  mpi_machine_begin
}
teardown_file() {
  mpi_machine_end
}

# kills_in FOLDER MPI FIRST: every second of twenty kills; ranks in turns, calls of both steps.
kills_in() {
  local k
  mkdir "$1"
  cd "$1" || return 1
  mpi_table
  for ((k = $3; k < 20; k += 2)); do
    mpi_kill_at "$2" $((k % 4)) $((1 + 3 * (k / 4) + 7 * (k % 3)))
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
  cat odd/times even/times >times.all
  mpi_print_times times.all "$1: SIGKILL of a rank"
}

@test "Open MPI: a rank that is killed at any action ends the job, and is named" {
  kills openmpi
}

@test "MPICH: a rank that is killed at any action ends the job, and is named" {
  kills mpich
}

# stops MPI: SIGSTOP at two calls; the others stop after the stall limit, and report it.
stops() {
  local rank
  mpi_needs "$1"
  mpi_table
  mpi_launcher "$1"
  for rank in 0 2; do
    mpi_signal_at "$1" $rank $((9 + rank)) 19
    mpi_run -n 4 "${preloaded[@]}" "$WEFT" run t.csv --f 1 --b 2 --stall-limit 1
    [ -s signal_time ]
    ends_with 75
    reports "rank $rank (" ", process " "), which is stopped, by a signal or a debugger" "SIGCONT resumes rank $rank's process"
    [ "$(jq -c '[.ranks[] | select(.process == "stopped").rank]' weft-hang.json)" = "[$rank]" ]
    [ "$("$WEFT" explain-hang --json weft-hang.json | jq .culprit)" = $rank ]
    mpi_note_time times
  done
  mpi_is_tidy
  mpi_print_times times "$1: SIGSTOP of a rank, stall limit 1 s"
}

@test "Open MPI: a rank that is stopped is named when the others have waited for it" {
  stops openmpi
}

@test "MPICH: a rank that is stopped is named when the others have waited for it" {
  stops mpich
}

# refused WORDS -- OTHER WORDS: rank 2 is started with other words than the others.
refused() {
  local usual=()
  while [ "$1" != -- ]; do
    usual+=("$1")
    shift
  done
  shift
  rm -f weft-hang.json
  differ_on odd 2 "$@"
  mpi_run -n 4 ./odd "${usual[@]}"
  ends_with 75
}

# No rank has done anything: not even its first action.
nothing_was_done() {
  [ "$(jq '[.ranks[].recent | length] | add' weft-hang.json)" = 0 ]
}

# Before calls of collectives of a step, after it, and in the exchange at its end: rank 0, which
# would have to report.
@test "a rank that is stopped in a training with replicas is named, in collectives and between steps" {
  local at
  seq 1 900 >text
  "$WEFT" train --data text --steps 0 >/dev/null 2>&1 || [ $? -ne 69 ] || skip "built without the trainer"
  for at in openmpi:20 mpich:24 mpich:40; do
    [ -e "$WEFT_BUILD_DIR/lib/weft-mpi-${at%:*}.so" ] || continue
    mpi_launcher "${at%:*}"
    mpi_signal_at "${at%:*}" 0 "${at#*:}" 19
    mpi_run -n 4 "${preloaded[@]}" "$WEFT" train --data text --layers 6 --dim 16 --heads 2 --context 16 --batch 8 \
      -p 2 -m 2 --dp 2 --shard grads --steps 3 --json --stall-limit 3
    [ -s signal_time ] || { echo "no signal; status $status: $stderr"; false; }
    ends_with 75
    reports "weft: rank 1: " "rank 0 (" "which is stopped, by a signal or a debugger" "SIGCONT resumes rank 0's process"
    [ "$("$WEFT" explain-hang --json weft-hang.json | jq .culprit)" = 0 ]
    rm weft-hang.json
  done
  mpi_is_tidy
}

@test "a rank with another program is refused before the first tensor" {
  local mpi
  mpi_table
  "$WEFT" gen GPipe -p 4 -m 4 >g.csv
  for mpi in $(mpi_names); do
    mpi_launcher "$mpi"
    refused "$WEFT" run t.csv -- "$WEFT" run g.csv
    reports "rank 2 has another program than the others (" "; 1 of 4 ranks differ"
    nothing_was_done
  done
  mpi_is_tidy
}

@test "a rank with another configuration is refused before the first tensor" {
  local mpi more
  mpi_table
  for mpi in $(mpi_names); do
    mpi_launcher "$mpi"
    for more in "--comm eager" "--f 7"; do
      # shellcheck disable=SC2086
      refused "$WEFT" run t.csv -- "$WEFT" run t.csv $more
      reports "rank 2 has another configuration than the others (" "; 1 of 4 ranks differ"
      nothing_was_done
    done
  done
  mpi_is_tidy
}

@test "a rank without a driver ends the job, also where the launcher would wait" {
  local mpi
  mpi_table
  mkdir alone
  cp "$WEFT" alone/weft
  for mpi in $(mpi_names); do
    mpi_launcher "$mpi"
    differ_on odd 2 alone/weft run t.csv
    mpi_run -n 4 ./odd "$WEFT" run t.csv
    ends_with 69
    reports "looked for weft-mpi-$mpi.so in "
  done
  mpi_is_tidy
}

@test "a rank with other data is refused before the first tensor" {
  local mpi training=(--layers 4 --dim 16 --heads 2 --context 16 --batch 8 -m 4 --steps 2)
  cat "$WEFT_SOURCE_DIR"/docs/*.md >text
  sed 's/a rank/a bank/' text >other
  "$WEFT" train --data text --steps 0 >/dev/null 2>&1 || [ $? -ne 69 ] || skip "built without the trainer"
  for mpi in $(mpi_names); do
    mpi_launcher "$mpi"
    refused "$WEFT" train --data text "${training[@]}" -- "$WEFT" train --data other "${training[@]}"
    reports "rank 2 has another configuration than the others (" "; 1 of 4 ranks differ"
    nothing_was_done
  done
  mpi_is_tidy
}

@test "a rank that is another build is refused before the first tensor" {
  local mpi
  mpi_table
  mkdir other
  cp "$WEFT" other/weft
  cp -r "$WEFT_BUILD_DIR/lib" other/lib
  printf 'one byte more' >>other/weft
  for mpi in $(mpi_names); do
    mpi_launcher "$mpi"
    refused "$WEFT" run t.csv -- other/weft run t.csv
    reports "rank 2 runs another build of weft than the others: file "
  done
  mpi_is_tidy
}
