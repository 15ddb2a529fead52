#!/usr/bin/env bats
# NCCL's communicators cost no more than a few times what blocking ranks do, however many a rank has.
load ../setup/cli_setup

# milliseconds OPTIONS...: how long it takes to verify dense.csv.
milliseconds() {
  local begin
  begin=$(date +%s%N)
  "$WEFT" verify dense.csv "$@" >report
  echo $((($(date +%s%N) - begin) / 1000000))
}

@test "a graph whose ranks have 500 communicators each" {
  awk 'BEGIN {
    printf "{\"schema\": \"weft-graph/1\", \"stages\": 400, \"edges\": ["
    for (s = 0; s < 400; s++) {
      for (t = s + 1; t < 400 && t <= s + 250; t++) {
        printf "%s{\"from\": %d, \"to\": %d}", separator, s, t
        separator = ", "
      }
    }
    print "]}" }' >dense.json
  "$WEFT" gen 1F1B --graph dense.json -m 8 | "$WEFT" lower -o dense.csv
  blocking=$(milliseconds)
  nccl=$(milliseconds --channel nccl-directed)
  echo "$blocking ms, with one communicator per directed pair $nccl ms"
  [ "$nccl" -lt $((5 * blocking)) ]
}
