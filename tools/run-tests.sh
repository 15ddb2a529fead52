#!/bin/bash
# Runs ctest on one build after the other, and ends with the sum of all of them
# as a line of its own:
#
#     tools/run-tests.sh PRESET [PRESET...] [-- CTEST-OPTION...]
#
# What a test program skipped (bats, cmocka) stands before that line, with the
# reason. Exit status 1 when a test failed, in whichever build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

presets=()
while [[ $# -gt 0 && $1 != -- ]]; do
  presets+=("$1")
  shift
done
[[ $# -gt 0 ]] && shift

passed=0
failed=0
log=$(mktemp)
skipped=$(mktemp)
trap 'rm -f "$log" "$skipped"' EXIT

folder_of() { # PRESET: its build folder, as in CMakePresets.json
  [[ $1 == release ]] && echo build || echo "build-$1"
}

for preset in "${presets[@]}"; do
  printf '\n== tests: %s\n' "$preset"
  status=0
  # Fuzzers run for a time, not for an amount of work: all at once, whatever the cores.
  more=()
  [[ $preset == fuzz ]] && more=(-j 8)
  ctest --preset "$preset" --no-tests=error "$@" "${more[@]}" 2>&1 | tee "$log" || status=$?
  # "100% tests passed, 0 tests failed out of 12"
  read -r bad all < <(
    sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests* failed out of \([0-9]*\)$/\1 \2/p' "$log"
    echo 0 0
  )
  if [[ $status -ne 0 && $bad -eq 0 ]]; then
    bad=$((bad + 1)) # ctest itself failed
    all=$((all + 1))
  fi
  sed -nE "s/^(ok [0-9]+ (.*) # skip ?(.*)|\\[  SKIPPED \\] ([a-z].*))\$/skipped in $preset: \\2\\4 (\\3)/p" \
    "$(folder_of "$preset")/Testing/Temporary/LastTest.log" 2>/dev/null >>"$skipped" || true
  passed=$((passed + all - bad))
  failed=$((failed + bad))
done

echo
cat "$skipped"
printf '\n%d passed, %d failed\n' "$passed" "$failed"
[[ $failed -eq 0 && $passed -gt 0 ]]
