#!/usr/bin/env bats
# Weft against an installed PyTorch (tests/peers/test_pytorch_peer.py says what of it).
# Optional: without torch these are skipped, and say so. PYTHON names another
# interpreter.
# Not under sanitizers: it is about files, pages and other programs.

# One run for all checks, since importing torch takes seconds.
setup_file() {
  export PYTHON=${PYTHON:-python3}
  export ANSWERS=$BATS_FILE_TMPDIR/answers
  STATUS=0
  "$PYTHON" "$BATS_TEST_DIRNAME/test_pytorch_peer.py" >"$ANSWERS" 2>&1 || STATUS=$?
  export STATUS
}

setup() {
  [ "$STATUS" -ne 127 ] || skip "there is no $PYTHON"
  [ "$STATUS" -ne 69 ] || skip "$PYTHON has no PyTorch with pipelining"
}

peer() { # CHECK
  cat "$ANSWERS"
  grep -E "^$1: [1-9][0-9]* agree\$" "$ANSWERS"
}

@test "PyTorch takes our tables as valid, and writes them back unchanged" {
  peer check_tables_are_valid
}

@test "PyTorch lowers our tables as we do" {
  peer check_lowering
}

@test "PyTorch merges I and W as we do" {
  peer check_merging
}

@test "PyTorch's dry run is ours" {
  peer check_dry_run
}

@test "scrambled programs get stuck for both, or for neither" {
  peer check_dry_run_of_scrambled_programs
}

@test "PyTorch's runtime loads our tables and programs" {
  peer check_loading
}

@test "PyTorch draws the same grids" {
  peer check_grids
}

@test "the benchmarks beside PyTorch find the same programs and dry runs" {
  if grep -q '^WEFT_SANITIZE:STRING=.' "$WEFT_BUILD_DIR/CMakeCache.txt"; then
    skip "Python cannot load a library with a sanitizer"
  fi
  for name in lower dry-run; do
    "$PYTHON" "$WEFT_SOURCE_DIR/bench/pytorch.py" "$name" --build "$WEFT_BUILD_DIR" -p 4 -m 8 --repeats 1 --json \
      >"$BATS_TEST_TMPDIR/$name.json"
    jq -e '.runs | length >= 4 and all(.identical and .ratio > 0)' "$BATS_TEST_TMPDIR/$name.json"
  done
}

@test "PyTorch runs planned tables, with the losses and gradients of one process" {
  if grep -q '^WEFT_SANITIZE:STRING=.' "$WEFT_BUILD_DIR/CMakeCache.txt"; then
    skip "once is enough, without sanitizers"
  fi
  "$PYTHON" "$BATS_TEST_DIRNAME/test_planned_pytorch.py" >"$BATS_TEST_TMPDIR/planned" 2>&1 || {
    cat "$BATS_TEST_TMPDIR/planned"
    false
  }
  [ "$(grep -c ': same losses and gradients' "$BATS_TEST_TMPDIR/planned")" -eq 4 ]
}

@test "a skip connection: the losses and gradients of PyTorch's own pipelining" {
  if grep -q '^WEFT_SANITIZE:STRING=.' "$WEFT_BUILD_DIR/CMakeCache.txt"; then
    skip "once is enough, without sanitizers"
  fi
  "$PYTHON" "$BATS_TEST_DIRNAME/test_skip_pytorch.py" "$WEFT_BUILD_DIR/tests/job_skip" \
    >"$BATS_TEST_TMPDIR/skip" 2>&1 || {
    cat "$BATS_TEST_TMPDIR/skip"
    false
  }
  grep -x 'check_skip: 3 agree' "$BATS_TEST_TMPDIR/skip"
}

@test "PyTorch's stages are measured into a costs file, and stage 0 computes no input gradient" {
  if grep -q '^WEFT_SANITIZE:STRING=.' "$WEFT_BUILD_DIR/CMakeCache.txt"; then
    skip "once is enough, without sanitizers"
  fi
  cd "$BATS_TEST_TMPDIR"
  measure=("$PYTHON" "$WEFT_SOURCE_DIR/examples/pytorch_costs.py" --layers "2,1" --width 512 --rows 64 -m 4 --steps 3)
  "${measure[@]}" -o costs.json
  jq -e '.stages | length == 2 and all(.f > 0 and .w > 0) and .[0].i < .[0].w / 4 and .[1].i > 0' costs.json
  "$WEFT" plan -p 2 -v 1 -m 4 --costs costs.json --effort 0.05 -o table.csv
  "$WEFT" sim table.csv --costs costs.json
  "${measure[@]}" --table table.csv | grep -E '^table.csv: a step takes [0-9.]+ ms'
}
