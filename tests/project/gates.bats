#!/usr/bin/env bats
# What tools/gates.sh says of results that are better, equal and worse than the stored ones.
# Not under sanitizers: it is about scripts.
bats_require_minimum_version 1.5.0

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  compare=$WEFT_SOURCE_DIR/tools/compare_gates.py
  rows 100 90 200 200
  printf '%s\n' 'gen A: 1000' 'sim A: 100' >instructions.txt
  "$compare" store base abc1234 .
}

# rows PLAN BOUND PLAN BOUND: the results of a gate with two cases.
rows() {
  printf '[{"id": 0, "value": %s, "bound": %s}, {"id": 1, "value": %s, "bound": %s}]' "$@" >plan-gaps.json
}

@test "equal and better results pass" {
  "$compare" compare base plan-gaps .
  "$compare" compare base instructions .
  rows 99 91 200 200
  run -0 "$compare" compare base plan-gaps .
  [[ $output == "then: abc1234"*"id 0"*"-1.000 %"*"2 plans, 1 equal: mean change -0.5000 %"* ]]
  rows 98 90 200.9 200
  "$compare" compare base plan-gaps .
}

@test "one plan, the mean, the bounds: each may fail" {
  rows 98 90 201.1 200
  run -1 "$compare" compare base plan-gaps .
  [[ $output == *"id 1"*"WORSE by more than 0.5 %"* ]]
  rows 100.1 91 200 200
  run -1 "$compare" compare base plan-gaps .
  [[ $output == *"mean change +0.0500 %  WORSE"* ]]
  rows 100 89 200 200
  run -1 "$compare" compare base plan-gaps .
  [[ $output == *"mean gap to the bound 5.5556 -> 6.1798 %  WORSE"* ]]
  rows 100 90 201 200.5
  run -1 "$compare" compare base plan-gaps .
  [[ $output == *"FALSE BOUND"* ]]
}

@test "3 % more instructions pass, more fail" {
  printf '%s\n' 'gen A: 1030' 'sim A: 90' >instructions.txt
  "$compare" compare base instructions .
  printf '%s\n' 'gen A: 1031' 'sim A: 90' >instructions.txt
  run -1 "$compare" compare base instructions .
  [[ $output == *"gen A"*"MORE than 3 %"* ]]
}

@test "results that cannot be compared are refused" {
  echo 'gen B: 1000' >instructions.txt
  run -1 "$compare" compare base instructions .
  [[ $output == *"other cases than in base: measure commit abc1234 again"* ]]
  sed -i 's/"cc [0-9.]*/"cc 1.2.3/' base
  printf '%s\n' 'gen A: 1000' 'sim A: 100' >instructions.txt
  run -1 "$compare" compare base instructions .
  [[ $output == *"counts of 'cc 1.2.3,"*"build commit abc1234 here"* ]]
}

@test "gates.sh explains itself, and refuses what it does not know" {
  run -0 "$WEFT_SOURCE_DIR/tools/gates.sh" --help
  [[ $output == *"planning-cases"*"--base FILE"* ]]
  run -2 "$WEFT_SOURCE_DIR/tools/gates.sh" speed
  [[ $output == *"unknown gate 'speed'"* ]]
}
