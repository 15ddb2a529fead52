#!/usr/bin/env bats
# Planned tables on the runtime: the unequal profiles of bench/unequal_profiles.json, in
# virtual time, where what the runtime does counts and the machine does not. In real time:
# speed_planned_runs.bats.
# Not under sanitizers: other tests run the same code there.
# shellcheck disable=SC2154
load ../setup/cli_setup

profiles=$WEFT_SOURCE_DIR/bench/unequal_profiles.json

# profile N: its costs become costs.json, its shape $shape.
profile() {
  jq ".profiles[$1] | {schema: \"weft-costs/1\", unit: \"ms\",
      stages: [.stages[] | {f: .[0], i: .[1], w: .[2]}]}" "$profiles" >costs.json
  read -r -a shape < <(jq -r ".profiles[$1] | \"-p \(.stages | length) -m \(.microbatches)\"" "$profiles")
}

@test "planned tables take what they promise, and less than every named schedule" {
  count=$(jq '.profiles | length' "$profiles")
  [ "$count" -ge 10 ]
  for ((n = 0; n < count; n++)); do
    profile "$n"
    "$WEFT" plan "${shape[@]}" --costs costs.json --effort 0.1 --threads 1 --json -o t.csv >plan.json
    "$WEFT" run t.csv --costs costs.json --transport loopback --steps 2 --json >run.json
    # Named ones run as they are simulated: test_run_timing.c.
    "$WEFT" compare "${shape[@]}" --costs costs.json --json >named.json
    if ! jq -s -e '.[1].measured_makespan == .[0].makespan and (.[2].schedules | length) >= 5
                   and ([.[2].schedules[].makespan] | min) > .[1].measured_makespan' \
      plan.json run.json named.json >/dev/null; then
      echo "profile $n: $(jq -s -c '[.[0].makespan, .[1].measured_makespan,
        .[2].schedules[].makespan]' plan.json run.json named.json)" >&2
      return 1
    fi
  done
}

# keeps_promise COSTS OPTION...: the plan lowers, verifies, and simulates and runs to its numbers.
keeps_promise() {
  local given=$1
  shift
  "$WEFT" plan --costs "$given" --effort 0.1 --threads 1 --json -o t.csv "$@" >plan.json
  jq .costs plan.json >costs.json
  "$WEFT" lower t.csv -o program.csv
  "$WEFT" verify program.csv >/dev/null
  "$WEFT" sim t.csv --costs costs.json --json >sim.json
  "$WEFT" run program.csv --costs costs.json --transport loopback --steps 2 --json >run.json
  if ! jq -s -e '([.[0, 1] | [.makespan, .span, .peak_activation]] | .[0] == .[1])
                 and .[0].peak_memory == ([.[1].ranks[].peak_memory] | max)
                 and .[2].measured_makespan == .[0].makespan
                 and .[0].bound <= .[0][.[0].objective]' plan.json sim.json run.json >/dev/null; then
    echo "$given $*: $(jq -s -c '[.[0, 1] | [.makespan, .span, .peak_memory]], .[2].measured_makespan' \
      plan.json sim.json run.json)" >&2
    return 1
  fi
}

@test "plans of every kind lower, verify, simulate and run to the promised numbers" {
  cases=$BATS_TEST_DIRNAME/../plan/cases
  # Whole and split backwards.
  keeps_promise "$cases/mixed_4.json" -p 4 -m 8 -v 1 --memory 4
  keeps_promise "$cases/mixed_2.json" -p 2 -m 5 -v 1 --objective span
  grep -q B t.csv
  grep -q W t.csv
  # Several stages per rank, with gradients, as loop and V, little memory, no split.
  keeps_promise "$cases/loop_3.json" -p 3 -m 4 -v 2 --placement loop --memory 5
  keeps_promise "$cases/v_4.json" -p 4 -m 3 -v 2 --placement v --objective span --no-split --memory 7
  keeps_promise "$cases/gradients.json" -p 2 -m 2 -v 2 --placement loop --memory 11
  keeps_promise "$cases/no_time.json" -p 4 -m 12 --placement loop --memory 4
  printf '{"schema": "weft-costs/1", "unit": "us", "stages": [{"f": 3, "i": 2, "w": 2, "b": 3.5}],
    "hop": {"latency": 0.5, "bytes": 1000, "bytes_per_unit": 4000}}' >hop.json
  keeps_promise hop.json -p 4 -m 8 -v 4 --placement v --memory 10
  keeps_promise hop.json -p 3 -m 7 -v 3 --placement loop
  # v, placement and the partition of layers chosen.
  keeps_promise "$cases/layers_34.json" -p 8 -m 16 -v 1 --memory 39.48
  keeps_promise "$cases/layers_34.json" -p 4 -m 8
  jq -e '.stage_parts | length >= 4' plan.json
}
