#!/usr/bin/env bats
# weft sim with times: numbers, costs, options, errors
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

# number FIELD WORDS...: that field of the JSON of `weft sim WORDS`.
number() {
  "$WEFT" sim --json "${@:2}" | jq -r "$1"
}

one_stage() { # FIELDS: a costs file with one entry
  printf '{"schema": "weft-costs/1", "unit": "ms", "stages": [{%s}]}\n' "$1"
}

@test "sim prints the whole, the ranks, and why they idle" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  weft sim t.csv
  succeeds
  [ "${lines[0]}" = "t.csv: 4 ranks, 4 stages, 8 microbatches" ]
  [ "${lines[1]}" = "costs             times are of a rank's share of the model, one stage" ]
  [ "${lines[2]}" = "makespan          33" ]
  grep -qx 'bubble  *27.27 % of the makespan, 27.27 % of the span' <<<"$output"
  grep -qx 'peak activation  *4, on rank 0 at 3' <<<"$output"
  grep -qx ' rank  busy  idle  span  peak .* start  gradient  end' <<<"$output"
  [ "$(grep -c '^ *[0-9]' <<<"$output")" -eq 4 ]
}

@test "sim --json has the fields of the contract" {
  "$WEFT" gen 1F1B -p 2 -m 2 | "$WEFT" sim --json >s.json
  [ "$(jq -c '[.schema, .unit, .makespan, .span, .period, .peak_activation, .peak_at]' s.json)" = \
    '["weft-sim/1","",9,9,9,2,1]' ]
  jq -e '[.bubble_ratio, .span_bubble_ratio] | all((. - 1 / 3) | fabs < 1e-15)' s.json >/dev/null
  [ "$(jq -c '.ranks[0] | [.busy, .idle, .span, .peak_activation, (.idle_by_cause | keys)]' s.json)" = \
    '[6,3,9,2,["channel","end","forward","gradient","start","unshard"]]' ]
  jq -e '.ranks | all((.idle_by_cause | add) == .idle and .busy + .idle == 9)' s.json >/dev/null
  jq -e 'has("critical_path") or has("jitter") or has("memory_limit") | not' s.json >/dev/null
}

@test "sim takes times from options, as decimals and fractions" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  [ "$(number .makespan t.csv --f 2)" = 44 ]              # (m + p - 1)(f + b)
  [ "$(number .makespan t.csv --b 3)" = 44 ]
  [ "$(number .makespan t.csv --i 1.5 --w .5)" = 33 ]     # B = I + W
  [ "$(number .makespan t.csv --f 1/3 --b 2/3)" = 11 ]
  [ "$(number .makespan t.csv --f 0 --b 0)" = 0 ]
  [ "$(number .makespan t.csv --hop 1/2)" = 41 ]
  "$WEFT" gen ZBH1 -p 4 -m 8 >z.csv
  [ "$(number .makespan z.csv --f 3 --i 2 --w 1)" = 60 ]  # m(f + i + w) + (p - 1)(f + i - w)
}

@test "sim takes times from a file, in its unit" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  one_stage '"f": 2, "i": 0.5, "w": 0.5, "activation": 3' >c.json
  weft sim t.csv --costs c.json
  succeeds
  grep -qx 'makespan  *33 ms' <<<"$output"
  grep -q '^peak activation  *12,' <<<"$output"
  [ "$(number .unit t.csv --costs c.json)" = ms ]
  printf '{"schema": "weft-costs/1", "stages": [{"f": 1}, {"f": 2}, {"f": 1}, {"f": 1}]}' >four.json
  [ "$(number .makespan t.csv --costs four.json)" = 39 ]  # rank 1: 32 of work, starts at 1, waits 4, ends 2 early
  [ "$("$WEFT" sim t.csv --json --costs - <c.json | jq .makespan)" = 33 ]
}

@test "sim: stages in the costs and in the table must agree" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  printf '{"schema": "weft-costs/1", "stages": [{}, {}, {}]}' >three.json
  weft sim t.csv --costs three.json
  fails 2 "three.json" "3 entries" "4 stages"
  hints
}

@test "sim: malformed costs are shown with field, line and a caret" {
  "$WEFT" gen 1F1B -p 2 -m 2 >t.csv
  printf '{"schema": "weft-costs/1",\n "stages": [{"f": 1},\n  {"f": -2}]}\n' >bad.json
  weft sim t.csv --costs bad.json
  fails 65 "bad.json:3:9: stages[1].f: expected a number from 0 to 1e+12, found -2" '{"f": -2}' '^'
  hints
  for value in NaN Infinity 1e30 1000000000000000000000000000000 '"1"' null; do
    one_stage "\"w\": $value" >bad.json
    weft sim t.csv --costs bad.json
    fails 65 "bad.json:1:" "stages[0].w"
    hints
  done
  one_stage '"q": 1' >$'evil\x1b[31m.json'
  weft sim t.csv --costs $'evil\x1b[31m.json'
  fails 65 'evil\x1b[31m.json' "stages[0].q: unknown field"
  weft sim t.csv --costs none.json
  fails 66 "none.json" "costs in JSON"
  weft sim t.csv --costs /dev/zero
  fails 65
}

@test "sim: numbers of options are checked by name" {
  "$WEFT" gen 1F1B -p 2 -m 2 >t.csv
  for value in -1 x 1e3 nan inf 0x10 1/0 1/ /2 1//2 '' 1.2.3 1000000000001 ' 1' 1,5; do
    weft sim t.csv --f "$value"
    fails 2 "--f '$value'" "expected a number from 0 to 1000000000000"
    hints
  done
  weft sim t.csv --i 900000000000 --w 900000000000
  fails 2 "stages[0].b"
  weft sim t.csv --jitter 1.5
  fails 2 "--jitter '1.5' is over the limit"
}

@test "sim: --costs and times exclude each other, and standard input is read once" {
  one_stage '' >c.json
  "$WEFT" gen 1F1B -p 2 -m 2 >t.csv
  weft sim t.csv --costs c.json --hop 1
  fails 2 "--hop and --costs"
  hints
  weft sim --costs -
  fails 2 "only once"
  weft sim - --costs -
  fails 2 "only once"
}

@test "sim --channel: what one queue per rank costs" {
  "$WEFT" gen LoopedBFS -p 8 -v 2 -m 32 >l.csv
  [ "$(number .makespan l.csv)" = 106.5 ]
  [ "$(number .makespan l.csv --costs-of stage)" = 213 ]
  [ "$(number .makespan l.csv --channel rank)" = 202.5 ]
  "$WEFT" lower l.csv --no-unshard --no-reduce-grad >p.csv
  [ "$(number .makespan p.csv --channel rank --costs-of stage)" = 405 ]
  "$WEFT" gen Interleaved1F1B -p 8 -v 4 -m 16 >i.csv
  [ "$(number .makespan i.csv --channel edge --costs-of stage)" = 213 ]
  [ "$(number .makespan i.csv --channel rank)" = 90 ]
  "$WEFT" gen ZBVZeroBubble -p 8 -v 2 -m 32 >z.csv
  [ "$(number .makespan z.csv)" = 99.5 ]
  [ "$(number .makespan z.csv --channel rank)" = 105.5 ]
  [ "$(number '.ranks | map(.idle_by_cause.channel) | add > 0' z.csv --channel rank)" = true ]
}

@test "sim --slow" {
  "$WEFT" gen GPipe -p 2 -m 4 >t.csv
  [ "$(number .makespan t.csv)" = 15 ]
  [ "$(number '[.makespan, .ranks[1].busy] | join(" ")' t.csv --slow 1=2)" = "27 24" ]
  [ "$(number '[.ranks[].busy] | join(" ")' t.csv --slow 0=1/2 --slow 1=1.5)" = "6 18" ]
  weft sim t.csv --slow 2=2
  fails 2 "rank 2" "2 ranks"
  for value in 1 =2 x=2 1=x 1=0 1=-1 -1=2 99999999999=2 1=9999999 ''; do
    weft sim t.csv --slow "$value"
    fails 2 "--slow"
    hints
  done
  words=()
  for _ in {1..1025}; do words+=(--slow "0=2"); done
  weft sim t.csv "${words[@]}"
  fails 2 "more than 1024 times"
}

@test "sim --memory: over the limit is status 1, and says which rank" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  weft sim t.csv --memory 4
  succeeds
  weft sim t.csv --memory 2.5
  [ "$status" -eq 1 ]
  [[ $output == *"makespan          33"* ]]
  [[ $stderr == "weft: t.csv: rank 0 needs 4 of memory, and the limit is 2.5; 2 of 4 ranks are over it"* ]]
  hints
  run --separate-stderr -1 "$WEFT" sim t.csv --memory 2.5 --json
  [ "$(jq -c '[.memory_limit, .over_limit]' <<<"$output")" = '[2.5,[0,1]]' ]
  # Ten times a tenth is no more than one.
  one_stage '"activation": 0.1' >c.json
  "$WEFT" gen GPipe -p 2 -m 10 >g.csv
  weft sim g.csv --costs c.json --memory 1
  succeeds
}

@test "sim --memory counts parameters and gradients where the costs have their sizes" {
  "$WEFT" gen 1F1B -p 2 -m 4 | "$WEFT" lower >p.csv
  weft sim p.csv --memory 2
  succeeds
  [[ $output != *memory* && $output != *parameters* && $output != *gradients* ]]
  one_stage '"parameters": 10' >c.json
  weft sim p.csv --costs c.json --memory 12
  succeeds
  grep -qx ' rank .* peak  memory  parameters  buffers .*' <<<"$output"
  grep -qx ' *0 .* 2      12          10 .*' <<<"$output"
  weft sim p.csv --costs c.json --memory 11.5
  [ "$status" -eq 1 ]
  [[ $stderr == "weft: p.csv: rank 0 needs 12 of memory, and the limit is 11.5; 1 of 2 ranks are over it"* ]]
  one_stage '"parameters": 10, "gradients": 4, "parameters_sharded": 3, "gradients_sharded": 1' >c.json
  weft sim p.csv --costs c.json --memory 16
  succeeds
  grep -qx ' rank .* peak  memory  parameters  gradients  buffers .*' <<<"$output"
  grep -qx ' *0 .* 2      16          10          4 .*' <<<"$output"
  run --separate-stderr -1 "$WEFT" sim p.csv --costs c.json --memory 15 --json
  [ "$(jq -c '.over_limit, (.ranks[] | [.peak_activation, .peak_parameters, .peak_gradients, .peak_memory])' <<<"$output" | tr '\n' ' ')" = \
    '[0] [2,10,4,16] [1,10,4,15] ' ]
  for command in sim compare; do
    "$WEFT" "$command" --help | tr -s ' \n' ' ' >help
    grep -q 'activations, and parameters and gradients where the costs have their sizes' help
    grep -q 'memory limit of a rank, in the unit of the activations' help
  done
}

@test "sim --critical-path is a chain from the start to the end" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  number '.critical_path[] | [.rank, .begin, .end, .action] | @tsv' t.csv --hop 1/4 --critical-path >path
  [ "$(head -n 1 path | cut -f 4)" = 0F0 ]
  [ "$(tail -n 1 path | cut -f 3)" = "$(number .makespan t.csv --hop 1/4)" ]
  awk '$2 < end { exit 1 } { end = $3 }' path
  weft sim t.csv --critical-path
  succeeds
  grep -qx 'critical path: [0-9]* actions' <<<"$output"
  grep -qx ' *0  *1  *0  0F0' <<<"$output"
}

@test "sim --jitter: percentiles, the same for the same seed" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  number .jitter t.csv --jitter 0.1 --runs 50 --seed 7 >a
  number .jitter t.csv --jitter 0.1 --runs 50 --seed 7 >b
  number .jitter t.csv --jitter 0.1 --runs 50 --seed 8 >c
  cmp a b
  run ! cmp -s a c
  jq -e '.runs == 50 and .share == 0.1 and .min <= .p50 and .p50 <= .p90 and .p90 <= .p99 and .p99 <= .max
         and .min < .max and .p50 > 25 and .p50 < 45' a >/dev/null
  [ "$(number .makespan t.csv --jitter 0.1)" = 33 ]
  [ "$(number '.jitter | [.runs, .min, .max] | join(" ")' t.csv --jitter 0)" = "100 33 33" ]
  weft sim t.csv --jitter 0.1 --runs 20
  succeeds
  grep -q '^jitter  *makespan p50 .*, p90 .*, p99 .* in 20 runs whose times vary by 10 %' <<<"$output"
  weft sim t.csv --runs 5
  fails 2 "--runs" "--jitter"
  weft sim t.csv --seed 5
  fails 2 "--seed" "--jitter"
}

@test "sim: what is invalid or stuck ends with 1 and the reason" {
  printf '0F0,0F1,0B0\n' >missing.csv
  weft sim missing.csv
  fails 1 "missing.csv: rank 0 step 1: " "no backward"
  hints
  printf '0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n' >stuck.csv
  weft sim stuck.csv
  fails 1 "stuck.csv" "deadlock"
  hints
  # It hangs with blocking sends; the simulation buffers them.
  printf '0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n' >p.csv
  weft sim p.csv
  succeeds
  printf 'x\n' >malformed.csv
  weft sim malformed.csv
  fails 65 "malformed.csv:1:1"
}

@test "sim takes programs with everything, overlaps too" {
  for name in 1F1B Interleaved1F1B ZBVZeroBubble DualPipeV; do
    "$WEFT" gen $name -p 4 -m 8 >t.csv
    "$WEFT" lower t.csv >p.csv
    [ "$(number .makespan t.csv)" = "$(number .makespan p.csv)" ]
  done
  one_stage '"f": 1, "i": 1, "w": 1, "overlap_f_b": 2' >c.json
  "$WEFT" gen DualPipeV -p 4 -m 8 >t.csv
  [ "$(number .makespan t.csv --costs c.json)" -lt "$(number .makespan t.csv)" ]
}

@test "sim: many ranks are cut in the text, and complete in JSON" {
  "$WEFT" gen 1F1B -p 40 -m 2 >t.csv
  weft sim t.csv
  succeeds
  [[ ${lines[-1]} == "  ... 8 more ranks; --json has them all" ]]
  [ "$(number '.ranks | length' t.csv)" = 40 ]
}

@test "sim --steps takes no times" {
  "$WEFT" gen 1F1B -p 2 -m 2 >t.csv
  for words in '--f 1' '--costs x' '--slow 0=2' '--channel pair' '--memory 3' --critical-path; do
    # shellcheck disable=SC2086
    weft sim --steps t.csv $words
    fails 2 "untimed"
    hints
  done
}

@test "sim -o writes the text to a file" {
  "$WEFT" gen 1F1B -p 2 -m 2 >t.csv
  weft sim t.csv -o out.txt
  succeeds
  has '^makespan' out.txt
  is_tidy
}

@test "sim: what is consumed in no time when it comes takes no buffer" {
  printf '%s\n' 0F0,0F1,2F0,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1 \
    1F0,1F1,3F0,3I0,3W0,3F1,3I1,3W1,1I0,1W0,1I1,1W1 >t.csv
  printf '%s\n' '{"schema": "weft-costs/1", "stages":' \
    '[{"f": 1, "i": 0, "w": 0}, {"f": 2, "i": 0, "w": 0}, {"f": 1, "i": 0, "w": 0}, {"f": 1, "i": 0, "w": 0}]}' >c.json
  "$WEFT" sim t.csv --costs c.json --json >s.json
  jq -e 'all(.ranks[]; .receive_buffers <= 2)' s.json >/dev/null
}

# One file, one answer: a rank's share of the model unless the costs are of stages.
@test "plan, sim, show, compare and run agree about the times and the memory of a table" {
  agree() { # TABLE MAKESPAN MEMORY WORDS [OPTION...]
    local table=$1 makespan=$2 memory=$3 words=$4
    shift 4
    [ "$(number '"\(.makespan) \(.peak_activation)"' "$table" "$@")" = "$makespan $memory" ]
    weft show "$table" "$@"
    [[ $output == *"makespan $makespan, "*"peak memory $memory on rank"*$'\n'"$words"* ]]
    weft run "$table" --transport loopback "$@"
    [[ $output == *$'\n'"costs      $words"$'\n'*"simulated  makespan $makespan; measured / simulated = 1.0000"* ]]
    "$WEFT" compare "$table" --json "$@" >c.json
    [ "$(jq -r '.schedules[] | select(.file) | "\(.makespan) \(.peak_activation)"' c.json)" = "$makespan $memory" ]
  }
  weft plan -p 4 -m 8 --memory 3 --threads 1 -o plan.csv
  [[ $output == *"makespan 25.75"*"a stage takes 1/4"*"memory            3 at most"*$'\n'"repeat            weft sim plan.csv --costs plan.costs.json"$'\n'* ]]
  agree plan.csv 25.75 3 "times are of a rank's share of the model: a stage takes 1/4"
  agree plan.csv 25.75 3 "times are of each stage" --costs plan.costs.json
  agree plan.csv 103 12 "times are of a stage" --costs-of stage
  "$WEFT" gen zbv -p 4 -m 8 -o zbv.csv
  agree zbv.csv 25.5 4 "times are of a rank's share of the model: a stage takes 1/2"
  # Three stages on two ranks, and a graph: each stage has 2/3 of a rank's share.
  printf '0F0,1F0,1B0,0B0\n2F0,2B0\n' >odd.csv
  [ "$(number .makespan odd.csv)" = 6 ]
  weft sim odd.csv
  [[ $output == *"a stage takes 2/3"* ]]
  [ "$(number '[.costs_of, .stage_share * 3] | join(" ")' odd.csv)" = "rank 2" ]
  echo '{"schema": "weft-graph/1", "stages": 4, "edges": [{"from": 0, "to": 1}, {"from": 0, "to": 2}, {"from": 1, "to": 3}, {"from": 2, "to": 3}]}' >g.json
  weft plan --graph g.json -p 2 -m 4 --threads 1 --effort 0.05 -o graph.csv
  [[ $output == *"a stage takes 1/2"* ]]
  "$WEFT" plan --graph g.json -p 2 -m 4 --threads 1 --effort 0.05 --json | jq -c '[.makespan, .peak_activation]' >planned
  "$WEFT" sim graph.csv --graph g.json --json | jq -c '[.makespan, .peak_activation]' | diff planned -
  "$WEFT" sim graph.csv --graph g.json --costs graph.costs.json --json | jq -c '[.makespan, .peak_activation]' | diff planned -
}

@test "a given number of stages per rank changes nothing about the costs, and no help says so" {
  [ "$("$WEFT" compare -p 4 -v 2 -m 8 --json | jq .schedules[0].makespan)" = 25.5 ]
  [ "$("$WEFT" plan -p 4 -v 2 -m 8 --threads 1 --effort 0.05 --json | jq .makespan)" = 25.5 ]
  for command in sim compare plan show run; do
    run -0 "$WEFT" help "$command"
    output=$(tr -s ' \n' ' ' <<<"$output")
    [[ $output == *"are of: a rank's share of the model"* && $output != *"osts are of a stage"* && $output != *"as for sim"* ]]
  done
}

@test "--costs-of: what a costs file says of itself; entries for each stage are what they say" {
  "$WEFT" gen zbv -p 2 -m 4 -o z.csv
  echo '{"schema": "weft-costs/1", "of": "stage", "stages": [{}]}' >s.json
  [ "$(number .makespan z.csv --costs s.json)" = "$(number .makespan z.csv --costs-of stage)" ]
  [ "$(number .makespan z.csv --costs s.json --costs-of rank)" = "$(number .makespan z.csv)" ]
  echo '{"schema": "weft-costs/1", "stages": [{}, {}, {}, {}]}' >e.json
  [ "$(number .makespan z.csv --costs e.json)" = "$(number .makespan z.csv --costs-of stage)" ]
  weft sim z.csv --costs e.json --costs-of rank
  fails 2 "'e.json' has times for each of 4 stages" "leave --costs-of out"
  weft sim z.csv --costs-of model
  fails 2 "rank|stage"
}
