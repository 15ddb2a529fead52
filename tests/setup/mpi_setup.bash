# Jobs of MPI processes in tests: `load mpi_setup`. A job is started on the first host of
# hosts_setup.bash where there are such hosts; elsewhere just so, and then all that can be
# seen of what it leaves behind are its processes.
# shellcheck shell=bash disable=SC2034,SC2054,SC2154
load "${BASH_SOURCE[0]%/*}/hosts_setup"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# The MPIs that Weft was built for.
mpi_names() {
  local file
  for file in "$WEFT_BUILD_DIR"/tests/signal-at-call-*.so; do
    file=${file##*/signal-at-call-}
    echo "${file%.so}"
  done
}

# mpi_needs MPI: skips the test where Weft was built without it.
mpi_needs() {
  [ -e "$WEFT_BUILD_DIR/tests/signal-at-call-$1.so" ] || skip "built without $1"
}

# mpi_machine_begin, _end: one host for jobs that need no network, in setup_file.
mpi_machine_begin() {
  local reason
  if reason=$(hosts_missing); then
    echo "# not in a namespace of its own: $reason" >&3
  else
    hosts_begin a >/dev/null
  fi
}
mpi_machine_end() {
  [ -z "${HOSTS:-}" ] || hosts_end
}

# mpi_launcher MPI: the words that start a job, into $launcher. More ranks than cores are
# fine, on one host and on several.
mpi_launcher() {
  local command
  command=$(command -v "mpirun.$1" || command -v mpirun)
  case $1 in
    openmpi) launcher=("$command" --oversubscribe) ;;
    *) launcher=("$command") ;;
  esac
}

# mpi_hosts MPI HOST:COUNT...: the same for a job over hosts, with TCP on the data network.
mpi_hosts() {
  local list agent=$WEFT_SOURCE_DIR/tests/hosts/remote_shell
  list=$(IFS=,; echo "${*:2}")
  mpi_launcher "$1"
  case $1 in
    openmpi) # with --oversubscribe, Open MPI 5 puts all ranks on the first host
      launcher=("${launcher[0]}" --mca plm_rsh_agent "$agent" --host "$list"
        --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include data --mca oob_tcp_if_include control)
      # Without this, a rank of Open MPI 5 that loses a connection aborts the job by itself.
      ! is_openmpi_5 || launcher+=(--with-ft ulfm)
      ;;
    *)
      launcher+=(-launcher ssh -launcher-exec "$agent" -hosts "$list" -iface control
        -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES data)
      ;;
  esac
}

# mpi_run WORDS...: $launcher with these words; sets $status, $output, $stderr, and $ended_at.
mpi_run() {
  run --separate-stderr mpi_start "$@"
  ended_at=$EPOCHREALTIME
  mpi_check_time "$@"
}

# mpi_check_time WORDS...: fails when the job with these words was stopped by its time limit.
# A job whose MPI does not start says so before.
MPI_LIMIT_S=120
export WEFT_START_LIMIT=100
mpi_check_time() {
  if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "waited $MPI_LIMIT_S s for the end of the job: $*" >&2
    return 1
  fi
}

# mpi_start WORDS...: the same as a plain command, also for the background.
mpi_start() {
  local command=(timeout --kill-after=5 "$MPI_LIMIT_S" "${launcher[@]}" "$@")
  if [ -n "${HOSTS:-}" ]; then
    hosts_on "$(hosts_names | head -n 1)" "${command[@]}"
  else
    WEFT_TEST_JOB=$BATS_TEST_TMPDIR "${command[@]}" 3>&-
  fi
}

# mpi_left: what is left of all jobs; nothing, after a moment.
mpi_left() {
  if [ -n "${HOSTS:-}" ]; then
    hosts_left
  else
    grep -lsF "WEFT_TEST_JOB=$BATS_TEST_TMPDIR" /proc/[0-9]*/environ
  fi
}

# Fails when something stays.
mpi_is_tidy() {
  local k left
  for ((k = 0; k < 100; k++)); do
    left=$(mpi_left) || true
    if [ -z "$left" ]; then
      return 0
    fi
    sleep 0.1
  done
  echo "left behind after 10 s: $left" >&2
  return 1
}

# mpi_signal_at MPI RANK CALL SIGNAL: a rank gets that signal before that call
# (tests/hosts/signal_at_call.c). Sets $preloaded, the words before the command; the file
# `signal_time` holds when it happened.
mpi_signal_at() {
  rm -f signal_time
  preloaded=(env "LD_PRELOAD=$WEFT_BUILD_DIR/tests/signal-at-call-$1.so" "WEFT_TEST_SIGNAL=$2 $3 $4 $PWD/signal_time")
}

# mpi_note_time FILE: how long after the signal the job ended, a line more in that file.
mpi_note_time() {
  awk -v end="$ended_at" '{ printf "%.3f\n", end - $1 }' signal_time >>"$1"
}

# mpi_print_times FILE WHAT: how many, median and longest, for the log.
mpi_print_times() {
  sort -n "$1" | awk -v what="$2" '{ time[NR] = $1 }
    END { printf "# %s: %d, ended after %s s (median), %s s (longest)\n",
          what, NR, time[int((NR + 1) / 2)], time[NR] }' >&3
}

# mpi_begin WORDS...: the same in the background; mpi_end waits for its end and sets what
# mpi_run sets.
mpi_begin() {
  mpi_start "$@" >job.out 2>job.err &
  job=$!
}
mpi_end() {
  await_end $((MPI_LIMIT_S + 10)) "$job" "the job"
  ended_at=$EPOCHREALTIME
  output=$(<job.out)
  stderr=$(<job.err)
}

# Waits until a rank has come to the call that mpi_signal_at named.
mpi_await_signal() {
  local is_over=false
  # shellcheck disable=SC2317
  sent_or_over() { [ -s signal_time ] || { has_ended "$job" && is_over=true; }; }
  await 60 "a rank to come to the call that mpi_signal_at named" sent_or_over
  ! $is_over || { echo "the job has ended before: $(<job.err)" >&2; return 1; }
}

# reports TEXT...: all of it is in $stderr; status and the rest are shown when not.
reports() {
  local text
  for text in "$@"; do
    if [[ $stderr != *"$text"* ]]; then
      printf 'not reported: %s; status %s, but:\n%s\n' "$text" "$status" "$stderr" >&2
      return 1
    fi
  done
}
ends_with() {
  [ "$status" -eq "$1" ] || { printf 'status %s instead of %s:\n%s\n' "$status" "$1" "$stderr" >&2; return 1; }
}

# mpi_table: a table t.csv of four ranks, rows of 16 to 24 calls; a step takes 21 ms.
mpi_table() {
  "$WEFT" gen 1F1B -p 4 -m 4 >t.csv
}

# mpi_kill_at MPI RANK CALL: SIGKILL before that call of that rank; all is reported.
mpi_kill_at() {
  mpi_launcher "$1"
  mpi_signal_at "$1" "$2" "$3" 9
  preloaded+=(WEFT_TEST_SLOW_DISK=1) # what is reported does not wait for it
  mpi_run -n 4 "${preloaded[@]}" "$WEFT" run t.csv --f 1 --b 2
  [ -s signal_time ] || { echo "rank $2 has no call $3" >&2; return 1; }
  ends_with 75
  reports "weft: rank $2 (pid " "was killed by signal 9 (SIGKILL)" ": rank $2 (" ") died"
  [ "$("$WEFT" explain-hang --json weft-hang.json | jq .culprit)" = "$2" ]
  rm weft-hang.json
  mpi_note_time times
}
