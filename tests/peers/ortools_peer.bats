#!/usr/bin/env bats
# The planner's certificates against CP-SAT (tests/peers/test_planned_ortools.py says how).
# Optional: without OR-tools it is skipped, and says so. PYTHON names another interpreter.
# Not under sanitizers: it is about files, pages and other programs.
load ../setup/cli_setup

@test "CP-SAT agrees with bounds, optimal plans and refusals" {
  status=0
  "${PYTHON:-python3}" "$BATS_TEST_DIRNAME/test_planned_ortools.py" "$WEFT" 60 >answer || status=$?
  [ "$status" -ne 127 ] || skip "there is no ${PYTHON:-python3}"
  [ "$status" -ne 69 ] || skip "$(cat answer)"
  cat answer
  [ "$status" -eq 0 ]
}
