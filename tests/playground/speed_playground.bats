#!/usr/bin/env bats
# The playground's speed, alone on the machine: commands beside the native ones, frames while one
# types.
load ../setup/cli_setup

@test "64 ranks: within three times the native time, and frames within 50 ms while one types" {
  export PLAYGROUND=$WEFT_BUILD_DIR/share/weft/playground.html
  [ -e "$PLAYGROUND" ] || skip "the playground is not built here"
  for tool in chromium chromedriver python3; do
    command -v "$tool" >/dev/null || skip "no $tool here"
  done
  PYTHONPATH=$WEFT_SOURCE_DIR/tests/browser:$WEFT_SOURCE_DIR/tests/playground PYTHONDONTWRITEBYTECODE=1 \
    python3 "$WEFT_SOURCE_DIR/tests/playground/speed.py"
}
