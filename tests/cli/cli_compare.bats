#!/usr/bin/env bats
# weft compare
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

document() {
  "$WEFT" compare --json "${@:2}" | jq -r "$1"
}

@test "compare lists every training schedule, best first, and says why the first wins" {
  weft compare -p 4 -m 8
  succeeds
  [ "$(grep -c '^\* ' <<<"$output")" -eq 1 ]
  for name in GPipe 1F1B Eager1F1B LoopedBFS Interleaved1F1B InterleavedZeroBubble ZBH1 ZBVZeroBubble DualPipeV; do
    grep -q "^[* ] $name " <<<"$output"
  done
  [[ $output != *ForwardOnly* && $output != *VShaped* ]]
  grep -q '^\* InterleavedZeroBubble  *4  *24.75  *24.75  *3.03 %  *4$' <<<"$output"
  [[ ${lines[-1]} == "InterleavedZeroBubble with v = 4 wins: 24.75 against 25.5 of "*"because a rank idles less "*"." ]]
}

@test "compare agrees with gen and sim" {
  document '.schedules[] | [.name, .v, .makespan, .span, .bubble_ratio, .peak_activation] | @tsv' -p 4 -m 8 >all
  while read -r name v makespan span bubble peak; do
    "$WEFT" gen "$name" -p 4 -v "$v" -m 8 | "$WEFT" sim --json >s.json
    jq -e --argjson m "$makespan" --argjson s "$span" --argjson b "$bubble" --argjson k "$peak" \
      '.makespan == $m and .span == $s and .bubble_ratio == $b and .peak_activation == $k' \
      s.json >/dev/null || { echo "$name $v"; false; }
  done <all
  [ "$(wc -l <all)" -ge 15 ]
}

@test "compare --json: fields, order, winner" {
  "$WEFT" compare -p 4 -m 8 --json >c.json
  [ "$(jq -c '[.schema, .ranks, .microbatches, .memory_limit, .winner]' c.json)" = \
    '["weft-compare/1",4,8,null,{"name":"InterleavedZeroBubble","v":4}]' ]
  jq -e '.schedules[0] | has("name") and has("v") and has("makespan") and has("span") and
         has("bubble_ratio") and has("peak_activation") and .fits' c.json >/dev/null
  jq -e '[.schedules[].makespan] | . == sort' c.json >/dev/null
  jq -e '.why | test("wins")' c.json >/dev/null
  [ "$(jq -c '.left_out' c.json)" = '[]' ]
}

@test "compare: a transfer is not divided by v" {
  "$WEFT" gen Interleaved1F1B -p 4 -v 2 -m 8 | "$WEFT" sim --f 0.5 --b 1 --hop 0.25 --costs-of stage --json | jq .makespan >one
  document '.schedules[] | select(.name == "Interleaved1F1B" and .v == 2) | .makespan' -p 4 -m 8 --hop 0.25 >two
  diff one two
  # Transfers hurt small stages more.
  [ "$(document .winner.v -p 4 -m 8)" = 4 ]
  [ "$(document .winner.v -p 4 -m 8 --hop 1)" -lt 4 ]
}

@test "compare -v: the same costs as without it, and as for sim" {
  "$WEFT" compare -p 4 -m 8 -v 2 --json >c.json
  for name in Interleaved1F1B InterleavedZeroBubble LoopedBFS ZBVZeroBubble DualPipeV; do
    "$WEFT" gen "$name" -p 4 -v 2 -m 8 | "$WEFT" sim --json >s.json
    for field in makespan span peak_activation; do
      [ "$(jq ".schedules[] | select(.name == \"$name\") | .$field" c.json)" = "$(jq ".$field" s.json)" ]
    done
  done
}

@test "compare -v: only that v; the others are left out with the reason" {
  "$WEFT" compare -p 4 -m 7 -v 2 --json >c.json
  [ "$(jq -c '[.schedules[].v] | unique' c.json)" = '[2]' ]
  [ "$(jq -r '.left_out[] | select(.name == "1F1B") | .why' c.json)" = "1F1B has 1 stage per rank; v = 2 was asked for" ]
  jq -e '.left_out[] | select(.name == "DualPipeV") | .why | test("2p")' c.json >/dev/null
  weft compare -p 4 -m 7 -v 2
  succeeds
  grep -q '^left out:' <<<"$output"
  [ "$(document '[.schedules[].v] | unique | join(" ")' -p 2 -m 4 -v 3)" = 3 ]
}

@test "compare --memory sets apart what does not fit" {
  weft compare -p 4 -m 8 --memory 4
  succeeds
  [[ $output == *$'\nover the memory limit of 4:\n'* ]]
  sed -n '/^over/,$p' <<<"$output" >over
  has '^  GPipe' over
  lacks '^  1F1B' over
  document '.schedules[] | [.fits, .peak_activation <= 4] | @tsv' -p 4 -m 8 --memory 4 | sort -u >pairs
  [ "$(cat pairs)" = $'false\tfalse\ntrue\ttrue' ]
}

@test "compare: none fits" {
  weft compare -p 4 -m 8 --memory 1
  [ "$status" -eq 1 ]
  [[ ${lines[-1]} == "no schedule fits into 1: the least, "*" needs 4." ]]
  run -1 "$WEFT" compare -p 4 -m 8 --memory 1 --json
  [ "$(jq -c '[.winner, (.schedules | map(.fits) | unique)]' <<<"$output")" = '[null,[false]]' ]
}

@test "compare --memory counts parameters and gradients, whole" {
  printf '{"schema": "weft-costs/1", "stages": [{"parameters": 10, "gradients": 4, "parameters_sharded": 1}]}' >c.json
  document '.schedules[] | select(.fits) | .name' -p 4 -m 8 -v 1 --costs c.json --memory 18 | sort >fit
  document '.schedules[] | select(.peak_activation <= 4) | .name' -p 4 -m 8 -v 1 | sort >small
  [ -s small ]
  cmp fit small
  weft compare -p 4 -m 8 -v 1 --costs c.json --memory 17
  [ "$status" -eq 1 ]
}

@test "compare: ties go to less memory, then to fewer stages" {
  weft compare -p 1 -m 4
  succeeds
  [[ ${lines[-1]} == *"wins: as fast as "* ]]
  # With all the time in F, order does not matter but memory does.
  weft compare -p 4 -m 8 -v 1 --b 0 --i 0 --w 0
  [[ ${lines[-1]} == *"wins: as fast as "* ]]
}

@test "compare: costs of each stage compare the schedules with as many stages" {
  stages() { printf '{"schema": "weft-costs/1", "unit": "us", "stages": [{"f": 3}%s]}' "$(printf ', {}%.0s' $(seq 2 "$1"))"; }
  stages 4 >c.json
  [ "$(document '[.schedules[].v] | unique | join(" ")' -p 4 -m 8 --costs c.json)" = 1 ]
  [ "$(document '[.schedules[].v] | unique | join(" ")' -p 2 -m 8 --costs c.json)" = 2 ]
  "$WEFT" gen ZBVZeroBubble -p 2 -m 8 | "$WEFT" sim --costs c.json --json | jq .makespan >one
  document '.schedules[] | select(.name == "ZBVZeroBubble") | .makespan' -p 2 -m 8 --costs c.json >two
  diff one two
  weft compare -p 2 -m 8 --costs c.json
  [[ $output == *"times in us; times are of each stage"* ]]
  weft compare -p 3 -m 8 --costs c.json
  fails 2 "4 entries" "3 ranks"
  weft compare -p 4 -v 2 -m 8 --costs c.json
  fails 2 "4 entries" "4 ranks with 2 stages"
  hints
}

@test "compare takes --slow and --channel" {
  "$WEFT" gen 1F1B -p 4 -m 8 | "$WEFT" sim --slow 2=2 --json | jq .makespan >one
  document '.schedules[] | select(.name == "1F1B") | .makespan' -p 4 -m 8 --slow 2=2 >two
  diff one two
  [ "$(document '.schedules[] | select(.name == "LoopedBFS" and .v == 2) | .makespan' -p 8 -m 32 --channel rank)" = 202.5 ]
  weft compare -p 4 -m 8 --slow 4=2
  fails 2 "rank 4"
}

@test "compare names what is missing or impossible" {
  weft compare -m 8
  fails 2 "-p, the number of ranks"
  hints
  weft compare -p 4
  fails 2 "-m, the number of microbatches"
  weft compare -p 1000000 -m 1000000
  fails 2 "no schedule has this shape" "the limit is"
  hints
  weft compare -p 4 -m 8 --jitter 0.1
  fails 2 "unknown option '--jitter'"
}

@test "compare FILE: the shape is the file's, and it is ranked as its schedule" {
  "$WEFT" gen ZBVZeroBubble -p 4 -m 8 -o mine.csv
  "$WEFT" gen 1F1B -p 4 -m 8 | "$WEFT" lower -o program.csv
  "$WEFT" compare mine.csv program.csv --hop 0.25 --json >c.json
  [ "$(jq -c '[.ranks, .microbatches, [.schedules[] | select(.file) | .name]]' c.json)" = '[4,8,["mine.csv","program.csv"]]' ]
  numbers='map([.v, .makespan, .span, .bubble_ratio, .peak_activation, .peak_memory, .fits])'
  jq -c '[.schedules[] | select(.name == "ZBVZeroBubble" or .name == "1F1B")] | '"$numbers" c.json >named
  jq -c '[.schedules[] | select(.file)] | '"$numbers" c.json >files
  cmp named files
  # A file comes before a schedule that is as good; the other rows are those without files.
  jq -c 'del(.schedules[] | select(.file)) | del(.winner, .why)' c.json >rest
  "$WEFT" compare -p 4 -m 8 --hop 0.25 --json | jq -c 'del(.winner, .why)' >without
  cmp rest without
}

@test "compare FILE: a better table wins, by text and JSON; its v is compared too" {
  "$WEFT" plan -p 3 -m 6 -v 3 --placement loop --threads 1 --effort 0.1 -o best.csv >/dev/null 2>&1
  weft compare best.csv --memory 4
  succeeds
  has '^[* ] best.csv  *3 ' <(echo "$output")
  has '^  Interleaved1F1B  *3 ' <(echo "$output")
  "$WEFT" sim best.csv --json >s.json
  "$WEFT" compare - --json <best.csv >c.json
  jq -e --slurpfile s s.json '.schedules[] | select(.file) |
    .name == "standard input" and .v == 3 and .makespan == $s[0].makespan' c.json >/dev/null
  printf '0F0,1F0,1B0,0B0\n' >one.csv
  weft compare one.csv
  succeeds
  has '^[* ] one.csv  *2 ' <(echo "$output")
  # Stages of ranks may differ in number.
  printf '0F0,1F0,,,1B0,0B0\n,,2F0,2B0,,\n' >uneven.csv
  weft compare uneven.csv
  succeeds
  has '^[* ] uneven.csv  *1.5 ' <(echo "$output")
}

@test "compare FILE: what is not comparable is refused" {
  "$WEFT" gen 1F1B -p 4 -m 8 -o a.csv
  "$WEFT" gen 1F1B -p 2 -m 8 -o b.csv
  weft compare a.csv b.csv
  fails 2 "b.csv has 2 ranks" "not 4 and 8 as a.csv"
  hints
  weft compare -p 3 a.csv
  fails 2 "a.csv has 4 ranks" "not 3 and 8 as asked for"
  weft compare -v 2 a.csv
  fails 2 "a.csv has 4 stages" "4 ranks with 2 stages"
  hints
  weft compare - - <a.csv
  fails 2 "only once"
  weft compare a.csv --costs - <<<'{"schema": "weft-costs/1", "stages": [{}, {}]}'
  fails 2 "2 entries"
  weft compare - --costs - <a.csv
  fails 2 "only once"
  "$WEFT" gen ForwardOnly -p 4 -m 8 -o forward.csv
  weft compare forward.csv
  fails 2 "no backward"
  printf '0F0,0B0\n1F0\n' >broken.csv
  weft compare broken.csv
  fails 1 "broken.csv"
  weft compare missing.csv
  fails 66 "missing.csv"
  weft compare a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv a.csv
  fails 2 "too many"
}
