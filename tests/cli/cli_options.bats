#!/usr/bin/env bats
# The command line: commands, options, numbers, exit status 2 and 69.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

@test "no command, an unknown command, an option for a command" {
  weft
  fails 2 "no command"
  hints
  weft verfy x.csv
  fails 2 "unknown command 'verfy'" "did you mean 'weft verify'"
  weft qqqqqqq
  fails 2 "unknown command" "'weft --help' lists the commands"
  weft --json gen
  fails 2 "found '--json', expected a command first"
  weft ''
  fails 2 "unknown command ''"
  "$WEFT" gen 1F1B -p 2 -m 2 -o table.csv
  weft table.csv
  fails 2 "'table.csv' is a file" "'weft show table.csv' draws a table, 'weft verify table.csv' checks it"
}

@test "unknown options get a suggestion" {
  weft gen 1F1B --rank 4
  fails 2 "unknown option '--rank'" "did you mean '--ranks'"
  weft compare -p 4 -m 8 --for pytorch
  fails 2 "unknown option '--for' of 'weft compare'" "'weft gen' and 'weft plan' have --for"
  echo 0F0,0B0 >a.csv
  weft plan a.csv
  fails 2 "one argument too many for 'weft plan': 'a.csv'" "'weft sim', 'weft show' and 'weft verify'"
  weft run a.csv --no-graph
  fails 2 "unknown option '--no-graph' of 'weft run'" "it is called '--eager' now"
  weft lower --merge_bw x.csv
  fails 2 "did you mean '--merge-bw'"
  weft lower --mergebw=1
  fails 2 "unknown option '--mergebw=1'" "did you mean '--merge-bw'"
  weft verify -json
  fails 2 "did you mean '--json'"
  weft verify -x
  fails 2 "unknown option '-x'" "'weft help verify'"
  weft verify --=
  fails 2 "unknown option"
  weft gen $'--\x1b]0;x\a'
  fails 2 'unknown option'
  is_clean "${stderr//$'\n'/ }"
}

@test "values that are missing, empty, unknown or unwanted" {
  weft gen 1F1B -p
  fails 2 "-p has no value"
  weft gen 1F1B --microbatches
  fails 2 "--microbatches has no value"
  weft gen 1F1B --json=yes
  fails 2 "--json takes no value, found 'yes'"
  weft verify --channel edg
  fails 2 "expected one of edge|pair|rank" "did you mean 'edge'"
  weft verify --comm rendevous
  fails 2 "did you mean 'rendezvous'?" "expected one of posted|eager|rendezvous|slots:K"
  weft verify --comm slot
  fails 2 "did you mean 'slots:K'"
  weft gen ForwardOnly -p 2 -m 2 --placement loops
  fails 2 "did you mean 'loop'"
  weft help --completion csh
  fails 2 "bash|zsh|fish"
  weft gen 1F1B -p 2 -m 2 -o ''
  fails 2 "-o has an empty value"
  hints
}

@test "too many operands" {
  weft gen 1F1B 1F1B
  fails 2 "one argument too many" "'1F1B'"
  weft verify a b
  fails 2 "one argument too many for 'weft verify': 'b'; expected [FILE]"
  weft doctor now
  fails 2 "one argument too many" "options only"
  weft diff a b c
  fails 2 "one argument too many"
  hints
}

@test "a number is digits, nothing else" {
  for bad in '' abc 4x x4 ' 4' '4 ' +4 -4 4.0 1e3 0x10 -- --json ٤; do
    weft gen 1F1B -p "$bad" -m 4
    fails 2 "-p " "expected a whole number from 1 to 65536"
    hints
  done
  weft gen 1F1B -p -4 -m 4
  fails 2 "'-4' is negative"
  weft gen 1F1B -p 0 -m 4
  fails 2 "'0' is too small"
  weft gen 1F1B -p 4 -v 0 -m 4
  fails 2 "-v '0' is too small"
  weft gen 1F1B -p 0004 -m 4
  succeeds
}

@test "numbers at the edges of the types" {
  for p in 65537 2147483647 2147483648 4294967295 4294967296 4294967300 9223372036854775807 \
    9223372036854775808 18446744073709551615 18446744073709551616 18446744073709551620 \
    1000000000000000000000000000000; do
    weft gen 1F1B -p $p -m 1
    fails 2 "limit" "$p"
    weft gen 1F1B -p 1 -m "${p}000"
    fails 2 "limit"
    weft gen Interleaved1F1B -p 2 -m 2 -v $p
    fails 2 "limit"
    hints
  done
}

@test "limits of ranks, stages and microbatches, and one beyond" {
  "$WEFT" gen ForwardOnly -p 65536 -m 1 | wc -l | grep -qx 65536
  weft gen ForwardOnly -p 65537 -m 1
  fails 2 65536
  "$WEFT" gen ForwardOnly -p 1 -v 65536 -m 1 | tail -c 10 | grep -q ',65535F0$'
  weft gen ForwardOnly -p 1 -v 65537 -m 1
  fails 2 65536
  "$WEFT" gen ForwardOnly -p 1 -m 16777216 | tail -c 12 | grep -q ',0F16777215$'
  weft gen ForwardOnly -p 1 -m 16777217
  fails 2 16777216
  weft gen ForwardOnly -p 16 -m 16777217
  fails 2 "268435472 actions; the limit is 268435456"
  weft gen ForwardOnly -p 17 -m 16777216
  fails 2 "the limit is 268435456"
}

@test "limits of the other numbers" {
  printf '0F0,0B0\n' >t.csv
  weft verify t.csv --stages 65537
  fails 2 65536
  weft verify t.csv -m 16777217
  fails 2 16777216
  weft verify t.csv --comm slots:4294967295
  fails 2 4294967294
  weft verify t.csv --comm slots:-1
  fails 2 "negative"
  weft verify t.csv --comm slots:
  fails 2 "empty"
  for good in '--stages 1' '-m 1' '--comm slots:4294967294' '--comm slots:0' '--max-findings 1'; do
    # shellcheck disable=SC2086
    weft verify t.csv $good
    succeeds
  done
  weft verify t.csv --max-findings 0
  fails 2 "too small"
  weft lower t.csv --window 0
  fails 2 "--window '0' is too small"
  weft lower t.csv --window 4294967295
  succeeds
  weft explain t.csv --rank 1
  fails 2 "--rank 1 is not there"
  weft bench plan --repeats 100
  fails 2 "from 1 to 99"
  weft bench plan --actions 5
  fails 2 "--large"
}

@test "names with control bytes are shown escaped" {
  weft verify $'bad\nname\x1b[2J\x7f'
  fails 66 'bad\x0aname\x1b[2J\x7f'
  printf 'x\n' >$'evil\x1b[31m.csv'
  weft verify $'evil\x1b[31m.csv'
  fails 65 'evil\x1b[31m.csv:1:1:'
  is_clean "${stderr//$'\n'/ }"
}
