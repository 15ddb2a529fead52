#!/usr/bin/env bats
# Planned tables on the runtime: the unequal profiles of bench/unequal_profiles.json, in
# virtual time, where what the runtime does counts and the machine does not. In real time:
# speed_planned_runs.bats.
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
