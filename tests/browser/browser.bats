#!/usr/bin/env bats
# The HTML timeline in a real browser. The tests themselves are in Python
# (browser/timeline_test.py); here the command makes the pages they look at.
# WEFT_SCREENSHOTS=FOLDER keeps the screenshots.
# Not under sanitizers: it is about files, pages and other programs.
load ../setup/cli_setup

# show PAGE OPTIONS...: a page; quiet unless it goes wrong.
show() {
  "$WEFT" show "${@:2}" -o "$1"
}

make_pages() {
  echo '{"schema": "weft-costs/1", "unit": "ms", "stages": [{}], "hop": {"latency": 0.5}}' >ms.json
  echo '{"schema": "weft-costs/1", "stages": [{"unshard": 0.7, "reduce_grad": 2, "parameters": 3}],
         "hop": {"latency": 0.1, "bytes": 20, "bytes_per_unit": 10}}' >slow.json
  "$WEFT" gen 1F1B -p 2 -m 3 | "$WEFT" lower --no-unshard --no-reduce-grad -o small.csv
  "$WEFT" gen GPipe -p 2 -m 3 | "$WEFT" lower --no-unshard --no-reduce-grad -o gpipe.csv
  "$WEFT" gen DualPipeV -p 4 -v 2 -m 10 | "$WEFT" lower --no-unshard --no-reduce-grad -o overlaps.csv
  "$WEFT" gen Interleaved1F1B -p 4 -v 2 -m 8 -o table.csv
  "$WEFT" lower table.csv -o sharded.csv
  "$WEFT" lower table.csv --tie-grad -o tied.csv
  "$WEFT" lower table.csv --no-unshard --no-reduce-grad -o queued.csv
  "$WEFT" gen Interleaved1F1B -p 64 -v 2 -m 256 | "$WEFT" lower --no-unshard --no-reduce-grad -o large.csv
  cp small.csv '<img src=x onerror=alert(1)>.csv'
  show small.html small.csv --costs ms.json
  show hostile.html '<img src=x onerror=alert(1)>.csv'
  show pair.html small.csv gpipe.csv --costs ms.json
  "$WEFT" gen 1F1B -p 4 -m 8 -o whole.csv
  show cuts.html whole.csv table.csv
  show whole.html whole.csv
  show stages.html table.csv --costs-of stage
  show overlaps.html overlaps.csv --hop 0.25
  show table.html table.csv --costs slow.json
  show sharded.html sharded.csv --costs slow.json
  show tied.html tied.csv --costs slow.json
  show queued.html queued.csv --costs slow.json --channel rank
  show by_stage.html small.csv --colour-by stage
  printf '%s\n' '#graph,0>1,0>2,1>2' 0F0,0B0 1F0,1B0 2F0,2B0 >skip.csv
  echo '{"schema": "weft-graph/1", "stages": ["encoder", "middle", "head"], "edges":
         [{"from": 0, "to": 1}, {"from": 1, "to": 2}, {"from": 0, "to": 2, "bytes": 12}]}' >skip.json
  echo '{"schema": "weft-costs/1", "unit": "ms", "stages": [{}],
         "hop": {"latency": 0.5, "bytes_per_unit": 2}}' >sized.json
  show skip.html skip.csv --graph skip.json --costs sized.json
  show large.html large.csv --hop 0.5
  "$WEFT" gen 1F1B -p 64 -m 256 -o uniform.csv
  show uniform.html uniform.csv
  "$WEFT" gen GPipe -p 700 -m 1 | "$WEFT" show -o tall.html
  "$WEFT" gen ZBVZeroBubble -p 4 -m 8 -o zbv.csv
  show zbv.html zbv.csv
  show zbv_light.svg zbv.csv
  show zbv_dark.svg zbv.csv --dark
  "$WEFT" gen 1F1B -p 2 -m 3 | "$WEFT" lower -o a_table_whose_name_is_rather_long.csv
  "$WEFT" run a_table_whose_name_is_rather_long.csv --steps 3 -o run.html >run.txt
  echo '{"schema": "weft-costs/1", "unit": "ms", "stages": [{"f": 1234.56789, "i": 0.0123456, "w": 1}]}' >digits.json
  show digits.html small.csv --costs digits.json
}

@test "the page in a browser: hover, click, zoom, keyboard, a second schedule, hostile files" {
  for tool in chromium chromedriver python3; do
    command -v "$tool" >/dev/null || skip "no $tool here"
  done
  make_pages
  PYTHONPATH=$WEFT_SOURCE_DIR/tests/browser PYTHONDONTWRITEBYTECODE=1 \
    python3 "$WEFT_SOURCE_DIR/tests/browser/timeline_test.py"
  if [ -n "${WEFT_SCREENSHOTS:-}" ]; then
    mkdir -p "$WEFT_SCREENSHOTS"
    cp ./*.png "$WEFT_SCREENSHOTS"
  fi
}

@test "the picture at the top of the README is of today's page" {
  for tool in chromium chromedriver python3; do
    command -v "$tool" >/dev/null || skip "no $tool here"
  done
  "$WEFT_SOURCE_DIR/tools/hero-picture.py" --check "$WEFT" "$WEFT_SOURCE_DIR/docs/pictures/hero.png"
}
