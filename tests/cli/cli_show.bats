#!/usr/bin/env bats
# weft show: the timeline in the terminal, and as files by their ending
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

tables() {
  unset COLUMNS
  "$WEFT" gen 1F1B -p 2 -m 3 >a.csv
  "$WEFT" gen GPipe -p 2 -m 3 >b.csv
}

# widest TEXT: columns of its widest line.
widest() {
  LC_ALL=C.UTF-8 wc -L <<<"$1"
}

# is_xml FILE
is_xml() {
  python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$1"
}

@test "show draws a timeline of 80 columns when it is not on a terminal" {
  tables
  weft show a.csv
  succeeds
  [ "${lines[0]}" = a.csv ]
  [[ ${lines[1]} == "rank 0 F0"* ]]
  [[ ${lines[2]} == *█*"peak 2" ]]
  [[ $output == *"makespan 12, bubble 25.0 %, peak memory 2 on rank 0"* ]]
  [[ $output == *"every rank idles 3 (25.0 %), mostly waiting for gradients"* ]]
  [[ $output != *$'\e'* ]]
  [ "$(widest "$output")" -le 80 ]
  [ "$("$WEFT" show a.csv --width 80)" = "$output" ]
  [ "$("$WEFT" show -o - a.csv)" = "$output" ]
}

@test "show reads standard input, which is no title" {
  tables
  run --separate-stderr "$WEFT" show <a.csv
  succeeds
  [[ ${lines[0]} == "rank 0 "* ]]
  "$WEFT" show - -o x.svg <a.csv
  lacks 'standard input' x.svg
}

@test "show follows COLUMNS and --width" {
  tables
  for width in 20 33 120 300; do
    [ "$(widest "$(COLUMNS=$width "$WEFT" show a.csv)")" -le "$width" ]
    [ "$(COLUMNS=$width "$WEFT" show a.csv)" = "$("$WEFT" show a.csv --width "$width")" ]
    [ "$(COLUMNS=50 "$WEFT" show a.csv --width "$width")" = "$("$WEFT" show a.csv --width "$width")" ]
  done
  # Nonsense, and what is too narrow or too wide to draw, is no reason to fail.
  for columns in '' 0 -5 x 1 99999 999999999999; do
    run -0 env COLUMNS="$columns" "$WEFT" show a.csv
  done
  weft show a.csv --width 19
  fails 2 "--width" 20
  weft show a.csv --width 10001
  fails 2 "20 to 10000"
  hints
}

@test "show is coloured on a terminal only, and not with NO_COLOR or TERM=dumb" {
  if ! script -qec true /dev/null >/dev/null 2>&1; then
    skip "script(1) cannot make a terminal here"
  fi
  tables
  run -0 env TERM=xterm script -qec "'$WEFT' show a.csv" /dev/null
  [[ $output == *$'\e[0;48;5;'* ]]
  run -0 env TERM=xterm NO_COLOR=1 script -qec "'$WEFT' show a.csv" /dev/null
  [[ $output != *$'\e'* ]]
  run -0 env TERM=dumb script -qec "'$WEFT' show a.csv" /dev/null
  [[ $output != *$'\e'* ]]
  run -0 env TERM=xterm script -qec "stty cols 57; '$WEFT' show a.csv" /dev/null
  stripped=$(sed 's/\x1b\[[0-9;]*m//g; s/\r$//; s/ *$//' <<<"$output")
  [ "$stripped" = "$("$WEFT" show a.csv --width 57)" ]
}

@test "the ending of -o says what to draw" {
  tables
  for file in x.svg x.html x.json X.SVG dir.d.svg; do
    weft show a.csv -o "$file"
    succeeds
    [ "$output" = "" ]
    [ -s "$file" ]
  done
  is_xml x.svg
  cmp x.svg X.SVG
  has '^<!doctype html' x.html || has '^<!DOCTYPE html' x.html
  jq -e '.traceEvents | length > 10' x.json >/dev/null
  is_tidy
}

@test "other endings are refused with those that work" {
  tables
  for file in x.png x svg .svg x.svg.gz x.txt $'x.\e[31m'; do
    weft show a.csv -o "$file"
    fails 2 .svg .html .json
    hints
    is_clean "${stderr//$'\n'/}"
    [ ! -e "$file" ]
  done
}

@test "two tables go into one page, and nowhere else" {
  tables
  weft show a.csv b.csv -o both.html
  succeeds
  has a.csv both.html
  has b.csv both.html
  for words in '' '-o x.svg' '-o x.json' --grid; do
    # shellcheck disable=SC2086
    weft show a.csv b.csv $words
    fails 2 "two tables" .html
    hints
  done
  weft show - - -o x.html
  fails 2 "only once"
  weft show a.csv b.csv a.csv -o x.html
  fails 2
  [ ! -e x.html ]
}

# The pictures of a page: "makespan note", one per line.
pictures_of() {
  python3 - "$1" <<'END'
import base64, json, re, struct, sys
data = json.loads(re.search(r'id="weft-data">(.*?)</script>', open(sys.argv[1]).read(), re.S).group(1))
for picture in data["pictures"]:
    packed = base64.b64decode(picture["data"])
    at = 0
    for _ in range(3):  # ranks, stages, microbatches
        while packed[at] & 0x80:
            at += 1
        at += 1
    print("%g" % struct.unpack_from("<d", packed, at + 8)[0], picture.get("note", "-"))
END
}

@test "two tables that cut one model into different numbers of stages have the same work" {
  "$WEFT" gen 1F1B -p 4 -m 8 -o one.csv
  "$WEFT" gen Interleaved1F1B -p 4 -v 2 -m 8 -o two.csv
  "$WEFT" gen GPipe -p 4 -m 8 -o other.csv
  weft show one.csv two.csv --f 2 --hop 0.25 -o both.html
  succeeds
  share="times are of a rank's share of the model"
  # As compare has them.
  compared() { "$WEFT" compare -p 4 -m 8 --f 2 --hop 0.25 --json | jq ".schedules[] | select(.name == \"$1\" and .v == $2).makespan"; }
  [ "$(pictures_of both.html)" = "$(compared 1F1B 1) $share, one stage
$(compared Interleaved1F1B 2) $share: a stage takes 1/2" ]
  # Each by itself has the same times.
  weft show two.csv --f 2 --hop 0.25 -o alone.html
  succeeds
  simulated=$("$WEFT" sim two.csv --f 2 --hop 0.25 --json | jq .makespan)
  [ "$(pictures_of alone.html)" = "$simulated $share: a stage takes 1/2" ]
  [ "$simulated" = "$(compared Interleaved1F1B 2)" ]
  weft show one.csv other.csv -o same.html
  succeeds
  [ "$(pictures_of same.html)" = "33 $share, one stage
33 $share, one stage" ]
}

@test "show takes costs" {
  tables
  weft show a.csv --f 2 --b 3 --hop 0.5
  succeeds
  [[ $output == *"makespan 22,"* ]]
  printf '%s' '{"schema": "weft-costs/1", "unit": "ms", "stages": [{"f": 1.5}]}' >c.json
  weft show a.csv --costs c.json
  succeeds
  [[ $output == *"makespan 14 ms,"* ]]
  weft show a.csv --slow 1=2
  succeeds
  [[ $output == *"makespan 21,"* ]]
  weft show a.csv --costs none.json
  fails 66 none.json
  weft show a.csv --f -1
  fails 2 --f
}

@test "numbers above a picture have four digits" {
  echo '{"schema": "weft-costs/1", "unit": "ms", "stages": [{"f": 1234.56789, "i": 0.0123456, "w": 1}]}' >digits.json
  "$WEFT" gen 1F1B -p 2 -m 3 | "$WEFT" show --costs digits.json -o digits.svg
  grep -q '>makespan 4942 ms · bubble' digits.svg
  echo '{"schema": "weft-costs/1", "unit": "ms", "stages": [{"f": 3.3333333, "i": 3.3333333, "w": 3.3333333}]}' >thirds.json
  "$WEFT" gen 1F1B -p 2 -m 3 | "$WEFT" show --costs thirds.json -o thirds.svg
  grep -q '>makespan 40 ms · bubble' thirds.svg
}

@test "show draws programs as they are, with shared channels too" {
  tables
  "$WEFT" lower a.csv >p.csv
  weft show p.csv --channel rank --hop 1
  succeeds
  weft show a.csv --channel rank --hop 1
  succeeds
  weft show p.csv --hop 1 -o p.svg
  succeeds
  is_xml p.svg
  has 'activation under way' p.svg
}

@test "options without an effect are refused" {
  tables
  for words in '--dark' '--colour-by stage' '--dark -o x.html' '--width 300 -o x.html' \
    '--width 300 -o x.json' '--colour-by op -o x.json' '--grid --f 1' '--grid --hop 2' \
    '--grid --width 30' '--grid --dark'; do
    # shellcheck disable=SC2086
    weft show a.csv $words
    fails 2 "has no effect"
    hints
  done
  weft show a.csv -o x.svg --colour-by rank
  fails 2 'op' 'stage'
}

@test "SVG: light or dark, by op or stage, as wide as asked" {
  tables
  "$WEFT" show a.csv -o light.svg
  "$WEFT" show a.csv -o dark.svg --dark
  "$WEFT" show a.csv -o stage.svg --colour-by stage --width 600
  for file in light dark stage; do
    is_xml $file.svg
  done
  has ' width="1200"' light.svg
  has ' width="600"' stage.svg
  has 'stage 1<' stage.svg
  run -1 cmp -s light.svg dark.svg
  weft show a.csv -o x.svg --width 100
  fails 2 "200 to 100000"
}

@test "what is wrong with a table is said, with status 1" {
  printf '0F0,0B0\n1F0\n' >bad.csv
  for words in '' '-o x.svg' '-o x.html' '-o x.json'; do
    # shellcheck disable=SC2086
    weft show bad.csv $words
    fails 1 "bad.csv: rank 1" "no backward"
    hints
  done
  printf '0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n' >late.csv
  weft show late.csv
  fails 1 late.csv
  [ ! -e x.svg ]
}

@test "what cannot be read is said" {
  tables
  weft show none.csv
  fails 66 none.csv
  printf '0F0,junk\n' >junk.csv
  weft show junk.csv
  fails 65 junk
  weft show a.csv junk.csv -o x.html
  fails 65 junk.csv
  weft show a.csv none.csv -o x.html
  fails 66 none.csv
  weft show a.csv -o none/x.svg
  fails 74 none/x.svg
  [ ! -e x.html ]
}

@test "names of files are escaped in every picture" {
  tables
  name=$'<b>&"\'\e[31m\xff]]>.csv'
  cp a.csv "$name"
  weft show "$name"
  succeeds
  [ "${lines[0]}" = '<b>&"'"'"'\x1b[31m\xff]]>.csv' ]
  weft show "$name" -o x.svg
  succeeds
  is_xml x.svg
  has '&lt;b&gt;&amp;&quot;&#39;\\x1b\[31m\\xff\]\]&gt;.csv' x.svg
  weft show "$name" -o x.json
  succeeds
  jq -e . x.json >/dev/null
  weft show "$name" -o x.html
  succeeds
  lacks '<b>&' x.html
  lacks $'\e' x.html
}

@test "a large picture is small enough" {
  "$WEFT" gen Interleaved1F1B -p 64 -v 2 -m 256 >large.csv
  weft show large.csv -o large.svg
  succeeds
  [ "$(stat -c %s large.svg)" -lt 20000000 ]
  is_xml large.svg
  weft show large.csv --all-ranks
  succeeds
  [ "$(grep -c '^rank' <<<"$output")" -ge 64 ]
}

@test "the picture in the documents is what the command draws" {
  "$WEFT" gen ZBVZeroBubble -p 4 -m 8 -o zbv.csv
  "$WEFT" show zbv.csv --hop 0.25 --width 900 -o zbv.svg
  cmp zbv.svg "$WEFT_SOURCE_DIR/docs/pictures/zbv.svg"
}

@test "--title and --no-title choose what stands above a timeline" {
  "$WEFT" gen 1F1B -p 2 -m 3 -o t.csv
  weft show t.csv --title "Figure 1 <a>"
  succeeds
  [[ $output == "Figure 1 <a>"$'\n'"rank 0"* ]]
  weft show t.csv --no-title
  succeeds
  [[ $output == "rank 0"* ]]
  "$WEFT" show t.csv --title "Figure 1 <a>" -o t.svg
  has "Figure 1 &lt;a&gt;</text>" t.svg
  "$WEFT" show t.csv --title "Figure 1" -o t.html
  has '"name":"Figure 1"' t.html
  "$WEFT" show t.csv --no-title -o bare.svg
  run ! grep -Eq "makespan|>t.csv</text>" bare.svg
  weft show t.csv --title x --no-title
  fails 2 "--title and --no-title contradict"
  weft show t.csv t.csv --title x -o two.html
  fails 2 "--title is for one timeline"
  weft show t.csv --no-title -o t.html
  fails 2 "--no-title has no effect here"
  weft show t.csv --grid --title x
  fails 2 "--title has no effect here"
}

@test "many ranks are drawn in part as text, with --all-ranks all" {
  "$WEFT" gen GPipe -p 64 -m 2 -o t.csv
  weft show t.csv
  succeeds
  [ "$(grep -c ^rank <<<"$output")" -eq 17 ]
  [[ $output == *"shown: every 4th of 64 ranks, and the last"* ]]
  weft show t.csv --all-ranks
  succeeds
  [ "$(grep -c ^rank <<<"$output")" -eq 64 ]
  weft show t.csv --all-ranks -o t.svg
  fails 2 "--all-ranks has no effect here"
}
