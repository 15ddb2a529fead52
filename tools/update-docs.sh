#!/bin/bash
# Brings the documents up to date: the blocks made from the sources, the
# output of the examples, and the pictures in docs/pictures that `weft show` draws.
#
#     tools/update-docs.sh [--check] [FILE...]
#
# --check changes nothing, shows what is stale, and then exits with 1. Without
# FILE: all documents and pictures. WEFT is the command to use; default build/weft.
#
# A block stands between <!-- generated: NAME --> and <!-- end generated -->, and
# is what the function block_NAME here prints.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export WEFT=${WEFT:-build/weft}
if [[ ! -x $WEFT ]]; then
  echo "there is no $WEFT; 'make' builds it" >&2
  exit 66
fi

# from_table MACRO PARAMETERS ROW FILE: the lines of a .def file, each as ROW.
from_table() {
  printf '#define %s(%s) @@ %s\n#include "%s"\n' "$@" | "${CC:-cc}" -E -P -I. -xc - |
    sed -n 's/^@@ //p'
}

block_ops() {
  echo '| text | microbatch | what it does | waits for |'
  echo '|---|---|---|---|'
  from_table WEFT_OP 'name, text, kind, mb, summary, waits, ...' 'text @ #mb @ summary @ waits' \
    src/ir/ops.def | awk -F' @ ' '{
      gsub(/"/, "")
      print "| " ($1 == "" ? "(empty)" : "`" $1 "`") " | " ($2 == "true" ? "yes" : "no") " | " $3 " | " $4 " |"
    }'
}

block_rules() {
  echo '| rule | is found when |'
  echo '|---|---|'
  from_table WEFT_RULE 'name, id, summary' 'id @ summary' include/weft/rules.def |
    awk -F' @ ' '{
      gsub(/"/, "")
      anchor = $1
      gsub(/\./, "", anchor)
      print "| [`" $1 "`](#" anchor ") | " $2 " |"
    }'
}

# shellcheck disable=SC2016
block_send_models() {
  echo '| `--comm` | a SEND is done |'
  echo '|---|---|'
  "$WEFT" verify --list --json | jq -r '.comm[] | "| `\(.name)` | \(.done) |"'
}

# shellcheck disable=SC2016
block_channel_models() {
  echo '| `--channel` | one FIFO for |'
  echo '|---|---|'
  "$WEFT" verify --list --json | jq -r '.channel[] | "| `\(.name)` | \(.one_for) |"'
}

block_schedules() {
  echo '| name | what it is | v | placement | backward | bubble | peak of activations | limits | arXiv |'
  echo '|---|---|---|---|---|---|---|---|---|'
  "$WEFT" gen --list --json | jq -r '
    def or_dash: if . == "" then "–" else gsub("\\|"; "\\|") end;
    .schedules[] | "| `\(.name)`\(if .in_pytorch then " *" else "" end) | \(.summary) | " +
      (if .stages_per_rank_max == null then "≥ \(.stages_per_rank_min)"
       elif .stages_per_rank_min == .stages_per_rank_max then "\(.stages_per_rank_min)"
       else "\(.stages_per_rank_min)–\(.stages_per_rank_max)" end) +
      " | \(if .trains then .placement else "any" end) | " +
      (if .trains | not then "none" elif .splits_backward then "split" else "full" end) +
      " | \(.bubble | or_dash) | \(.peak_activation | or_dash) | \(.limits | or_dash) | \(.paper | or_dash) |"'
}

block_modules() {
  sed -n 's/^weft_module(\([a-z]*\) *\(RUNS\)\{0,1\} *HEADERS \([^)]*\))$/\1 @ \3/p' CMakeLists.txt |
    awk -F' @ ' '{
      split($2, part, / *USES */)
      print "- `src/" $1 "` may use " (part[2] == "" ? "libc" : part[2]) "; headers: " part[1]
    }'
  echo "- \`src/cli\` (weft) and \`trainer/cublaslt\` (matrix products, for bench and trainer) may use the public headers"
  echo "- \`bench\` (weft-bench) also src/cli; \`trainer\` (weft-train) also src/cli and bench"
}

fill_blocks() { # FILE
  local line skip=false
  while IFS= read -r line; do
    case $line in
      '<!-- generated: '*' -->')
        printf '%s\n' "$line"
        line=${line#'<!-- generated: '}
        "block_${line%' -->'}"
        skip=true
        ;;
      '<!-- end generated -->')
        skip=false
        printf '%s\n' "$line"
        ;;
      *) $skip || printf '%s\n' "$line" ;;
    esac
  done <"$1"
}

draw_pictures() { # FOLDER
  local shape name
  (
    cd "$1"
    weft=$OLDPWD/$WEFT
    [[ $WEFT != /* ]] || weft=$WEFT
    "$weft" gen ZBVZeroBubble -p 4 -m 8 -o zbv.csv
    "$weft" show zbv.csv --hop 0.25 --width 900 -o zbv.svg
    for shape in GPipe 1F1B Eager1F1B 'Interleaved1F1B -v 2' 'LoopedBFS -v 2' ZBH1 \
      'InterleavedZeroBubble -v 2' ZBVZeroBubble DualPipeV; do
      name=${shape%% *}
      read -ra options <<<"$shape"
      "$weft" gen "${options[@]}" -p 4 -m 8 | "$weft" show --title "$name" --width 640 -o "schedule-$name.svg"
    done
    "$weft" plan -p 4 -v 2 -m 8 --memory 3 --threads 1 -o plan.csv >plan.txt
    "$weft" show plan.csv --title 'a plan that needs 3' --width 900 -o plan.svg
    rm zbv.csv plan.csv plan.costs.json plan.txt
  )
}

check=false
if [[ ${1:-} == --check ]]; then
  check=true
  shift
fi
documents=("$@")
pictures=false
if [[ ${#documents[@]} -eq 0 ]]; then
  pictures=true
  documents=(README.md CONTRIBUTING.md CHANGELOG.md docs/*.md trainer/README.md)
fi

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
stale=0
# What the documents show how to add, in one copy of the sources, where each is one page's.
mapfile -t changing < <(grep -l '^```diff$' "${documents[@]}" || true)
if [[ ${#changing[@]} -gt 0 ]]; then
  export WEFT_CHANGED_TREE=$fresh/tree
  tools/run-doc-examples.sh --build "$WEFT_CHANGED_TREE" "${changing[@]}"
fi
for document in "${documents[@]}"; do
  fill_blocks "$document" >"$fresh/filled.md"
  tools/run-doc-examples.sh "$fresh/filled.md" >"$fresh/run.md"
  if ! $check; then
    cmp -s "$document" "$fresh/run.md" || cp "$fresh/run.md" "$document"
  elif ! diff -u --label "$document" --label "$document, as it should be" "$document" "$fresh/run.md"; then
    stale=$((stale + 1))
  fi
done
if $pictures; then
  mkdir "$fresh/pictures"
  draw_pictures "$fresh/pictures"
  for picture in "$fresh"/pictures/*; do
    name=docs/pictures/$(basename "$picture")
    if cmp -s "$picture" "$name"; then
      continue
    elif $check; then
      echo "$name is stale" >&2
      stale=$((stale + 1))
    else
      cp "$picture" "$name"
    fi
  done
fi
if [[ $stale -gt 0 ]]; then
  echo "$stale of ${#documents[@]} documents are stale; tools/update-docs.sh renews output, tables and pictures" >&2
  exit 1
fi
