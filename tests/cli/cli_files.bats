#!/usr/bin/env bats
# Files in and out: exit status 65, 66, 74, 130 and 143, and -o.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

@test "an input that is not there, is a folder, or may not be read" {
  weft verify none.csv
  fails 66 "none.csv" "No such file"
  hints
  weft lower none/none.csv
  fails 66 "none/none.csv"
  weft verify .
  fails 66 "Is a directory"
  weft verify <.
  fails 66 "directory"
  weft verify "$(printf 'x%.0s' {1..5000})"
  fails 66 "File name too long"
  printf '0F0\n' >locked.csv
  chmod 0 locked.csv
  if [ ! -r locked.csv ]; then # root may read everything
    weft verify locked.csv
    fails 66 "Permission denied"
  fi
}

@test "malformed input: file, line, column, cell, caret" {
  printf '0F0,0F1\n0F0,,1X2,0B0\n' >bad.csv
  weft verify bad.csv
  fails 65 "bad.csv:2:7: in cell '1X2'"
  grep -qx '    0F0,,1X2,0B0' <<<"$stderr"
  grep -qx '          ^' <<<"$stderr"
  hints
  for command in lower 'sim --steps' 'show --grid' explain 'diff bad.csv'; do
    # shellcheck disable=SC2086
    weft $command bad.csv
    fails 65 "bad.csv:2:7:"
  done
  run -65 --separate-stderr bash -c '"$WEFT" lower <bad.csv'
  [[ $stderr == "weft: standard input:2:7:"* ]]
}

@test "malformed input: every way to be wrong" {
  for text in x 0 F 0F 0F0junk 2FOO 0F-1 '0F0;0B0' '(0F0' '(0F0;1B0)' '0F0 1F0' '"0F0' 0UNSHARD0 65536F0 0F16777216 \
    99999999999999999999F0 0f0 $'0F0\t0F1' $'\x00' $'0F0\r0F1'; do
    printf '%s\n' "$text" >bad.csv
    weft verify bad.csv
    if [ "$text" = "" ]; then continue; fi # bash cannot hold a NUL
    fails 65 "bad.csv:1:"
    hints
  done
  : >empty.csv
  weft verify empty.csv
  fails 65 "empty"
  printf '0F0,\0,0F1\n' >nul.csv
  weft verify nul.csv
  fails 65 'nul.csv:1:5:' '\x00'
}

@test "malformed input: what looks like another kind of file is named" {
  printf '0F0\t0B0\n' >tabs.csv
  weft verify tabs.csv
  fails 65 "tabs.csv:1:5:" "looks like a file with tabs (TSV)"
  printf '0F0;0B0\n' >semicolons.csv
  weft verify semicolons.csv
  fails 65 "looks like a file with semicolons"
  printf ';0F0;0B0\n' >semicolons.csv
  weft verify semicolons.csv
  fails 65 "looks like a file with semicolons"
}

@test "quoted cells, as spreadsheets and pandas write them" {
  printf '"0F0","0B0",""\r\n"1F0",,"1B0"\r\n' >quoted.csv
  weft verify quoted.csv
  succeeds
  [[ $output == "ok: 2 ranks, 2 stages"* ]]
}

@test "blank lines: at the end nothing, between rows a rank that is noted" {
  printf '0F0,0B0\n1F0,1B0\n\n \n' >end.csv
  for command in verify sim show; do
    weft $command end.csv
    succeeds
    [[ $output != *note* ]]
  done
  weft verify end.csv --json
  [ "$(jq -c '[.ranks, .notes]' <<<"$output")" = '[2,null]' ]
  printf '0F0,0B0\n\n1F0,1B0\n""\n' >between.csv
  weft verify between.csv
  succeeds
  [[ $output == "ok: 4 ranks"*$'\nnote: ranks 1 and 3 have no action' ]]
  weft sim between.csv
  [[ $output == *$'\nnote: ranks 1 and 3 have no action\n'* ]]
  weft show between.csv
  [ "$stderr" = "weft: note: ranks 1 and 3 have no action" ]
  weft show between.csv end.csv -o both.html
  [ "$stderr" = "weft: note: between.csv: ranks 1 and 3 have no action" ]
  weft compare end.csv between.csv
  [[ $stderr == "weft: note: between.csv: ranks 1 and 3 have no action"* ]]
  weft lower between.csv -o between_lowered.csv
  [ "$stderr" = "weft: note: ranks 1 and 3 have no action" ]
  weft run between.csv --steps 1 --stage null
  [[ $output == *$'\nnote: ranks 1 and 3 have no action\n'* ]]
  for command in verify sim 'run --steps 1 --stage null'; do
    # shellcheck disable=SC2086
    weft $command between.csv --json
    [ "$(jq -c .notes <<<"$output")" = '["ranks 1 and 3 have no action"]' ]
  done
  "$WEFT" lower between.csv | "$WEFT" verify --json | jq -e '.ranks == 4'
}

# copied VERB: the command before 'VERB' in a hint, as a shell takes it when it is copied.
copied() {
  local line=${stderr%"' $1"*}
  PATH=$(dirname "$WEFT"):$PATH run --separate-stderr bash -c "weft ${line##*"'weft "}"
}

@test "commands in hints take files of any name, as words of a shell" {
  local file=$'a b\';touch PLANTED;\'$(touch PLANTED)\xff.csv'
  printf '0F0,0B0\n1F0,1B0,0F1\n' >"$file"
  weft run "$file"
  copied "shows all"
  [[ $status -eq 1 && $output == "rank 1 step 2 0F1: "* ]]
  run --separate-stderr "$WEFT" run <"$file" # which cannot be read again
  [[ $stderr == *"'weft verify -' shows all"* ]]
  printf '0F0,0F1\n1F0\n' >"$file"
  weft lower "$file"
  copied "lists them"
  [[ $status -eq 1 && $output == "rank "*": "* ]]
  "$WEFT" gen 1F1B -p 2 -m 2 >"$file"
  weft "$file"
  copied "checks it"
  [[ $status -eq 0 && $output == "ok: 2 ranks"* ]]
  printf '0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n' >hangs.csv
  weft run hangs.csv --unchecked --comm rendezvous --stall-limit 0.2 --dump "$file"
  copied "explains it"
  [[ $status -eq 0 && $output == *"cycle"* ]]
  [ ! -e PLANTED ]
}

# Characters that a terminal obeys, that turn or break a line, and what is no UTF-8.
@test "no output has raw what a name of a file or a stage has" {
  local file=$'a\e[31m\xe2\x80\xae\xe2\x80\xa8\xff.csv' words
  "$WEFT" gen 1F1B -p 2 -m 2 -o "$file"
  cp "$file" table.csv
  echo '{"schema": "weft-graph/1", "stages": ["a\u202eb", "c\u2028d\u001b\u0085"], "edges": [{"from": 0, "to": 1}]}' >graph.json
  for words in verify sim explain lower show compare 'compare --memory 0.1' 'run --stage null' "diff table.csv" explain-hang; do
    for json in '' --json; do
      # shellcheck disable=SC2086
      "$WEFT" $words "./$file" $json >out 2>&1 || true
      # shellcheck disable=SC2086
      "$WEFT" $words "./$file" --graph graph.json $json >>out 2>&1 || true
      iconv -f UTF-8 -t UTF-8 out >/dev/null || { echo "$words $json: no UTF-8"; return 1; }
      if grep -qaP '[\x00-\x08\x0b-\x1f\x7f]|\xe2\x80[\xa8-\xae]|\xc2\x85' out; then
        echo "$words $json:"
        cat -v out
        return 1
      fi
    done
  done
  weft compare "./$file" --json
  [ "$(jq -r '.schedules[] | select(.file) | .name' <<<"$output")" = $'./a\e[31m\xe2\x80\xae\xe2\x80\xa8\\xff.csv' ]
}

@test "a name of a picture is refused where text would be written" {
  "$WEFT" gen 1F1B -p 2 -m 2 -o table.csv
  for words in 'compare table.csv' 'sim table.csv' 'verify table.csv' 'gen 1F1B -p 2 -m 2' 'plan -p 2 -m 4' \
    'show table.csv --grid'; do
    # shellcheck disable=SC2086
    weft $words -o x.html
    fails 2 "'x.html' is the name of a picture or page"
    hints
    [ ! -e x.html ]
  done
  weft show table.csv -o x.html
  succeeds
}

@test "malformed input: the excerpt of a long or dirty line" {
  { for i in {1..500}; do printf '0F%d,' "$i"; done; printf '1X1,'; for i in {1..500}; do printf '0F%d,' "$i"; done; } >long.csv
  weft verify long.csv
  fails 65 "long.csv:1:"
  [ "$(wc -L <<<"$stderr")" -le 200 ]
  caret=$(grep -n '^ *^$' <<<"$stderr" | cut -d: -f2-)
  excerpt=$(grep '^    \.\.\.' <<<"$stderr")
  [ "${excerpt:${#caret}-1:1}" = X ]
  printf '\xef\xbb\xbf\x1b[31m,0F0\n' >dirty.csv
  weft verify dirty.csv
  fails 65 'dirty.csv:1:1:' '\x1b[31m'
  is_clean "${stderr//$'\n'/ }"
}

@test "endless and special inputs" {
  weft verify /dev/zero
  fails 65 '\x00'
  weft verify /dev/null
  fails 65 "empty"
}

@test "-o writes the whole file, and only the file" {
  weft gen 1F1B -p 2 -m 2 -o t.csv
  succeeds
  [ "$output" = "" ]
  cmp t.csv <("$WEFT" gen 1F1B -p 2 -m 2)
  weft gen 1F1B -p 2 -m 2 --output=- 
  [ "$output" = "$(cat t.csv)" ]
  is_tidy
}

@test "-o may name the input" {
  "$WEFT" gen 1F1B -p 2 -m 2 >t.csv
  "$WEFT" lower t.csv >expected
  "$WEFT" lower t.csv -o t.csv
  cmp t.csv expected
}

@test "-o keeps the mode of a file, follows links, and obeys the umask" {
  umask 027
  "$WEFT" gen VShaped -o new.csv
  [ "$(stat -c %a new.csv)" = 640 ]
  touch old.csv
  chmod 604 old.csv
  ln -s old.csv link.csv
  "$WEFT" gen VShaped -o link.csv
  [ -L link.csv ]
  [ "$(stat -c %a old.csv)" = 604 ]
  cmp old.csv new.csv
}

@test "-o leaves the old file alone when the command fails" {
  echo precious >out.csv
  weft gen 1F1B -p 0 -m 2 -o out.csv
  fails 2 "too small"
  printf 'junk\n' >bad.csv
  weft lower bad.csv -o out.csv
  fails 65 "bad.csv"
  weft lower none.csv -o out.csv
  fails 66 "none.csv"
  [ "$(cat out.csv)" = precious ]
  is_tidy
}

@test "a limit on the size of files ends with 74 and leaves nothing behind" {
  "$WEFT" gen 1F1B -p 64 -m 64 >table.csv
  echo precious >out.json
  for command in 'gen 1F1B -p 64 -m 64' 'lower table.csv' 'show table.csv' 'sim table.csv --json' \
    'explain table.csv' 'help --man'; do
    # A block is 1024 bytes.
    run bash -c "ulimit -f 1; exec \"\$WEFT\" $command -o out.json 2>messages"
    if [ "$status" -ne 74 ]; then
      echo "$command: status $status" >&2
      return 1
    fi
    has "^weft: cannot write 'out.json': File too large" messages
    [ "$(cat out.json)" = precious ]
    is_tidy
  done
  run -74 bash -c 'ulimit -f 1; exec "$WEFT" gen 1F1B -p 64 -m 64 2>messages >out.csv'
  has "^weft: cannot write to 'standard output': File too large" messages
}

@test "a full disk ends with 74 and leaves nothing behind" {
  "$WEFT" gen 1F1B -p 64 -m 64 >table.csv
  mkdir small
  unshare -rm mount -t tmpfs none small 2>/dev/null || skip "this machine allows no mounts"
  # shellcheck disable=SC2016
  run -74 unshare -rm bash -c 'mount -t tmpfs -o size=8k none small && echo precious >small/out &&
    "$WEFT" lower table.csv -o small/out 2>messages
    status=$?; ls -A small; cat small/out; exit $status'
  has "^weft: cannot write 'small/out': No space left" messages
  [ "$output" = $'out\nprecious' ]
}

@test "-o where no file can be" {
  mkdir dir
  weft gen VShaped -o dir
  fails 74 "'dir'" "directory"
  weft gen VShaped -o none/out.csv
  fails 74 "none/out.csv" "make the folder first"
  weft gen VShaped -o $'none/\x1b.csv'
  fails 74 'none/\x1b.csv'
  mkdir closed
  chmod 500 closed
  if [ ! -w closed ]; then # root may write everywhere
    weft gen VShaped -o closed/out.csv
    fails 74 "Permission denied"
  fi
}

@test "-o to devices and pipes writes to them, and does not replace them" {
  weft gen VShaped -o /dev/full
  fails 74 "/dev/full" "No space left"
  weft gen VShaped -o /dev/null
  succeeds
  [ -c /dev/null ]
  mkfifo pipe
  timeout 20 cat pipe >got &
  reader=$!
  "$WEFT" gen VShaped -o pipe
  await_end 30 $reader "the reader of the pipe"
  cmp got <("$WEFT" gen VShaped)
  [ -p pipe ]
}

@test "a full, closed or broken standard output is status 74" {
  for command in 'gen VShaped' help --version 'gen --list' 'doctor --quick'; do
    run -74 bash -c "\"\$WEFT\" $command >/dev/full"
    [[ $output == *"No space left"* ]]
  done
  run -74 bash -c '"$WEFT" gen VShaped >&-'
  [[ $output == *"standard output"* ]]
  run -74 bash -c '"$WEFT" gen VShaped </dev/null >&- 2>&-'
  # A pipe whose reader has gone: no words, no death by signal.
  run -0 bash -c '"$WEFT" gen GPipe -p 64 -m 4096 2>messages | head -c 1 >/dev/null; echo "${PIPESTATUS[0]}"'
  [ "$output" = 74 ]
  [ ! -s messages ]
}

@test "closed standard input is no table" {
  run bash -c '"$WEFT" verify <&-'
  [ "$status" -eq 65 ]
}

@test "closed descriptors never turn files into outputs" {
  printf '0F0,0B0\n' >t.csv
  run -0 bash -c '"$WEFT" lower t.csv -o out.csv <&- >&- 2>&-'
  grep -q 0F0 out.csv
  lacks weft: out.csv
  [ "$(cat t.csv)" = 0F0,0B0 ]
}

@test "SIGINT and SIGTERM end it with 130 and 143, and leave no temporary file" {
  mkfifo pipe
  for signal in INT TERM; do
    # bash starts background jobs with SIGINT ignored; env gives it back.
    env --default-signal=INT "$WEFT" lower pipe -o out.csv &
    pid=$!
    exec 9<>pipe # does not wait for the reader
    await 20 "weft to open the pipe" has_open $pid pipe
    kill -$signal $pid
    await_end 20 $pid "weft lower"
    exec 9>&-
    [ "$status" -eq $((128 + $(kill -l $signal))) ]
    [ ! -e out.csv ]
    is_tidy
  done
}

@test "a signal during the writing leaves the old file or the whole new one" {
  "$WEFT" gen GPipe -p 64 -m 4096 >expected.csv
  for delay in 0.00 0.01 0.02 0.03 0.04 0.05 0.07 0.1; do
    echo precious >out.csv
    "$WEFT" gen GPipe -p 64 -m 4096 -o out.csv &
    pid=$!
    sleep $delay
    kill -TERM $pid 2>/dev/null || true
    await_end 20 $pid "weft gen"
    cmp -s out.csv expected.csv || [ "$(cat out.csv)" = precious ]
    is_tidy
  done
}
