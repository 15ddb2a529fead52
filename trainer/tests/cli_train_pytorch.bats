#!/usr/bin/env bats
# The reference model beside the same GPT in PyTorch (trainer/tests/test_gpt_pytorch.py says
# what of it, and how errors are measured). Optional: without torch these are skipped,
# and say so. PYTHON names another interpreter.
# Not under sanitizers: test_gpt_* train there.

# One run for all, since importing torch takes seconds.
setup_file() {
  export PYTHON=${PYTHON:-python3}
  export ANSWERS=$BATS_FILE_TMPDIR/answers
  STATUS=0
  "$PYTHON" "$BATS_TEST_DIRNAME/test_gpt_pytorch.py" "$WEFT_BUILD_DIR/tests/test_gpt_model_gradients" \
    >"$ANSWERS" 2>&1 || STATUS=$?
  export STATUS
}

setup() {
  [ "$STATUS" -ne 127 ] || skip "there is no $PYTHON"
  [ "$STATUS" -ne 69 ] || skip "$PYTHON has no PyTorch"
}

agrees() { # NAME
  cat "$ANSWERS"
  grep -E "^$1: [1-9][0-9]* tensors agree\$" "$ANSWERS"
  grep -E "^$1-usual-epsilon: [1-9][0-9]* tensors agree\$" "$ANSWERS"
}

@test "logits, loss, gradients and ten steps of AdamW are PyTorch's" {
  agrees small
}

@test "with tied weights" {
  agrees tied
}

@test "with odd sizes, and sequences shorter than the context" {
  agrees odd
}

@test "with a long context" {
  agrees long
}

@test "with one token, and without clipping" {
  agrees one
}

@test "with skips between blocks and a second head" {
  agrees graph
}

@test "nothing else was found" {
  cat "$ANSWERS"
  [ "$STATUS" -eq 0 ]
}
