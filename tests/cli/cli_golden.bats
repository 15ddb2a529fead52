#!/usr/bin/env bats
# What PyTorch wrote, through the command, byte for byte: gen, lower, lower
# --merge-bw and sim --steps of all configurations in tests/golden.
# Not under sanitizers: test_golden has the same files, without 340 processes.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

golden() {
  cd "$WEFT_SOURCE_DIR/tests/golden" || return 1
}

# check FILE COMMAND...: the command's output is the file.
check() {
  local file=$1
  shift
  if ! cmp -s "$file" <("$@" 2>/dev/null); then
    echo "differs: $file" >&2
    return 1
  fi
}

@test "gen" {
  golden
  count=0
  for file in *.compute.csv; do
    if [[ $file =~ ^([A-Za-z0-9]+)_p([0-9]+)_v([0-9]+)_m([0-9]+) ]]; then
      check "$file" "$WEFT" gen "${BASH_REMATCH[1]}" -p "${BASH_REMATCH[2]}" -v "${BASH_REMATCH[3]}" \
        -m "${BASH_REMATCH[4]}"
    else
      check "$file" "$WEFT" gen "${file%%.*}"
    fi
    count=$((count + 1))
  done
  [ "$count" -eq 99 ]
}

@test "lower" {
  golden
  count=0
  for file in *.comms.csv; do
    check "$file" "$WEFT" lower "${file%.comms.csv}.compute.csv"
    count=$((count + 1))
  done
  [ "$count" -eq 99 ]
}

@test "lower --merge-bw" {
  golden
  count=0
  for file in *.merged.csv; do
    check "$file" "$WEFT" lower --merge-bw --no-unshard --no-reduce-grad --no-comm \
      "${file%.merged.csv}.compute.csv"
    count=$((count + 1))
  done
  [ "$count" -eq 41 ]
}

@test "sim --steps" {
  golden
  count=0
  for file in *.sim.csv; do
    check "$file" "$WEFT" sim --steps "${file%.sim.csv}.compute.csv"
    count=$((count + 1))
  done
  [ "$count" -eq 88 ]
}

@test "every table and program verifies, and is equal to itself" {
  golden
  for file in *.compute.csv *.comms.csv; do
    "$WEFT" verify "$file" >/dev/null || { echo "$file" >&2; return 1; }
    "$WEFT" diff "$file" "$file"
  done
}
