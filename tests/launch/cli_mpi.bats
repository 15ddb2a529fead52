#!/usr/bin/env bats
# weft run and weft doctor on MPI: every rank a process, under each MPI that Weft was
# built for. More ranks than cores.
# Not under sanitizers: whole jobs take long.
# shellcheck disable=SC2030,SC2031,SC2154
load ../setup/cli_setup

setup_file() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_LOG_LEVEL=error
  export OMPI_MCA_btl=^tcp # one host; Open MPI 5 warns of networks that it would not use
  mpis=
  for mpi in openmpi mpich; do
    if [ -e "$WEFT_BUILD_DIR/lib/weft-mpi-$mpi.so" ]; then
      mpis+=" $mpi"
    fi
  done
  export mpis
}

# on MPI RANKS WORDS: runs the command, or $program, in so many processes. Beside Weft's reports, $stderr
# has the launcher's.
on() {
  local more=()
  [ "$1" = mpich ] || more=(--oversubscribe)
  run --separate-stderr timeout --kill-after=5 120 "mpirun.$1" "${more[@]}" -n "$2" \
    "${program:-$WEFT}" "${@:3}"
  # A process that ends at once may kill MPICH's launcher (docs/mpi.md#what-launchers-lose).
  if [ "$1$status" = mpich141 ] && [ "${retried:-}" = "" ]; then
    retried=1 on "$@"
  fi
  [ "$status" -ne 124 ] || { echo "waited 120 s for the end of: $*" >&2; return 1; }
}

needs_mpi() {
  [ -n "$mpis" ] || skip "built without MPI: libopenmpi-dev openmpi-bin"
}

# reports_once TEXT...: all of it is in $stderr, which has one report of Weft.
reports_once() {
  local text
  for text in "$@"; do
    if [[ $stderr != *"$text"* ]]; then
      echo "not reported: $text; but: $stderr" >&2
      return 1
    fi
  done
  [ "$(grep -c '^weft: ' <<<"$stderr")" -eq 1 ] || { echo "not one report: $stderr" >&2; return 1; }
}

@test "run: a process per rank, and rank 0 reports" {
  needs_mpi
  for mpi in $mpis; do
    for words in '1F1B 1' '1F1B 2' 'ZBVZeroBubble 4' 'Interleaved1F1B 3'; do
      read -r name ranks <<<"$words"
      "$WEFT" gen "$name" -p "$ranks" -m 6 >t.csv
      on "$mpi" "$ranks" run t.csv --transport mpi --steps 2 --f 0.1 --b 0.2 --i 0.1 --w 0.1 --json
      succeeds
      [ "$(jq -r '"\(.transport) \(.rank_count) \(.ranks | length) \(.steps)"' <<<"$output")" = \
        "mpi $ranks $ranks 2" ]
      [ "$(jq '.ratio >= 1 and (.ranks | all(.busy > 0))' <<<"$output")" = true ]
    done
  done
}

@test "run: mpirun alone selects MPI; the report is written once" {
  needs_mpi
  "$WEFT" gen ZBH1 -p 2 -m 4 >t.csv
  for mpi in $mpis; do
    on "$mpi" 2 run t.csv --stage null
    succeeds
    [ "$(grep -c '^ran  *on mpi, stages that do nothing' <<<"$output")" -eq 1 ]
    on "$mpi" 2 run t.csv --comm rendezvous --json -o report.json
    succeeds
    [ "$output" = "" ]
    jq -e '.schema == "weft-run/1" and .comm == "rendezvous"' report.json
    rm report.json
    # All processes at once would be two copies of one.
    on "$mpi" 1 run t.csv --stage null
    succeeds
    [[ $output == *"ran  "*"on threads"* ]]
  done
}

@test "run: rendezvous stalls in the cycle that verify reports" {
  needs_mpi
  printf '%s\n' 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1 \
    1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1 >t.csv
  for mpi in $mpis; do
    on "$mpi" 2 run t.csv --stage null --unchecked --stall-limit 1 --comm rendezvous
    [ "$status" -eq 75 ]
    [[ $stderr == *"a cycle: rank 0 waits in 0SEND_F1 for rank 1 (1RECV_F1); rank 1 waits in 1SEND_B0 for rank 0 (0RECV_B0)"* ]]
    # MPI has room for messages this small.
    on "$mpi" 2 run t.csv --stage null --unchecked --comm eager
    succeeds
  done
}

@test "run: a picture has the events of all ranks" {
  needs_mpi
  "$WEFT" gen ZBVZeroBubble -p 3 -m 6 >t.csv
  count=$("$WEFT" run t.csv --transport loopback --json | jq .actions)
  for mpi in $mpis; do
    on "$mpi" 3 run t.csv --steps 2 --f 0.1 --i 0.1 --w 0.1 -o trace.json
    succeeds
    [[ $output == *"measured  "* ]]
    [ "$(jq '[.traceEvents[] | select(.ph == "X") | .tid] | unique | length' trace.json)" -ge 3 ]
    [ "$(jq '[.traceEvents[] | select(.ph == "X" and .dur >= 0)] | length' trace.json)" -gt $((count / 3)) ]
    rm trace.json
  done
}

@test "run: standard input is for all ranks" {
  needs_mpi
  "$WEFT" gen 1F1B -p 3 -m 64 >t.csv
  for mpi in $mpis; do
    on "$mpi" 3 run --stage null --json <t.csv
    succeeds
    [ "$(jq -r '"\(.file) \(.microbatch_count)"' <<<"$output")" = "standard input 64" ]
  done
}

@test "run: what all ranks find wrong is reported once" {
  needs_mpi
  "$WEFT" gen 1F1B -p 4 -m 4 >t.csv
  printf '0F0,junk\n' >bad.csv
  for mpi in $mpis; do
    on "$mpi" 3 run t.csv --transport mpi
    [ "$status" -eq 2 ]
    reports_once "t.csv: the program has 4 ranks, the job 3 processes" "mpirun -n 4 weft run t.csv"
    on "$mpi" 2 run none.csv
    [ "$status" -eq 66 ]
    reports_once "none.csv"
    on "$mpi" 2 run bad.csv
    [ "$status" -eq 65 ]
    reports_once "junk"
    [ "$output" = "" ]
  done
}

@test "a wrong command line is reported once" {
  needs_mpi
  for mpi in $mpis; do
    on "$mpi" 3 run --stpes 2 t.csv
    [ "$status" -eq 2 ]
    reports_once "unknown option '--stpes'"
    on "$mpi" 3 trian
    [ "$status" -eq 2 ]
    reports_once "unknown command 'trian'"
    on "$mpi" 3 run t.csv --steps many
    [ "$status" -eq 2 ]
    reports_once "--steps"
    cp "$WEFT" alone # without a driver
    program=./alone on "$mpi" 3 run --stpes 2 t.csv
    [ "$status" -eq 2 ]
    reports_once "weft: unknown option '--stpes'"
  done
}

@test "a wrong command line of some ranks names them, is reported once, and ends all" {
  needs_mpi
  "$WEFT" gen 1F1B -p 3 -m 4 >t.csv
  for mpi in $mpis; do
    differ_on odd '[12]' "$WEFT" run t.csv --stpes 2
    program=./odd on "$mpi" 3 "$WEFT" run t.csv
    [ "$status" -eq 2 ]
    reports_once "weft: rank 1 and 1 other: unknown option '--stpes'" "did you mean '--steps'"
    # One that reads standard input for all, and one that has no command.
    differ_on odd 2 "$WEFT" ru
    program=./odd on "$mpi" 3 "$WEFT" run - <t.csv
    [ "$status" -eq 2 ]
    reports_once "weft: rank 2: unknown command 'ru'"
    # Others who never come are not waited for without end.
    differ_on odd 1 sleep 30
    WEFT_START_LIMIT=1 program=./odd on "$mpi" 2 "$WEFT" run --stpes t.csv
    [ "$status" -eq 2 ]
    reports_once "weft: rank 0: unknown option '--stpes'"
  done
}

@test "run: what one rank finds wrong names it, and ends all" {
  needs_mpi
  "$WEFT" gen 1F1B -p 3 -m 4 >t.csv
  "$WEFT" gen ZBH1 -p 3 -m 4 >other.csv
  # $WEFT in a script that gives one rank another file.
  cat >odd <<'END'
#!/bin/bash
if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then
  exec "$WEFT" run "$1" "${@:3}"
fi
exec "$WEFT" run "$2" "${@:3}"
END
  chmod +x odd
  for mpi in $mpis; do
    program=./odd on "$mpi" 3 none.csv t.csv --transport mpi
    [ "$status" -eq 66 ]
    reports_once "weft: rank 1: cannot open 'none.csv'"
    program=./odd on "$mpi" 3 other.csv t.csv --transport mpi
    [ "$status" -eq 75 ]
    [[ $stderr == *"rank 1 has another program than the others"* ]]
  done
}

@test "run: another build on one rank is refused" {
  needs_mpi
  "$WEFT" gen 1F1B -p 3 -m 4 >t.csv
  mkdir -p other/lib
  ln -s "$WEFT_BUILD_DIR"/lib/*.so other/lib/
  cp "$WEFT" other/weft
  echo >>other/weft
  cat >odd <<'END'
#!/bin/bash
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 2 ] || exec other/weft "$@"
exec "$WEFT" "$@"
END
  chmod +x odd
  for mpi in $mpis; do
    program=./odd on "$mpi" 3 run t.csv
    [ "$status" -eq 75 ]
    reports_once "rank 2 runs another build of weft than the others"
  done
}

@test "run: a single process needs no launcher" {
  needs_mpi
  "$WEFT" gen 1F1B -p 1 -m 4 >one.csv
  "$WEFT" gen 1F1B -p 2 -m 4 >two.csv
  weft run one.csv --transport mpi --stage null
  succeeds
  [[ $output == *"on mpi"* ]]
  weft run two.csv --transport mpi
  fails 2 "the program has 2 ranks, the job 1 process" "mpirun -n 2 weft run two.csv --transport mpi"
}

# Whether both ranks are in their steps: they catch SIGTERM there (bit 14).
are_running() {
  local pid mask
  ranks=$(find_ranks)
  [ "$(wc -w <<<"$ranks")" -eq 2 ] || return 1
  for pid in $ranks; do
    mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
    (( 16#${mask:-0} & 1 << 14 )) || return 1
  done
}

# The processes of the job whose parent, their supervisor, is one too.
find_ranks() {
  local pids pid parent
  pids=$(pgrep -f -- "^$WEFT run.*$marker")
  for pid in $pids; do
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
    if [ -n "$parent" ] && grep -qx "$parent" <<<"$pids"; then
      echo "$pid"
    fi
  done
}

# ends COMMAND: $status of a job of $ranks under $launcher that would take minutes, when the
# command has put an end to it. Nothing of it is left then.
ends() {
  local more=()
  [ "$mpi" = mpich ] || more=(--oversubscribe)
  env --default-signal=INT,TERM "mpirun.$mpi" "${more[@]}" -n 2 "$WEFT" run t.csv --f 5 --b 5 \
    --steps 150 "$marker" >out 2>err 3>&- &
  launcher=$!
  await 30 "two ranks in their steps" are_running
  sleep 0.3
  "$@"
  await_end 60 "$launcher" "the launcher"
  await 10 "the end of all processes of the job" is_gone || { pgrep -fa -- "$marker" >&2; return 1; }
}

is_gone() {
  ! pgrep -f -- "$marker" >/dev/null
}

kill_first_rank() {
  # shellcheck disable=SC2086
  set -- $ranks
  kill -s "$signal" "$1"
}

kill_launcher() {
  kill -s "$signal" "$launcher"
}

@test "a rank that is killed is named by its supervisor and by the others; signals end all; nothing stays" {
  needs_mpi
  "$WEFT" gen 1F1B -p 2 -m 64 >t.csv
  marker=--dump=$BATS_TEST_TMPDIR/hang.json
  for mpi in $mpis; do
    signal=KILL
    ends kill_first_rank
    [ "$status" -eq 75 ]
    has '^weft: rank [01] (pid [0-9]* on .*) was killed by signal 9 (SIGKILL)$' err
    has '^weft: rank [01]: .*rank [01] .*died' err
    jq -e '.schema == "weft-hang/2" and (.ranks | length) == 2' hang.json
    jq -e '.error.rank as $rank | [.ranks[] | select(.process == "dead").rank] == [$rank]' hang.json
    for signal in TERM INT; do
      ends kill_launcher
      [ "$status" -ne 0 ]
      if [ "$mpi" = mpich ] || ! is_openmpi_5; then # which loses what ranks write then
        has '^weft: rank [01]: stopped by SIG' err
      fi
    done
    signal=KILL
    ends kill_launcher
    signal=TERM
    ends kill_first_rank
    has '^weft: rank [01]: stopped by SIGTERM' err
    rm hang.json
  done
}

@test "a job that does not start ends" {
  needs_mpi
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  # Rank 1 does not come.
  cat >odd <<'END'
#!/bin/bash
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || exec sleep 30
exec "$WEFT" "$@"
END
  chmod +x odd
  for mpi in $mpis; do
    WEFT_START_LIMIT=2 program=./odd on "$mpi" 2 run t.csv
    [ "$status" -ne 0 ]
    reports_once "weft: rank 0: MPI has not started after 2 s: not all of the 2 processes have come"
  done
}

@test "doctor tries each MPI, and shows where ranks are" {
  needs_mpi
  weft doctor --json
  succeeds
  for mpi in $mpis; do
    jq -e --arg mpi "$mpi" '.mpi.implementations[] | select(.name == $mpi) |
      .ok and .driver and .ping.latency_ns > 0 and .ping.bytes_per_s > 0 and .threading != null' \
      <<<"$output"
  done
  if [[ $mpis == *mpich* ]] && command -v mpichversion; then
    device=$(mpichversion | sed -n 's/^MPICH Device:[[:space:]]*//p')
    jq -e --arg device "$device" '.mpi.implementations[] | select(.name == "mpich") |
      .library | endswith(", device " + $device)' <<<"$output"
  fi
  for mpi in $mpis; do
    on "$mpi" 3 doctor --json
    succeeds
    [ "$(jq -r '.mpi | "\(.launcher) \([.ranks[].rank_on_host] | @csv) \(.ping.latency_ns > 0)"' \
      <<<"$output")" = "$mpi 0,1,2 true" ]
    on "$mpi" 2 doctor
    succeeds
    [[ $output == *"launcher      $mpi, 2 processes"*"ranks 0 and 1"*"   1   1 of 2 "*"All works."* ]]
  done
}
