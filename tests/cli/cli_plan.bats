#!/usr/bin/env bats
# weft plan
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

# Small, and the same everywhere.
quick=(--effort 0.02 --threads 1)

# Four unequal stages.
unequal() {
  cat >costs.json <<END
{"schema": "weft-costs/1", "unit": "ms",
 "stages": [{"f": 3, "i": 3, "w": 2}, {"f": 4, "i": 4, "w": 3},
            {"f": 4, "i": 5, "w": 3}, {"f": 6, "i": 6, "w": 5}],
 "hop": {"latency": 0.25}}
END
}

# Ten parts, of which the last is heavy.
layered() {
  jq -n '{schema: "weft-costs/1", unit: "ms", stages: [{}],
          parts: ([range(9) | {f: 1, i: 1, w: 1, activation: 1}] + [{f: 3, i: 3, w: 3, activation: 1}])}' >parts.json
}

# holds DOCUMENT TABLE COSTS: the simulator gets what the document promises.
holds() {
  "$WEFT" sim "$2" --costs "$3" --json >sim.json
  jq -e --slurpfile s sim.json '
    ["makespan", "span", "bubble_ratio", "span_bubble_ratio", "period", "peak_activation", "ranks"] as $all
    | . as $p | all($all[]; . as $k | $p[$k] == $s[0][$k])' "$1" >/dev/null
  "$WEFT" verify "$2" >/dev/null
  "$WEFT" lower "$2" >program.csv
  "$WEFT" verify program.csv >/dev/null
  "$WEFT" sim program.csv --costs "$3" --json >sim.json
  jq -e --slurpfile s sim.json '.makespan == $s[0].makespan and .span == $s[0].span' "$1" >/dev/null
}

@test "plan: one order is no 'orders'" {
  weft plan -p 2 -m 1 --threads 1
  [[ $stderr == *$'\nsearch            1 order evaluated, seed 0'* ]]
}

@test "plan --json: every field of sim and of the search" {
  unequal
  weft plan -p 4 -m 8 --costs costs.json --memory 3 --seed 7 "${quick[@]}" --json -o t.csv
  succeeds
  jq -e '.schema == "weft-plan/1" and .unit == "ms" and .objective == "makespan" and .memory_limit == 3
         and .seed == 7 and .v == 1 and .placement == "loop" and (.schedule | type) == "string"
         and (.optimal | type) == "boolean" and .stopped == false and .evaluated > 0
         and .makespan >= .bound and .span <= .makespan and .bound >= 136
         and .open_bound <= .bound and .gap == .makespan / .bound - 1 and .optimal == (.makespan == .bound)
         and (.ranks | length) == 4 and all(.ranks[]; .peak_memory <= 3 and has("idle_by_cause"))
         and (.costs.stages | length) == 4 and .peak_memory <= 3 and (has("stage_parts") | not)' <<<"$output"
  printf '%s' "$output" >p.json
  holds p.json t.csv costs.json
}

@test "plan: the table is data, what is said about it is not" {
  weft plan -p 2 -m 4 "${quick[@]}"
  [ "$status" -eq 0 ]
  [ "${#lines[@]}" -eq 2 ]
  "$WEFT" verify - <<<"$output"
  [[ $stderr == *": 2 ranks, "*$'\nresult  '*"makespan "*" bound "*$'\nmemory '*$'\nsearch '*" seed 0"* ]]
  weft plan -p 2 -m 4 "${quick[@]}" -o t.csv
  succeeds
  [[ $output == *$'\nresult '* ]]
  "$WEFT" verify t.csv
  is_tidy
  weft plan -p 2 -m 4 "${quick[@]}" --json
  succeeds
  jq -e '.memory_limit == null and .objective == "makespan"' <<<"$output"
  weft plan -p 2 -m 4 --json -o -
  fails 2 "standard output"
  hints
}

@test "plan: a file stays as it is unless there is a plan for it" {
  echo old >t.csv
  weft plan -p 2 -m 4 "${quick[@]}" -o no/where.csv
  fails 74 "no/where.csv"
  hints
  weft plan -p 2 -m 4 --memory 0.5 "${quick[@]}" -o t.csv
  fails 1 "0.5"
  [ "$(cat t.csv)" = old ]
  is_tidy
}

@test "plan: same seed, same bytes" {
  unequal
  for n in 1 2; do
    "$WEFT" plan -p 4 -m 8 --costs costs.json --memory 3 --seed 5 --effort 0.05 --threads 2 --json -o "t$n.csv" >"d$n.json"
  done
  cmp t1.csv t2.csv
  cmp t1.costs.json t2.costs.json
  cmp <(jq 'del(.costs_file)' d1.json) <(jq 'del(.costs_file)' d2.json)
}

@test "plan is never worse than the best named schedule, and optimal only at the bound" {
  unequal
  for objective in makespan span; do
    for memory in 1 2 4 100; do
      "$WEFT" plan -p 4 -m 6 --costs costs.json --memory "$memory" --objective "$objective" "${quick[@]}" --json -o t.csv >p.json
      holds p.json t.csv costs.json
      best=$("$WEFT" compare -p 4 -m 6 --costs costs.json --memory "$memory" --json |
        jq "[.schedules[] | select(.fits) | .$objective] | min // 1e9")
      jq -e --argjson best "$best" --arg o "$objective" \
        '.objective == $o and .[$o] <= $best and .optimal == (.[$o] <= .bound) and .peak_memory <= .memory_limit' p.json >/dev/null
    done
  done
}

@test "plan: v, placement and whole backwards as asked for" {
  weft plan -p 2 -m 4 -v 2 --placement v "${quick[@]}" --json -o v.csv
  jq -e '.v == 2 and .placement == "v"' <<<"$output"
  grep -q '^0F0.*3F0' v.csv
  weft plan -p 2 -m 4 -v 2 --placement loop "${quick[@]}" --json -o l.csv
  jq -e '.v == 2 and .placement == "loop"' <<<"$output"
  grep -q '^0F0.*2F0' l.csv
  weft plan -p 2 -m 4 -v 1 --no-split "${quick[@]}" --json -o b.csv
  succeeds
  lacks '[IW]' b.csv
  has 0B3 b.csv
  weft plan -p 2 -m 4 -v 3 --placement v
  fails 2 "even"
  hints
}

@test "plan: a limit that nothing fits into is explained, with the smallest that would do" {
  weft plan -p 4 -m 8 --memory 0.5 "${quick[@]}" -o t.csv
  fails 1 "0.5" "1"
  hints
  [ ! -e t.csv ]
  "$WEFT" plan -p 4 -m 8 --memory 1 "${quick[@]}" --json >p.json
  jq -e '.peak_memory == 1' p.json >/dev/null
}

@test "plan --slow: the plan is for these ranks, and sim --slow agrees" {
  unequal
  weft plan -p 4 -m 8 --costs costs.json --slow 1=1.7 --slow 3=1.5 "${quick[@]}" --json -o t.csv
  succeeds
  jq -r .makespan <<<"$output" >planned
  jq .costs <<<"$output" >own.json
  jq -e '(.costs.stages | map(.f)) == [3, 6.8, 4, 9]' <<<"$output"
  "$WEFT" sim t.csv --costs costs.json --slow 1=1.7 --slow 3=1.5 --json | jq -r .makespan | diff - planned
  "$WEFT" sim t.csv --costs own.json --json | jq -r .makespan | diff - planned
  jq '.rank_factors = [1, 1.7, 1, 1]' costs.json >ranks.json
  weft plan -p 4 -m 8 --costs ranks.json --slow 3=1.5 "${quick[@]}" --json
  jq -r .makespan <<<"$output" | diff - planned
  "$WEFT" sim t.csv --costs ranks.json --slow 3=1.5 --json | jq -r .makespan | diff - planned
  weft plan -p 2 -m 8 --costs ranks.json
  fails 2 "rank_factors of 4 ranks"
  hints
  weft plan -p 4 -m 8 --slow 4=2
  fails 2 "rank 4"
  hints
}

@test "plan cuts the model into stages, and says which parts each has" {
  layered
  "$WEFT" plan -p 4 -m 8 -v 1 --costs parts.json "${quick[@]}" --json -o t.csv >p.json
  jq -e '.stage_parts == [3, 3, 3, 1] and (.costs.stages | map(.f)) == [3, 3, 3, 3]' p.json >/dev/null
  jq .costs p.json >own.json
  holds p.json t.csv own.json
  weft plan -p 4 -m 8 -v 1 --costs parts.json "${quick[@]}" -o t.csv --for torchtitan
  [[ $output == *"parts of stages   3,3,3,1"*'["tok_embeddings", "layers.0", "layers.1"]'*'["norm", "lm_head"]]'* ]]
  weft plan -p 11 -m 8 --costs parts.json
  fails 2 "10 parts"
  hints
  "$WEFT" plan -p 4 -m 8 -v 1 --costs parts.json --keep-partition "${quick[@]}" --json >p.json
  jq -e 'has("stage_parts") | not' p.json >/dev/null
}

@test "plan: what fits is found without time too" {
  # Of 96 parts the first two are large: partitions into equal work do not fit.
  jq -n '{schema: "weft-costs/1", stages: [{}],
          parts: [range(96) | {f: 1, i: 1, w: 1, activation: (if . < 2 then 12 else 1 end), parameters: 3}]}' >parts.json
  weft plan -p 16 -m 256 -v 2 --placement loop --memory 36 --costs parts.json --time-limit 0.001 -o t.csv
  [ "$status" -eq 0 ]
  weft plan --ranks 16 --global-batch 256 -v 2 --memory 36 --costs parts.json --time-limit 0.001 -o t.csv
  [ "$status" -eq 0 ]
}

@test "plan says when the time limit is too short for a single order" {
  weft plan -p 512 -m 1024 --memory 256 --costs <(echo '{"schema": "weft-costs/1", "stages": [{"activation": 1}]}') \
    --time-limit 0.001 -o t.csv --json
  [ "$status" -eq 0 ]
  [[ $stderr == "weft: note: --time-limit 0.001 is too short: one order of 1572864 actions, its check and its output took "*" s" ]]
  jq -e .stopped <<<"$output" >/dev/null
}

@test "plan --for: flags of torchtitan by placement, lines for PyTorch" {
  schedule_of() {
    "$WEFT" plan -p 2 -m 4 "${quick[@]}" --for torchtitan -o 'my plan.csv' --json "$@" |
      jq -r '.run_with.flags | .[index("--parallelism.pipeline_parallel_schedule") + 1]'
  }
  [ "$(schedule_of -v 1)" = PipelineScheduleSingle ]
  [ "$(schedule_of -v 2 --placement loop)" = PipelineScheduleMulti ]
  [ "$(schedule_of -v 2 --placement v)" = ZBVZeroBubble ]
  weft plan -p 2 -m 4 -v 1 "${quick[@]}" --for torchtitan -o 'my plan.csv'
  [[ $output == *"pipeline_parallel_degree 2 "*"schedule_csv 'my plan.csv' "*"num_pp_microbatches 4 "*"--training.disable_cuda_graphs"$'\n'*"torch.compile"* ]]
  # Flags that torchtitan removed in August 2026.
  [[ $output != *local_batch_size* && $output != *microbatch_size* ]]
  weft plan -p 2 -m 4 -v 1 --no-split "${quick[@]}" --for pytorch -o p.csv
  [[ $output == *'_load_csv("p.csv", format="compute_only")'* && $output != *torch.compile* ]]
  weft plan -p 2 -m 4 -v 4 --placement v "${quick[@]}" --for torchtitan -o t.csv
  fails 1 "no V with 4 stages"
  hints
  weft plan -p 2 -m 4 --for torchtian
  fails 2 "did you mean 'torchtitan'"
}

@test "plan --for: the layout of Megatron-LM, names of parts, and the same in JSON" {
  layered
  weft plan -p 4 -m 8 -v 1 --costs parts.json "${quick[@]}" -o t.csv --for megatron
  succeeds
  [[ $output == *"For Megatron-LM:"*"--pipeline-model-parallel-size 4 "*"--pipeline-model-parallel-layout 'Ett|ttt|ttt|L'"* ]]
  weft plan -p 4 -m 8 -v 1 --costs parts.json "${quick[@]}" -o t.csv --for megatron --part-names E,t,t,t,t,t,t,m,m,L --json
  succeeds
  jq -e '.run_with | .target == "megatron" and .layout == "Ett|ttt|tmm|L" and .flags[1] == "4"' <<<"$output"
  "$WEFT" verify t.csv
  weft plan -p 4 -m 8 -v 1 --costs parts.json "${quick[@]}" -o t.csv --for torchtitan --part-names a,b,c,d,e,f,g,h,i,norm+head --json
  jq -e '.run_with.module_fqns_per_model_part == [["a", "b", "c"], ["d", "e", "f"], ["g", "h", "i"], ["norm", "head"]]' <<<"$output"
  # Names are quoted for Python, in which the configuration is.
  weft plan -p 4 -m 8 -v 1 --costs parts.json "${quick[@]}" -o t.csv --for torchtitan --part-names 'a"]+b\n,"",c,d,e,f,g,h,i,j'
  sed -n '/module_fqns_per_model_part/,/\]\]/p' <<<"$output" | sed '1s/.*= //' >lists
  [ "$(python3 -c 'print(eval(open("lists").read())[0])')" = "['a\"]', 'b\\\\n', '\"\"', 'c']" ]
  weft plan -p 2 -m 4 -v 1 "${quick[@]}" --for pytorch -o p.csv --json
  jq -e '.run_with.code | test("_load_csv")' <<<"$output"
  weft plan -p 4 -m 8 -v 1 --costs parts.json "${quick[@]}" --for megatron --part-names E,t,L
  fails 2 "10 parts, but 3 are named"
  hints
  weft plan -p 4 -m 8 -v 1 --costs parts.json "${quick[@]}" --for megatron --part-names E,,L
  fails 2 "an empty name"
  weft plan -p 2 -m 4 --part-names E,L
  fails 2 "--part-names is about --for"
  weft plan -p 2 -m 4 -v 1 "${quick[@]}" --for megatron
  fails 2 "does not partition the model"
  hints
  weft plan -p 2 -m 8 -v 2 --placement v --costs parts.json "${quick[@]}" --for megatron
  fails 1 "the plan is a V"
  weft gen 1F1B -p 2 -m 4 --for megatron
  fails 2 "torchtitan|pytorch"
}

@test "plan: wrong options say what is right" {
  weft plan -m 8
  fails 2 "needs -p"
  hints
  weft plan -p 4
  fails 2 "needs -m"
  hints
  weft plan -p 4 -m 8 --objective speed
  fails 2 "makespan|span"
  weft plan -p 4 -m 8 --memroy 3
  fails 2 "did you mean '--memory'"
  weft plan -p 4 -m 8 --pareto --for torchtitan
  fails 2 "--pareto"
  weft plan -p 4 -m 8 --pareto -o x.csv
  fails 2 ".svg"
  hints
  weft plan -p 4000000000 -m 8
  fails 2 "limit"
  unequal
  weft plan -p 3 -m 8 --costs costs.json
  fails 2 "4 entries"
  hints
}

@test "plan --pareto: memory rises, time falls, to what no limit gives" {
  unequal
  "$WEFT" plan -p 4 -m 8 --costs costs.json --pareto --effort 0.4 --threads 1 --json -o p.svg >p.json
  jq -e '.schema == "weft-pareto/1" and .least_memory == 1 and (.points | length) >= 3
         and (.points | map(.memory) | . == (sort | unique))
         and (.points | map(-.makespan) | . == (sort | unique))
         and .points[0].memory == 1
         and all(.points[]; .makespan >= .bound and .memory <= (.memory_limit // 1e9) and .v == 1)' p.json >/dev/null
  has '</svg>' p.svg
  [ "$(grep -o '<text[^>]* fill="[^"]*"' p.svg | grep -o '#.*' | sort -u)" = '#767676"' ] # 4.54 to 1 on white
  has 'times are of each stage' p.svg
  weft plan -p 4 -m 8 --costs costs.json --pareto --memory 3 --effort 0.2 --threads 1 -o p.html
  succeeds
  [[ $output == *"memory    makespan"*"no schedule fits into less than 1;"* ]]
  has '</html>' p.html
  is_tidy
}

# Several stages per rank, little memory, many microbatches: no bound says soon that it is done.
# Eight equal parts with gradients, and what their all-reduce costs.
replicated() {
  jq -n '{schema: "weft-costs/1", unit: "ms", stages: [{}], hop: {latency: 0.5},
          all_reduce: {latency: 0.25, size_per_unit: 4},
          parts: [range(8) | {f: 1, i: 1, w: 1, activation: 1, parameters: 2, gradients: 1}]}' >parts.json
}

@test "plan --global-batch chooses ranks and replicas, and the table holds" {
  replicated
  weft plan --ranks 4 --global-batch 8 --costs parts.json --memory 14 "${quick[@]}" --json -o t.csv
  succeeds
  printf '%s' "$output" >c.json
  jq -e '.schema == "weft-choice/1" and .ranks == 4 and .global_batch == 8 and .memory_limit == 14
         and .bound <= .candidates[0].step and .stopped == false and .microbatch_size == 1
         and all(.candidates[]; .ranks * .replicas == 4 and .microbatches * .replicas == 8)
         and ([.candidates[].ranks] | unique) == [1, 2, 4]
         and ([.candidates[] | select(.step).step] | . == sort)
         and all(.candidates[] | select(.ranks == 1); .bound == null and .step == null)
         and all(.candidates[] | select(.step); .step >= .bound and .peak_memory <= 14
                 and .step == .makespan + .all_reduce and (.stage_parts | add) == 8)' c.json
  jq .costs c.json >own.json
  "$WEFT" sim t.csv --costs own.json --json >sim.json
  jq -e --slurpfile s sim.json '.candidates[0].makespan == $s[0].makespan' c.json
  # Every candidate is what a plan of its own gives: here all are proven optimal or beaten.
  weft plan -p 4 -m 8 -v 2 --placement v --costs parts.json --memory 14 "${quick[@]}" --json
  succeeds
  jq -e --slurpfile c c.json '.makespan as $m | $c[0].candidates[]
         | select(.ranks == 4 and .v == 2 and .placement == "v") | .makespan >= .bound and .bound <= $m' <<<"$output"
  weft plan -p 2 -m 4 -v 2 --placement v --costs parts.json --memory 14 "${quick[@]}" --json
  fails 1 "no schedule fits into a memory of 14 per rank"
  jq -e '[.candidates[] | select(.ranks == 2).step] | all(. == null)' c.json
  weft plan --ranks 4 --global-batch 8 --costs parts.json --memory 14 "${quick[@]}" -o c.svg
  succeeds
  [[ $output == *"4 ranks, a global batch of 8"*$'\nbest: '*"bound of all candidates"* ]]
  [[ $output == *"does not fit into the memory"* ]]
  xmllint --noout c.svg 2>/dev/null || ! command -v xmllint
  has "lower bound" c.svg
  has "times are of each stage" c.svg
  "$WEFT" plan --ranks 4 --global-batch 8 --costs parts.json "${quick[@]}" -o c.html | diff <(
    "$WEFT" plan --ranks 4 --global-batch 8 --costs parts.json "${quick[@]}") -
  has "at least\|memory" c.html
}

@test "plan --pareto and --global-batch say what times are of, and how to repeat a table" {
  replicated
  jq -n '{schema: "weft-graph/1", stages: ["a", "b", "c", "d"],
          edges: [{from: 0, to: 1}, {from: 0, to: 2}, {from: 1, to: 3}, {from: 2, to: 3}]}' >g.json
  weft plan --ranks 2 --global-batch 4 --graph g.json "${quick[@]}" -o g.csv
  succeeds
  [[ ${lines[0]} == *"; times are of a stage" ]]
  local repeat makespan
  repeat=$(sed -n 's/^repeat *weft //p' <<<"$output")
  # shellcheck disable=SC2086
  weft $repeat --json
  makespan=$(jq .makespan <<<"$output")
  weft plan --ranks 2 --global-batch 4 --graph g.json "${quick[@]}" -o g.csv --json
  jq -e --argjson m "$makespan" '.costs_of == "stage" and .costs_file == "g.costs.json" and .candidates[0].makespan == $m' <<<"$output"
  weft plan --ranks 2 --global-batch 4 --graph g.json --costs-of rank
  fails 2 "--costs-of has no effect here: where --global-batch chooses the ranks, times are of a stage"
  weft plan --ranks 2 -m 4 --costs parts.json --costs-of stage
  fails 2 "--costs-of has no effect here: the times of a stage are those of its parts"
  weft plan --ranks 2 -m 4 --costs parts.json --pareto "${quick[@]}"
  [[ ${lines[0]} == "2 ranks, 4 microbatches; times in ms; times are of each stage" ]]
  weft plan --ranks 1 -m 1 --pareto "${quick[@]}" -o p.svg
  succeeds
  has ">makespan by memory: 1 rank, 1 microbatch<" p.svg
  has ">times are of a rank's share of the model<" p.svg
}

@test "plan says what the least memory is made of, on the placement that needs least" {
  jq -n '{schema: "weft-costs/1",
    stages: [3, 1, 3, 1 | {f: 1, i: 1, w: 1, activation: 1, parameters: .}]}' >unequal.json
  weft plan -p 2 -m 4 --memory 1 --costs unequal.json
  fails 1 "the least is 6: rank 0 has 4 of parameters and gradients, and holds at least 2 of activations"
}

@test "plan --global-batch: a slow rank, the least memory, what cannot be" {
  replicated
  weft plan --ranks 4 --global-batch 8 --costs parts.json --slow 3=3 -v 1 "${quick[@]}" --json
  succeeds
  jq -e 'all(.candidates[] | select(.ranks == 4 and .stage_parts); .stage_parts[3] == 1)' <<<"$output"
  weft plan --ranks 4 --global-batch 8 --costs parts.json --memory 7
  fails 1 "the least is 8: a pipeline of 4 ranks"
  hints
  weft plan --ranks 4 --global-batch 8 --costs parts.json --memory 8 "${quick[@]}" --json
  succeeds
  weft plan --ranks 16 --global-batch 9 --costs parts.json
  fails 2 "a global batch of 9"
  hints
  weft plan --ranks 4 --global-batch 8
  fails 2 "no parts"
  hints
  weft plan --ranks 4 --global-batch 8 -m 4 --costs parts.json
  fails 2 "--microbatches"
  weft plan --ranks 4 --costs parts.json
  fails 2 "--global-batch"
}

@test "an interrupted plan is the best so far" {
  for signal in INT:130 TERM:143; do
    # A shell has what it runs in the background ignore SIGINT.
    env --default-signal=INT,TERM "$WEFT" plan -p 8 -m 64 -v 2 --placement loop --memory 6 \
      --effort 1000000 -o t.csv >out 2>err 3>&- &
    pid=$!
    await_handlers "$pid"
    sleep 0.7
    kill -s "${signal%:*}" "$pid"
    await_end 60 "$pid" "weft plan"
    cat err
    [ "$status" -eq "${signal#*:}" ]
    has "stopped by SIG${signal%:*}" err
    has "^result " out
    has "stopped: more time" out
    "$WEFT" verify t.csv
    "$WEFT" sim t.csv --memory 6 >/dev/null
    rm t.csv
  done
}

@test "an interrupted choice is the best so far" {
  replicated # with more layers, which keep it busy
  jq '.parts = [range(24) | {f: (1 + . % 3), i: 1, w: 1.25, activation: (1 + . % 2), parameters: 2}]' \
    parts.json >more.json
  env --default-signal=INT,TERM "$WEFT" plan --ranks 24 --global-batch 480 --costs more.json \
    --memory 30 --time-limit 1000 -o t.csv >out 2>err 3>&- &
  pid=$!
  await_handlers "$pid"
  sleep 0.7
  kill -s INT "$pid"
  await_end 60 "$pid" "weft plan"
  [ "$status" -eq 130 ]
  has "stopped by SIGINT" err
  has "^best: " out
  "$WEFT" verify t.csv
}
