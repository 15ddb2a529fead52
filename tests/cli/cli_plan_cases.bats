#!/usr/bin/env bats
# Cases in which the planner once gave a false bound, a false refusal or a poor plan.
# Not under sanitizers: other tests run the same code there.
# shellcheck disable=SC2154
load ../setup/cli_setup

# A quarter of a second of work, and the same everywhere.
quick=(--effort 0.25 --threads 1)

# takes_at_most VALUE OBJECTIVE COSTS OPTION...: the plan is as good, and the simulator agrees.
takes_at_most() {
  local value=$1 objective=$2 costs=$BATS_TEST_DIRNAME/../plan/cases/$3
  shift 3
  weft plan --costs "$costs" --objective "$objective" "${quick[@]}" "$@" --json -o plan.csv
  succeeds
  jq -e --arg what "$objective" --argjson most "$value" '
    .[$what] <= $most and .bound <= .[$what] and (.optimal == (.bound == .[$what]))
    and .peak_memory <= (.memory_limit // 1e9) * (1 + 1e-8)' <<<"$output" >/dev/null || {
    jq -c '{makespan, span, bound, optimal, stage_parts}' <<<"$output"
    return 1
  }
}

@test "whole and split backwards are mixed where a whole one is cheaper" {
  takes_at_most 552 makespan mixed_4.json -p 4 -m 8 -v 1 --memory 4
  jq -e '.bound <= 543' <<<"$output"
  takes_at_most 1128 makespan mixed_8.json -p 8 -m 16 -v 1 --memory 8
  jq -e '.bound <= 1116' <<<"$output"
  takes_at_most 70 span mixed_2.json -p 2 -m 5 -v 1
  # A table with both kinds.
  grep -q 'B' plan.csv
  grep -q 'W' plan.csv
}

@test "gradients take memory from the first backward of a stage on" {
  takes_at_most 13 makespan gradients.json -p 2 -m 2 -v 2 --placement loop --memory 11
  takes_at_most 9 makespan gradients.json -p 2 -m 1 -v 2 --placement loop --memory 9
}

@test "a refusal names the least limit, which is accepted" {
  weft plan -p 4 -m 4 -v 1 --costs "$BATS_TEST_DIRNAME/../plan/cases/parameters.json" --memory 15
  fails 1 "the least is 21: rank 0 has 20 of parameters and gradients"
  takes_at_most 1000 makespan parameters.json -p 4 -m 4 -v 1 --memory 21
}

@test "the partition is planned together with the order" {
  quick=(--effort 0.5 --threads 1) # the usual effort: with half of it two of these are 0.3 and 1 % worse
  takes_at_most 2840 makespan layers_34.json -p 8 -m 32 -v 1 --memory 26.32
  takes_at_most 1220 makespan layers_34.json -p 8 -m 16 -v 1 --memory 39.48
  takes_at_most 1008 makespan layers_34.json -p 8 -m 16 -v 1 --memory 65.8
  takes_at_most 437 makespan layers_8.json -p 3 -m 8 -v 1 --memory 10.667
}

@test "several stages per rank, and actions that take no time" {
  takes_at_most 133 makespan loop_3.json -p 3 -m 4 -v 2 --placement loop --memory 5
  takes_at_most 219 span v_4.json -p 4 -m 3 -v 2 --placement v --no-split --memory 7
  takes_at_most 1063 makespan no_time.json -p 4 -m 12 --placement loop --memory 4
}

@test "too many microbatches are refused at once" {
  weft plan -p 4 -m 10000000
  fails 2 "more than the 67108864 that a plan may have"
  hints
}

# gets_better OPTION...: more effort is never worse, for a seed and a number of threads.
gets_better() {
  local effort before=1e99 value objective
  for effort in 0.001 0.004 0.01 0.03 0.1; do
    value=$("$WEFT" plan "$@" --effort "$effort" --json | jq '.[.objective]')
    if [ "$(jq -n "$value <= $before")" != true ]; then
      echo "$*: $value with an effort of $effort, and $before with less" >&2
      return 1
    fi
    before=$value
  done
}

@test "more effort is never worse" {
  cases=$BATS_TEST_DIRNAME/../plan/cases
  gets_better -p 16 -m 64 -v 2 --memory 16 --costs "$cases/loop_16.json" --threads 1
  gets_better -p 8 -m 32 -v 1 --memory 26.32 --costs "$cases/layers_34.json" --threads 1
  gets_better -p 8 -m 16 --memory 39.48 --costs "$cases/layers_34.json" --threads 2 --seed 3
  gets_better -p 8 -m 16 -v 1 --memory 8 --costs "$cases/mixed_8.json" --threads 1
  gets_better -p 3 -m 4 -v 2 --placement loop --memory 5 --costs "$cases/loop_3.json" --threads 1 --objective span
  gets_better -p 8 -m 16 --memory 4 --hop 0.3 --threads 2 --seed 1
  gets_better -p 6 -m 24 -v 4 --f 3 --i 4 --w 2 --hop 0.7 --memory 30 --threads 1
}
