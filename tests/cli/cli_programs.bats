#!/usr/bin/env bats
# Three programs: weft, weft-train (the only one with BLAS) and weft-bench.
# shellcheck disable=SC2154
load ../setup/cli_setup

needs() { # PROGRAM: the libraries that it is linked with
  readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(lib[a-z]*\)[.-].*/\1/p' | sort | tr '\n' ' '
}

trainer() {
  [ -x "$WEFT-train" ] || skip "this build has no trainer (no OpenBLAS)"
}

@test "weft is linked with libc, libm and jansson, and with nothing else" {
  case $(needs "$WEFT") in
    "libc libjansson libm ") ;;
    *asan* | *ubsan* | *tsan*) skip "a sanitizer's libraries" ;;
    *) needs "$WEFT"; return 1 ;;
  esac
  run ldd "$WEFT"
  [ "$status" -eq 0 ]
  [ "$(grep -vcE 'linux-vdso|ld-linux|libc\.so|libm\.so|libjansson\.so' <<<"$output")" -eq 0 ]
}

@test "weft-train is the only program with BLAS" {
  trainer
  [[ $(needs "$WEFT-train") == *openblas* ]]
  [[ $(needs "$WEFT-bench") != *blas* ]]
}

@test "weft starts no thread" {
  # LeakSanitizer does not work under ptrace.
  ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 \
    run strace -f -e trace=clone,clone3 -o calls "$WEFT" gen 1F1B -p 4 -m 8
  [ "$status" -eq 0 ]
  lacks clone calls
}

@test "weft train, sample and bench run in the programs beside weft" {
  weft bench --list
  succeeds
  list=$output
  run --separate-stderr "$WEFT-bench" --list
  succeeds
  [ "$output" = "$list" ]
  run --separate-stderr "$WEFT-bench" --version
  [ "$output" = "weft-bench $("$WEFT" --version | cut -d' ' -f2)" ]
  trainer
  run --separate-stderr "$WEFT-train" --help
  succeeds
  [[ $output == *"  train  "*"  sample  "* ]]
  [ "$("$WEFT-train" train --help)" = "$("$WEFT" help train)" ]
  run --separate-stderr "$WEFT-train" sample
  fails 2 "there is no model"
}

@test "messages have nothing raw of the folder of the program" {
  local folder=$'a\e[31m\xff'
  mkdir -p "$folder/share/weft/playground.html" # neither can be read
  cp "$WEFT" "$folder/weft"
  printf '#!/none\n' >"$folder/weft-bench"
  chmod +x "$folder/weft-bench"
  run --separate-stderr "./$folder/weft" bench
  fails 69 'a\x1b[31m\xff/weft-bench cannot be started'
  run --separate-stderr "./$folder/weft" playground -o page.html
  fails 74 'a\x1b[31m\xff/share/weft/playground.html'
}

@test "without the other programs weft says what is missing, and helps with it" {
  cp "$WEFT" weft
  for command in train sample; do
    run --separate-stderr ./weft $command
    fails 69 "weft-train" "libopenblas-dev"
    [ "$(./weft $command --help)" = "$("$WEFT" help $command)" ]
  done
  run --separate-stderr ./weft bench
  fails 69 "weft-bench" "make install"
  run --separate-stderr ./weft train --no-such-option
  fails 2 "unknown option"
  ./weft gen 1F1B -p 2 -m 4 | ./weft verify >/dev/null
  cp "$WEFT-bench" .
  run --separate-stderr ./weft bench train
  fails 69 "weft-train"
}
