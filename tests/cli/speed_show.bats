#!/usr/bin/env bats
# A picture of 64 ranks and 256 microbatches is there within a second.
load ../setup/cli_setup

@test "an SVG of 64 ranks, 256 microbatches and two stages takes less than a second" {
  "$WEFT" gen Interleaved1F1B -p 64 -v 2 -m 256 -o large.csv
  begin=$(date +%s%N)
  "$WEFT" show large.csv --hop 0.1 -o large.svg
  end=$(date +%s%N)
  echo "$(((end - begin) / 1000000)) ms"
  [ $((end - begin)) -lt 1000000000 ]
}

@test "a table of millions of actions is drawn without its transfers, and fits on a page" {
  "$WEFT" gen 1F1B -p 1024 -m 1700 -o huge.csv # 3.5 million actions, 10.4 million events with transfers
  "$WEFT" show huge.csv -o huge.html
  [ "$(stat -c %s huge.html)" -gt 1000000 ]
  rm huge.html
}
