#!/bin/bash
# Compares what is built with stored results of an earlier commit, for changes that must not make
# plans worse or programs slower:
#
#     tools/gates.sh [--build DIR] [--jobs N] [--base FILE] [--store FILE] [GATE...]
#
#   golden          the tests that compare with files made by PyTorch and by other planners
#   planning-cases  150 random problems (bench/planning_cases.py)
#   plan-gaps       large pipelines in little memory (bench/plan_gaps.py)
#   graph-gaps      graphs of stages (bench/graph_gaps.py)
#   instructions    what gen, lower, verify, sim and the runtime execute, counted by callgrind
#
# Without GATE: all of them. The planner's effort is an amount of work and has one thread, and
# instructions are counted, so results do not depend on how busy the machine is. Prints a table for
# each gate, and a verdict. A plan may be 0.5 % worse, the mean of a gate not; no bound may exceed
# a plan of the other commit; a count may be 3 % larger. Exit status 1: a gate has failed.
#
#   --build DIR   what to measure; default build, as of `make`. golden needs its tests, too
#   --jobs N      plans at a time; default: one for each core
#   --base FILE   the results to compare with; default bench/gates.json
#   --store FILE  write the results of DIR to FILE instead of comparing them. DIR is the build of
#                 this commit or, with --commit NAME, of another one
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

refuse() {
  echo "gates.sh: $1" >&2
  echo "  hint: tools/gates.sh --help" >&2
  exit 2
}

build=$here/build
base=$here/bench/gates.json
jobs=$(nproc)
store=
commit=
gates=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit
      ;;
    --build | --jobs | --base | --store | --commit)
      [[ $# -gt 1 ]] || refuse "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    golden | planning-cases | plan-gaps | graph-gaps | instructions) gates+=("$1") ;;
    *) refuse "unknown gate '$1': expected golden, planning-cases, plan-gaps, graph-gaps or instructions" ;;
  esac
  shift
done
[[ ${#gates[@]} -gt 0 ]] || gates=(planning-cases plan-gaps graph-gaps instructions golden)
weft=$build/weft
[[ -x $weft ]] || refuse "$weft is not there: build it first, with 'make'"
"$here/tools/install-deps.sh" gates

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
failed=()

# ---- Instructions ----

# count FUNCTION COMMAND...: the instructions of the command inside the function, or, for '', all.
count() {
  local function=$1 counted
  shift
  counted=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    ${function:+--toggle-collect="$function"} "$@" 2>&1 >/dev/null |
    sed -n 's/^==[0-9]*== Collected *: *//p')
  if [[ -z $counted || $counted -eq 0 ]]; then
    echo "gates.sh: callgrind counted nothing in ${function:-all} of: $*" >&2
    return 1
  fi
  echo "$counted"
}

# A chain per line: name, ranks, microbatches, stages per rank. The graph is a U-Net with skips.
chains="1F1B 16 64 1
Interleaved1F1B 16 64 2
ZBVZeroBubble 16 64 2
DualPipeV 16 64 2"

write_inputs() { # of 32 stages on 16 ranks
  python3 - "$results" <<'PYTHON'
import json, sys
stages = [{"f": 4, "i": 4.2, "w": 3.5, "activation": 1}] * 32
edges = [(k, k + 1) for k in range(31)] + [(k, 31 - k) for k in range(15)]
for name, content in (
        ("costs", {"schema": "weft-costs/1", "stages": stages, "hop": {"latency": 0.2}}),
        ("costs16", {"schema": "weft-costs/1", "stages": stages[:16], "hop": {"latency": 0.2}}),
        ("graph", {"schema": "weft-graph/1", "stages": 32,
                   "edges": [{"from": a, "to": b} for a, b in edges]})):
    with open(f"{sys.argv[1]}/{name}.json", "w", encoding="utf-8") as file:
        json.dump(content, file)
PYTHON
}

# count_phases NAME COSTS OPTION...: lowering, proof, simulation and two runs of the table.
count_phases() {
  local name=$1 costs=$results/$2.json table=$results/table.csv program=$results/program.csv
  local few many actions
  shift 2
  echo "lower $name: $(count weft_lower "$weft" lower "$table" "$@" -o "$results/out.csv")"
  "$weft" lower "$table" "$@" -o "$program"
  echo "verify $name: $(count weft_verify "$weft" verify "$program" "$@")"
  echo "sim $name: $(count weft_simulate "$weft" sim "$program" "$@" --costs "$costs")"
  # What four steps more take: the runtime itself, without the way to it.
  local run=("$weft" run "$program" "$@" --costs "$costs" --transport loopback --stage null --steps)
  few=$(count "" "${run[@]}" 2)
  many=$(count "" "${run[@]}" 6)
  actions=$(tr ',' '\n' <"$program" | grep -c .)
  echo "dispatch $name, per action: $(((many - few) / 4 / actions))"
}

count_instructions() {
  local name ranks microbatches stages
  write_inputs
  while read -r name ranks microbatches stages; do
    local shape=(-p "$ranks" -m "$microbatches" -v "$stages")
    echo "gen $name: $(count weft_generate "$weft" gen "$name" "${shape[@]}" -o "$results/table.csv")"
    count_phases "$name" "costs$([[ $stages -eq 2 ]] || echo 16)"
  done <<<"$chains"
  "$weft" gen Interleaved1F1B -p 16 -m 64 --graph "$results/graph.json" -o "$results/table.csv"
  count_phases "a U-Net" costs --graph "$results/graph.json"
}

# ---- Gates ----

for gate in "${gates[@]}"; do
  printf '\n== %s\n' "$gate"
  measure=("--build" "$build" --threads 1 --effort 1 --jobs "$jobs" --json "$results/$gate.json")
  case $gate in
    golden)
      [[ -z $store ]] || continue
      ctest --test-dir "$build" --no-tests=error --output-on-failure -j "$jobs" \
        -R '^(test_(golden|dry_run|grid|match|diff|flight|hang_corpus|plan_published|render_.*)|cli_(golden|plan_cases))$' ||
        failed+=("$gate")
      continue
      ;;
    planning-cases) "$here/bench/planning_cases.py" "${measure[@]}" >"$results/log" ;;
    plan-gaps) "$here/bench/plan_gaps.py" "${measure[@]}" >"$results/log" ;;
    graph-gaps) "$here/bench/graph_gaps.py" "${measure[@]}" --memory 1000,100,80,60 >"$results/log" ;;
    instructions) count_instructions >"$results/$gate.txt" ;;
  esac
  [[ -n $store ]] || "$here/tools/compare_gates.py" compare "$base" "$gate" "$results" ||
    failed+=("$gate")
done

if [[ -n $store ]]; then
  "$here/tools/compare_gates.py" store "$store" "${commit:-$(git -C "$here" rev-parse --short HEAD)}" "$results"
  exit
fi
echo
if [[ ${#failed[@]} -gt 0 ]]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "passed: ${gates[*]}"
