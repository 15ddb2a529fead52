#!/usr/bin/env bats
# Small limits of memory, files and processes: every command ends promptly, with success or
# with an error that says what is missing. (With BLAS in the command, its threads waited
# forever for memory: 'ulimit -v 180000; weft --version' printed, and did not end.)
# Not under sanitizers: they need memory beyond the limits.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

seconds=20 # what a command may take, on a machine that is busy

setup_file() {
  cd "$BATS_FILE_TMPDIR" || return 1
  "$WEFT" gen 1F1B -p 4 -m 8 >table.csv
  "$WEFT" lower table.csv >program.csv
  cp "$WEFT_SOURCE_DIR/tests/corpus/fuzz_hang/chain.json" hang.json
}

commands() {
  cat <<'EOF'
--version
--help
help gen
help --man
help --completion bash
gen --list
gen ZBVZeroBubble -p 8 -m 32
lower table.csv --merge-bw
verify program.csv
sim table.csv --critical-path
sim table.csv --jitter 0.1 --runs 5
sim --steps table.csv
compare -p 4 -m 8
plan -p 4 -m 8 --effort 0.05 --threads 1
plan -p 4 -m 8 --effort 0.05 --threads 4
plan -p 2 -m 4 --effort 0.05 --pareto
show table.csv
show table.csv -o picture.svg
show table.csv program.csv -o page.html
show program.csv -o trace.json
run table.csv --transport loopback --steps 1
run table.csv --stage null --steps 1
explain program.csv
explain-hang hang.json
diff table.csv program.csv
doctor --quick
train
sample
bench --list
EOF
}

# under LIMIT...: runs all commands with `ulimit LIMIT...`. Status 0, 1 or a documented error
# with a message; never a signal, never a time-out. Sets $well to how many succeed.
under() {
  local words status wrong=0
  well=0
  cd "$BATS_FILE_TMPDIR" || return 1
  while read -r words; do
    status=0
    # shellcheck disable=SC2086
    timeout -k 1 $seconds bash -c 'ulimit '"$*"'; exec "$WEFT" "$@"' - $words \
      >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" </dev/null 3>&- || status=$?
    case $status in
      0 | 1) well=$((well + 1)) ;;
      2 | 66 | 69 | 70 | 74) [ -s "$BATS_TEST_TMPDIR/err" ] || wrong=1 ;;
      127) grep -q 'weft-train.*shared' "$BATS_TEST_TMPDIR/err" || wrong=1 ;; # BLAS does not fit
      *) wrong=1 ;;
    esac
    if [ $wrong -ne 0 ]; then
      echo "ulimit $*; weft $words: status $status (124: not within $seconds s)"
      cat "$BATS_TEST_TMPDIR/err"
      return 1
    fi
  done < <(commands)
}

@test "memory: 180 MB, with which the command once did not end" {
  under -v 180000
  [ "$well" -ge 26 ]
}

# BLAS would try forever to get its buffers (Debian 13), before the trainer's first line.
@test "memory: the trainer is not started where it does not fit" {
  [[ -x ${WEFT%/*}/weft-train ]] || skip "built without the trainer"
  run -70 --separate-stderr timeout -k 1 $seconds bash -c 'ulimit -v 180000; "$WEFT" sample'
  # shellcheck disable=SC2154
  [[ $stderr == *"at least 512 MB"*"limited to 175 MB"*"hint: raise the limit"* ]]
}

@test "memory: 20 MB suffice for all planning" {
  under -v 20000
  [ "$well" -ge 25 ]
}

@test "run: a thread that cannot be started is status 70" {
  "$WEFT" gen 1F1B -p 8 -m 8 >t.csv
  (ulimit -s 1000000 && ulimit -v 3000000 && "$WEFT" run t.csv --stage null 2>err) && return 1
  (ulimit -s 1000000 && ulimit -v 3000000 && "$WEFT" run t.csv --stage null 2>err) || [ $? -eq 70 ]
  grep -q 'cannot start a thread for rank [0-9] of 8' err
}

@test "memory: 8 MB, and what needs more says so" {
  under -v 8000
  weft gen ZBVZeroBubble -p 8 -m 32
  succeeds
  run --separate-stderr bash -c 'ulimit -v 8000; "$WEFT" gen 1F1B -p 1000 -m 2000'
  fails 70 "out of memory"
}

@test "files: one beside the standard ones" {
  under -n 4
  [ "$well" -ge 20 ]
}

@test "files: three beside the standard ones suffice" {
  under -n 6
  [ "$well" -ge 25 ]
}

@test "processes: none but this one" {
  under -u 1
}

@test "address space and processes and files at once" {
  under -v 12000 -n 4 -u 1
}

# It has more bytes than the command may use memory.
@test "malformed input: a large file of another kind is refused at its first byte" {
  for byte in '\0' x; do
    printf %b "$byte" >large.csv
    truncate -s 2G large.csv
    run --separate-stderr bash -c 'ulimit -v 1000000; exec "$WEFT" verify large.csv'
    fails 65 "large.csv:1:1:"
  done
}
