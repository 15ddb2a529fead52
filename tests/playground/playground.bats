#!/usr/bin/env bats
# The playground: the same answers as the native command, and the page in Chromium and Firefox. The
# tests themselves are in JavaScript and Python. WEFT_SCREENSHOTS=FOLDER keeps the screenshots.
# Not under sanitizers: it is about files, pages and other programs.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

setup_file() {
  export PLAYGROUND=$WEFT_BUILD_DIR/share/weft/playground.html
  export MODULE=$WEFT_BUILD_DIR/playground/weft.wasm
}

need() {
  [ -e "$PLAYGROUND" ] || skip "the playground is not built here"
  for tool in "$@"; do
    command -v "$tool" >/dev/null || skip "no $tool here"
  done
}

@test "one file, smaller than 1 MB, that loads nothing" {
  need jq
  [ "$(stat -c %s "$PLAYGROUND")" -lt 1000000 ]
  grep -q "default-src 'none'" "$PLAYGROUND"
  grep -q 'id="loading" role="status">Loading' "$PLAYGROUND" # before its script has run
  run ! grep -Eq '(src|href)="(https?:)?//' "$PLAYGROUND"
}

@test "random commands give the same answers as the native library" {
  need node
  node "$WEFT_SOURCE_DIR/tests/playground/same_answers.js" "$WEFT" "$MODULE" \
    "$WEFT_SOURCE_DIR/playground/page" "${WEFT_TEST_SEEDS:-200}" 21 "$PWD/native"
}

@test "the stepper gets stuck where verify finds a deadlock, and nowhere else" {
  need node
  node "$WEFT_SOURCE_DIR/tests/playground/stepper_agrees.js" "$MODULE" \
    "$WEFT_SOURCE_DIR/playground/page" 60 21
}

@test "in Chromium and Firefox: lessons, controls, links, a deadlock stepped through, exports" {
  need chromium chromedriver firefox-esr python3
  export PYTHONPATH=$WEFT_SOURCE_DIR/tests/browser PYTHONDONTWRITEBYTECODE=1
  local test=$WEFT_SOURCE_DIR/tests/playground/playground_test.py
  mkdir beside
  (cd beside && exec python3 "$test" InFirefox) >firefox.log 2>&1 & # both wait most of the time
  local firefox=$!
  python3 "$test" InChromium || { wait "$firefox"; false; }
  wait "$firefox" || { cat firefox.log; false; }
  if [ -n "${WEFT_SCREENSHOTS:-}" ]; then
    mkdir -p "$WEFT_SCREENSHOTS"
    cp ./*.png beside/*.png "$WEFT_SCREENSHOTS"
  fi
}

@test "weft playground: --path, a copy, and no browser" {
  need jq
  weft playground --path
  succeeds
  [ "$output" = "$(realpath "$PLAYGROUND")" ]
  [ "$("$WEFT" playground --json | jq -r .path)" = "$output" ]
  "$WEFT" playground -o copy.html
  cmp copy.html "$PLAYGROUND"
  run --separate-stderr env -u DISPLAY -u WAYLAND_DISPLAY -u BROWSER "$WEFT" playground
  [ "$status" -eq 69 ]
  [ "$output" = "$(realpath "$PLAYGROUND")" ]
  [[ $stderr == *"no browser could be started"*hint:* ]]
  mkdir bin
  printf '#!/bin/sh\necho "$1" >opened\n' >bin/xdg-open
  chmod +x bin/xdg-open
  DISPLAY=:1 PATH=$PWD/bin:$PATH "$WEFT" playground
  [ "$(cat opened)" = "$(realpath "$PLAYGROUND")" ]
  mkdir elsewhere
  cp "$WEFT" elsewhere/weft
  run --separate-stderr elsewhere/weft playground
  [ "$status" -eq 69 ]
  [[ $stderr == *"make playground"* ]]
}
