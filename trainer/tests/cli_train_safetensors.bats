#!/usr/bin/env bats
# Checkpoints beside Python's safetensors package (trainer/tests/test_safetensors_peer.py says
# what of it). Optional: without the package these are skipped, and say so. PYTHON names
# another interpreter.
# Not under sanitizers: test_gpt_* train there.
load ../../tests/setup/cli_setup

TOOL=$WEFT_BUILD_DIR/tests/test_gpt_checkpoint

peer() { # STEP_FOLDER [OUT]
  local python=${PYTHON:-python3}
  run "$python" "$BATS_TEST_DIRNAME/test_safetensors_peer.py" "$@"
  echo "$output"
  [ "$status" -ne 127 ] || skip "there is no $python"
  [ "$status" -ne 69 ] || skip "$python: $output"
  [ "$status" -eq 0 ]
}

@test "Python's safetensors reads what we write" {
  "$TOOL" write ours
  peer ours/step-00000007
  [[ $output == "51 tensors agree"* ]]
}

@test "we read what Python's safetensors writes" {
  "$TOOL" write ours
  peer ours/step-00000007 theirs/step-00000007
  run cmp ours/step-00000007/part-0001.safetensors theirs/step-00000007/part-0001.safetensors
  [ "$status" -eq 1 ] # other bytes, the same tensors
  "$TOOL" same ours theirs
}

@test "the check fails when one bit differs" {
  "$TOOL" write ours
  peer ours/step-00000007 theirs/step-00000007
  printf '\377' | dd of=theirs/step-00000007/part-0002.safetensors bs=1 seek=2000 conv=notrunc 2>/dev/null
  run "$TOOL" same ours theirs
  [ "$status" -eq 1 ]
  [[ $output == *"theirs/step-00000007/part-0002.safetensors' has the checksum"* ]]
}
