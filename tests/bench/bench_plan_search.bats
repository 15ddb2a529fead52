#!/usr/bin/env bats
# weft bench plan-search

@test "bench plan-search checks every plan, and measures" {
  "$WEFT" bench plan-search --repeats 1 --json >"$BATS_TEST_TMPDIR/b.json"
  python3 - "$BATS_TEST_TMPDIR/b.json" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
assert report["schema"] == "weft-bench-plan-search/1"
for row in report["single"]:
    assert row["bubble"] <= row["published"] + 0.00005 and row["ms"] > 0, row
bubbles = report["v"]["bubble"]
assert len(bubbles) == 23 and report["v"]["ms"] > 0
assert bubbles[0] > bubbles[-1] >= 0
assert report["moves"] > 0 and report["move_ns"] > 0
PYTHON
}
