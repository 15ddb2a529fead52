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
