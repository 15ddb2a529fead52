#!/usr/bin/env bats
# weft show -o FILE.json: Chrome traces, through the command and with another
# reader of JSON than test_render_trace.c's.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

@test "a trace has a process per rank, its tracks, flows and counters" {
  "$WEFT" gen Interleaved1F1B -p 4 -v 2 -m 8 | "$WEFT" lower -o program.csv
  weft show program.csv --hop 0.5 -o trace.json
  succeeds
  jq -e '.displayTimeUnit == "ms" and (.traceEvents | length) > 0' trace.json >/dev/null
  # Each rank once, by its name, in order.
  jq -e '[.traceEvents[] | select(.name == "process_name") | .args.name]
         == ["rank 0", "rank 1", "rank 2", "rank 3"]' trace.json >/dev/null
  # What each phase must have.
  jq -e '.traceEvents | all(has("ph") and has("pid") and has("tid") and has("name"))' trace.json >/dev/null
  jq -e '[.traceEvents[] | select(.ph == "X")] | length > 0
         and all(.ts >= 0 and .dur >= 0 and (.cat | length) > 0 and (.name | startswith("PP:")))' \
    trace.json >/dev/null
  # Compute on track 1, all else elsewhere, and every track has a name.
  jq -e '[.traceEvents[] | select(.ph == "X")]
         | all((.tid == 1) == (.cat | test("forward|backward|overlap")))' trace.json >/dev/null
  jq -e '([.traceEvents[] | select(.name == "thread_name") | [.pid, .tid]] | sort)
         == ([.traceEvents[] | [.pid, .tid]] | unique)' trace.json >/dev/null
  # As many flows as SENDs, each with two ends on two ranks.
  sends=$(tr , '\n' <program.csv | grep -c SEND)
  jq -e --argjson sends "$sends" '[.traceEvents[] | select(.ph == "s" or .ph == "f")] | group_by(.id)
         | length == $sends and all(length == 2 and (map(.ph) | sort) == ["f", "s"]
           and .[0].pid != .[1].pid)' trace.json >/dev/null
  # Memory goes back to nothing on every rank.
  jq -e '[.traceEvents[] | select(.ph == "C")] | group_by(.pid)
         | length == 4 and all(last.args.activation == 0)' trace.json >/dev/null
}

@test "complete events of a track do not overlap, however long messages take" {
  "$WEFT" gen ZBVZeroBubble -p 4 -m 8 | "$WEFT" lower -o program.csv
  for hop in 0 0.5 3 40; do
    "$WEFT" show program.csv --hop "$hop" -o trace.json
    jq -e '[.traceEvents[] | select(.ph == "X")] | group_by([.pid, .tid])
           | all(sort_by(.ts) | [., .[1:]] | transpose
                 | all(.[1] == null or .[0].ts + .[0].dur <= .[1].ts + 0.0001))' trace.json >/dev/null
  done
}

@test "the name of a file does no harm in its trace" {
  "$WEFT" gen 1F1B -p 2 -m 2 -o '"},]<script>.csv'
  weft show '"},]<script>.csv' -o trace.json
  succeeds
  jq -e '.otherData.name | endswith("\"},]<script>.csv")' trace.json >/dev/null
  lacks '<script' trace.json
}
