#!/usr/bin/env bats
# weft run: programs executed for real, what comes out, and how it ends.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

hangs=$WEFT_SOURCE_DIR/tests/corpus/hangs

# field FIELD WORDS...: that field of the JSON of `weft run WORDS`.
field() {
  "$WEFT" run --json "${@:2}" | jq -c "$1"
}

# ends SIGNAL STATUS SECONDS WORDS...: the command gets the signal so long after it has begun, and
# ends with that status.
ends() {
  local pid
  env --default-signal=INT,TERM "$WEFT" run "${@:4}" >out 2>err &
  pid=$!
  await_handlers "$pid"
  sleep "$3"
  kill -s "$1" "$pid"
  await_end 60 "$pid" "weft run ${*:4}"
  [ "$status" -eq "$2" ] || { echo "status $status: $(cat err)" >&2; return 1; }
}

@test "run executes a table on threads, beside its prediction" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  weft run t.csv --f 1 --b 2
  succeeds
  [ "${lines[0]}" = "t.csv: 4 ranks, 4 stages, 8 microbatches, 172 actions" ]
  [ "${lines[1]}" = "ran        on threads, stages that sleep, 3 steps; the first is a warm-up and not counted" ]
  grep -Eq '^measured   makespan [0-9.]+ ms, of step [23], the median$' <<<"$output"
  grep -Eq '^simulated  makespan 33 ms; measured / simulated = [0-9.]+$' <<<"$output"
  grep -Eq '^per action -?[0-9]+ ns more than simulated, of the 51 actions' <<<"$output"
  [ "$(grep -c '^ *[0-9]' <<<"$output")" -eq 4 ]
  "$WEFT" run <t.csv | grep -q '^standard input: 4 ranks'
}

@test "run --json has the fields of the contract" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  "$WEFT" run t.csv --json --f 2 --i 1 --w 3 --steps 4 >r.json
  [ "$(jq -c '[.schema, .file, .rank_count, .stage_count, .microbatch_count, .steps, .steps_counted,
       .transport, .stage, .comm, .unit, .simulated_makespan]' r.json)" = \
    '["weft-run/1","t.csv",2,2,4,4,3,"threads","sleep","posted","ms",30]' ]
  jq -e '.measured_makespan >= 30 and .per_action_ns > 0
         and (.ratio - .measured_makespan / .simulated_makespan | fabs) < 1e-12
         and (.makespans | length) == 3 and (.makespans | sort)[1] == .measured_makespan' r.json >/dev/null
  jq -e '.measured_makespan as $m | .ranks | length == 2
         and all(.busy >= 24 and .busy + .idle - $m < 1e-9 and .simulated_busy == 24)' r.json >/dev/null
}

@test "run on loopback takes exactly the simulated time, rank by rank" {
  costs=(--f 1.5 --i 2.25 --w 0.75 --hop 0.125)
  for name in GPipe 1F1B Eager1F1B LoopedBFS Interleaved1F1B InterleavedZeroBubble ZBH1 ZBVZeroBubble DualPipeV \
      ForwardOnly; do
    "$WEFT" gen $name -p 4 -m 16 >t.csv
    for more in "" "--slow 2=1.5 --slow 0=2"; do
      # shellcheck disable=SC2086
      "$WEFT" run t.csv --transport loopback "${costs[@]}" $more --json >r.json
      # shellcheck disable=SC2086
      "$WEFT" sim t.csv "${costs[@]}" $more --json >s.json
      jq -e -s '.[0].measured_makespan == .[1].makespan and .[0].simulated_makespan == .[1].makespan
                and .[0].ratio == 1 and ([.[0].ranks[].busy] == [.[1].ranks[].busy])' r.json s.json >/dev/null
    done
  done
}

@test "run takes costs from a file: per stage, with overlaps, collectives and bandwidth" {
  "$WEFT" gen DualPipeV -p 2 -m 6 >t.csv
  printf '{"schema": "weft-costs/1", "unit": "us", "hop": {"latency": 0.5, "bytes": 3, "bytes_per_unit": 4},
    "stages": [{"f": 1, "overlap_f_b": 2.5, "unshard": 0.25, "reduce_grad": 2}, {"f": 2, "overlap_f_b": 4},
               {"f": 1, "b": 5}, {"f": 3, "i": 2, "overlap_f_b": 3.5}]}' >c.json
  [ "$(field '[.unit, .measured_makespan == .simulated_makespan]' t.csv --costs c.json --transport loopback)" = \
    '["us",true]' ]
  [ "$(field .simulated_makespan t.csv --costs c.json --transport loopback)" = \
    "$("$WEFT" lower t.csv | "$WEFT" sim --costs c.json --json | jq .makespan)" ]
}

@test "run reads units of real time" {
  "$WEFT" gen GPipe -p 1 -m 1 >t.csv
  for unit in s:0.003 ms:3 us:3000 µs:3000 μs:3000 ns:3000000 parsec:3; do
    printf '{"schema": "weft-costs/1", "unit": "%s", "stages": [{"f": %s, "b": 0}]}' "${unit%:*}" "${unit#*:}" >c.json
    "$WEFT" run t.csv --costs c.json --json >r.json
    jq -e '.ratio >= 1 and (.per_action_ns * .actions | . >= 3e6 and . < 3e9)' r.json >/dev/null
  done
  [ "$(jq -r .unit r.json)" = ms ]
}

@test "run: stages that spin, and that do nothing" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  [ "$(field '[.stage, .ratio >= 1]' t.csv --stage spin --f 0.1 --b 0.1)" = '["spin",true]' ]
  "$WEFT" run t.csv --stage null --json >r.json
  jq -e '.stage == "null" and .ratio == null and .overhead_per_action_ns == null and .per_action_ns > 0
         and .simulated_makespan == 15' r.json >/dev/null
  "$WEFT" run t.csv --stage null | grep -q '^per action [0-9]* ns: wall time of the step by the '
}

@test "run: one step is counted, and --comm can be stricter" {
  "$WEFT" gen Interleaved1F1B -p 2 -v 2 -m 4 | "$WEFT" lower >p.csv
  [ "$(field '[.steps, .steps_counted]' p.csv --steps 1 --stage null)" = '[1,1]' ]
  for comm in posted eager slots:1 rendezvous; do
    [ "$(field .comm p.csv --comm $comm --stage null)" = "\"$comm\"" ]
    [ "$(field '.ratio >= 1' p.csv --comm $comm --transport loopback)" = true ]
  done
}

@test "run verifies first, in the strictest model" {
  weft run "$hangs/crossed_sends.csv"
  fails 1 "[deadlock]" "weft verify" "--unchecked"
  hints
  weft run "$hangs/handle_dropped.csv"
  fails 1 "[pair.recv]"
  weft run "$hangs/table_in_a_circle.csv"
  fails 1 "[deadlock]"
  # Where a SEND does not wait, this one is fine.
  [ "$(field .ratio "$hangs/crossed_sends.csv" --unchecked --transport loopback)" = 1 ]
  weft run "$hangs/handle_dropped.csv" --unchecked --transport loopback
  fails 1 "1F0" "its input has not been received"
  is_tidy
}

@test "a run that hangs ends with status 75, names the cycle, and leaves a dump" {
  for transport in threads loopback; do
    weft run "$hangs/crossed_sends.csv" --unchecked --comm rendezvous --stall-limit 1 --transport $transport
    fails 75 "a cycle: rank 0 waits in 0SEND_F1 for rank 1" "'weft-hang.json'" "weft explain-hang weft-hang.json"
    [ "$(jq -r '.schema, .error.status' weft-hang.json | tr '\n' ' ')" = "weft-hang/2 stalled " ]
    weft explain-hang weft-hang.json
    succeeds
    [[ $output == *"a cycle: rank 0 waits in 0SEND_F1 for rank 1 (1RECV_F1); rank 1 waits in 1SEND_F0"* ]]
    rm weft-hang.json
  done
  weft run "$hangs/ring_of_sends.csv" --unchecked --comm rendezvous --stall-limit 0.2 --dump there.json
  fails 75 "a cycle" "'there.json'"
  [ ! -e weft-hang.json ]
  "$WEFT" explain-hang there.json | grep -q 'a cycle'
  weft run "$hangs/ring_of_sends.csv" --unchecked --comm rendezvous --transport loopback --dump none/there.json
  fails 75 "a cycle" "cannot create 'none/there.json'"
  is_tidy
}

# The thread that does not return keeps what it may use.
@test "run: a stage that does not return ends the command with status 75" {
  export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
  "$WEFT" gen GPipe -p 1 -m 2 >one.csv
  weft run one.csv --f 1000000 --stall-limit 0.3
  fails 75 "rank 0 has been in 0F0 (stage 0, microbatch 0) for" "does not return"
  "$WEFT" gen 1F1B -p 2 -m 4 >two.csv
  weft run two.csv --f 1000000 --stall-limit 0.3 --stage spin
  fails 75 "for rank 0, which is in 0F0 since"
}

@test "run: a stall limit below the clock's resolution is a limit" {
  weft run "$hangs/crossed_sends.csv" --unchecked --comm rendezvous --stall-limit 0.0000000001
  fails 75 "wait"
}

@test "run: a message out of turn ends it with status 75" {
  weft run "$hangs/pair_ordered_differently.csv" --unchecked --transport loopback
  fails 75 "rank 1 got a message from rank 0 over the edge 0>1 with microbatch"
}

@test "SIGTERM and SIGINT end the step on all ranks" {
  "$WEFT" gen 1F1B -p 4 -m 64 >t.csv
  ends TERM 143 0.4 t.csv --f 5 --b 10
  grep -q '^weft: stopped by SIGTERM in step 1 of 3; 0 steps were done, all ranks have ended$' err
  ends INT 130 0.4 t.csv --f 5 --b 10
  grep -q '^weft: stopped by SIGINT' err
  # Ranks that wait for each other forever, too.
  ends TERM 143 0.3 "$hangs/ring_of_sends.csv" --unchecked --comm rendezvous --stall-limit 0
  grep -q '^weft: stopped by SIGTERM in step 1 of 3' err
  ends INT 130 0.3 t.csv --transport loopback --steps 10000
  grep -q '^weft: stopped by SIGINT' err
  [ ! -s out ]
  [ ! -e weft-hang.json ]
  is_tidy
}

@test "a second signal ends the command at once" {
  "$WEFT" gen GPipe -p 1 -m 1 >t.csv
  env --default-signal=INT,TERM "$WEFT" run t.csv --f 60000 --b 0 >out 2>err &
  pid=$!
  await_handlers "$pid"
  sleep 0.3
  kill -s TERM "$pid"
  sleep 0.1
  kill -0 "$pid" # in a stage that sleeps for a minute
  kill -s INT "$pid"
  await_end 60 "$pid" "weft run"
  [ "$status" -eq 130 ]
}

@test "run: what cannot be run, and wrong options" {
  "$WEFT" gen 1F1B -p 2 -m 2 >t.csv
  weft run t.csv --progress thread
  fails 2 "unknown option '--progress' of 'weft run'" "it is gone"
  weft run t.csv --transport thread
  fails 2 "expected one of loopback|threads|cuda|mpi" "did you mean 'threads'"
  weft run t.csv --stage sleeep
  fails 2 "did you mean 'sleep'"
  weft run t.csv --comm slots:2
  succeeds
  weft run t.csv --comm slot
  fails 2 "posted|eager|rendezvous|slots:K"
  weft run t.csv --steps 0
  fails 2 "--steps"
  weft run t.csv --stall-limit -1
  fails 2 "--stall-limit"
  weft run t.csv --slow 2=2
  fails 2 "rank 2, but there are 2 ranks"
  weft run t.csv --f 1000000000000
  fails 2 "seconds"
  weft run t.csv --f 1 --costs c.json
  fails 2 "both give times"
  weft run no.csv
  fails 66 "no.csv"
  printf '0F0,junk\n' >bad.csv
  weft run bad.csv
  fails 65 "junk"
  printf ',\n' >idle.csv
  weft run idle.csv --unchecked
  fails 1 "nothing to run"
  hints
}

@test "run writes its report where -o says" {
  "$WEFT" gen 1F1B -p 2 -m 2 >t.csv
  weft run t.csv --transport loopback -o report.txt
  succeeds
  [ "$output" = "" ]
  grep -q '^measured ' report.txt
  weft run t.csv --transport loopback --json -o report.json
  succeeds
  [ "$(jq .ratio report.json)" = 1 ]
}

@test "run draws what it measured: a page with the prediction, a picture, a trace" {
  "$WEFT" gen DualPipeV -p 2 -m 4 >t.csv
  weft run t.csv -o x.html
  succeeds
  [[ $output == *"measured   makespan "* ]]
  has 't.csv, measured on threads' x.html
  has 't.csv, predicted' x.html
  weft run t.csv --transport loopback -o x.SVG --json
  succeeds
  [ "$(jq .ratio <<<"$output")" = 1 ]
  has '</svg>' x.SVG
  has 'measured on loopback' x.SVG
  weft run t.csv --steps 4 -o x.json
  succeeds
  jq -e '[.traceEvents[] | select(.ph == "X" and (.name | startswith("PP:")))] | length > 40' x.json >/dev/null
  # What was measured in virtual time is what was predicted.
  "$WEFT" lower t.csv >p.csv
  "$WEFT" run p.csv --transport loopback -o measured.json >/dev/null
  "$WEFT" show p.csv -o predicted.json
  diff <(jq -S '[.traceEvents[] | select(.ph == "X") | [.name, .pid, .tid, .ts, .dur]] | sort' measured.json) \
    <(jq -S '[.traceEvents[] | select(.ph == "X") | [.name, .pid, .tid, .ts, .dur]] | sort' predicted.json)
  weft run t.csv --transport loopback -o none/x.svg
  fails 74 "none/x.svg"
}

@test "a long run says how far it is, on a terminal only" {
  if ! script -qec true /dev/null >/dev/null 2>&1; then
    skip "script(1) cannot make a terminal here"
  fi
  "$WEFT" gen GPipe -p 1 -m 1 >t.csv
  run -0 script -qec "'$WEFT' run t.csv --f 700 --b 0 --steps 3" /dev/null
  [[ $output == *"weft: run: step 3 of 3"* ]]
  [[ $output != *"step 4 of 3"* ]]
  weft run t.csv --f 700 --b 0 --steps 3
  succeeds
}
