#!/usr/bin/env bats
# weft bench, weft doctor
# Not under sanitizers: other tests run the same code there.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

@test "doctor checks every schedule and says what there is" {
  weft doctor --quick
  succeeds
  [ "${lines[-1]}" = "All works." ]
  [ "$(grep -c ' ok, ' <<<"$output")" -eq "$("$WEFT" gen --list --json | jq '.schedules | length')" ]
  "$WEFT" doctor --quick --json >d.json
  jq -e '.ok and (.checks | all(.ok)) and .limits.actions == 268435456 and .processors > 0' d.json >/dev/null
}

@test "doctor --quick names the MPIs that are installed, and those that are not" {
  mkdir bin
  ln -s "$(command -v bash)" bin/
  printf '%s\n' '#!/bin/bash' 'echo "HYDRA build details:"' >bin/mpiexec.mpich
  chmod +x bin/mpiexec.mpich
  run --separate-stderr env PATH="$PWD/bin" "$WEFT" doctor --quick
  succeeds
  [[ $output == *"  openmpi       none found; 'apt-get install "*"  mpich         installed; not tested (--quick)"*"launcher    mpiexec.mpich"* ]]
  PATH="$PWD/bin" "$WEFT" doctor --quick --json >d.json
  jq -e '.ok and (.mpi.implementations |
    .[0].launcher == null and .[1].launcher == "mpiexec.mpich" and .[1].ok == null)' d.json
}

@test "doctor says what to install where a launcher has no driver" {
  mkdir bin
  ln -s "$(command -v bash)" bin/
  printf '%s\n' '#!/bin/bash' 'echo "HYDRA build details:"' 'exit 69 # as a command without the driver' >bin/mpiexec.mpich
  chmod +x bin/mpiexec.mpich
  run --separate-stderr env PATH="$PWD/bin" "$WEFT" doctor
  [[ $output == *"there is mpiexec.mpich, but no driver for it in this build
    to do       'apt-get install mpich libmpich-dev', then build Weft again"* ]]
}

@test "bench lists its benchmarks" {
  weft bench --list
  succeeds
  [ "$(awk '{ print $1 }' <<<"$output" | tr '\n' ' ')" = "plan plan-search sim run train mpi gpu gpu-blocks " ]
  "$WEFT" help --completion bash | grep -q "bench) .* operands='plan plan-search sim run train mpi gpu gpu-blocks'"
  weft bench plam
  fails 2 "unknown benchmark 'plam'" "plan-search" "did you mean 'plan'"
}

@test "bench plan measures five schedules, small and large" {
  weft bench plan -p 4 -m 16 --repeats 2
  succeeds
  for name in LoopedBFS Interleaved1F1B InterleavedZeroBubble ZBVZeroBubble DualPipeV; do
    grep -q "^$name " <<<"$output"
  done
  grep -q 'start-up of the command' <<<"$output"
  "$WEFT" bench plan --json -p 4 -m 16 --repeats 2 --large --actions 20000 >b.json
  jq -e '.schema == "weft-bench-plan/1" and (.runs | length) == 10 and .startup_ns > 0' b.json >/dev/null
  jq -e '.runs | all(.checked and .actions > 0 and .gen_ns > 0 and .verify_ns > 0
         and .held_bytes_per_action > 8 and .peak_bytes_per_action >= .held_bytes_per_action)' b.json >/dev/null
  jq -e '.runs[5:] | all(.actions > 15000 and .actions < 25000 and .gen_lower_growth > 0)' b.json >/dev/null
}

@test "bench plan refuses a shape that a schedule cannot have" {
  weft bench plan -p 8 -m 4 --repeats 1
  fails 2 "DualPipeV"
}

@test "bench sim measures five schedules, small and large, and an SVG" {
  weft bench sim -p 4 -m 16 --repeats 2
  succeeds
  for name in LoopedBFS Interleaved1F1B InterleavedZeroBubble ZBVZeroBubble DualPipeV; do
    grep -q "^$name " <<<"$output"
  done
  grep -q '^SVG of ' <<<"$output"
  "$WEFT" bench sim --json -p 4 -m 16 --repeats 2 --large --actions 20000 >b.json
  jq -e '.schema == "weft-bench-sim/1" and (.runs | length) == 10 and .wide == null' b.json >/dev/null
  jq -e '.runs | all(.checked and .actions > .table_actions and .numbers_ns > 0 and .events_ns > 0 and .makespan_ns > 0
         and .table_makespan_ns > 0 and .events_peak_bytes > .numbers_peak_bytes
         and .numbers_peak_bytes >= .makespan_peak_bytes)' b.json >/dev/null
  jq -e '.runs[5:] | all(.actions > 15000 and .actions < 25000 and .numbers_growth > 0 and .events_growth > 0
         and .makespan_growth > 0)' b.json >/dev/null
  jq -e '.svg.ns > 0 and .svg.bytes > 1000' b.json >/dev/null
}

@test "bench run measures the executor, a hand-over, and stages that sleep" {
  weft bench run -p 2 -m 4 --repeats 1
  succeeds
  for name in GPipe 1F1B Interleaved1F1B LoopedBFS InterleavedZeroBubble ZBVZeroBubble DualPipeV; do
    [ "$(grep -c "^$name " <<<"$output")" -eq 2 ]
  done
  grep -q '^hand-over of a message between two threads: [0-9]* ns' <<<"$output"
  "$WEFT" bench run --json -p 2 -m 8 --repeats 1 >b.json
  jq -e '.schema == "weft-bench-run/1" and (.executor | length) == 7 and .handover_ns > 0 and .processors > 0' b.json >/dev/null
  jq -e '.executor | all(.ranks == 2 and .microbatches == 8 and .actions > 0 and .ns_per_action > 0
         and .ns_per_action_without_events > 0 and .allocations_per_step == 0)' b.json >/dev/null
  [ "$(jq '.sleep | length' b.json)" -eq \
    "$("$WEFT" gen --list --json | jq '[.schedules[] | select(.trains and (.fixed | not))] | length')" ]
  # 1F1B: (m + p - 1)(f + b) = 54. Whatever else runs, nothing is faster than simulated.
  jq -e '.sleep | all(.ratio >= 1 and .fastest_ratio <= .ratio and .measured_ms > 0)
         and any(.schedule == "1F1B" and .simulated_ms == 54)' b.json >/dev/null
  weft bench run -p 8 -m 4 --repeats 1
  fails 2 "DualPipeV"
}

@test "bench without a name runs all of them" {
  weft bench -p 4 -m 8 --repeats 1
  succeeds
  grep -q 'bench plan: p = 4' <<<"$output"
  grep -q 'bench sim: p = 4' <<<"$output"
  grep -q 'bench run: checked' <<<"$output"
  "$WEFT" bench -p 4 -m 8 --repeats 1 --json >b.json
  jq -e '.schema == "weft-bench/1" and [.benchmarks[].schema] == ["weft-bench-plan/1", "weft-bench-sim/1", "weft-bench-run/1"]' b.json >/dev/null
}

@test "bench gpu without a GPU says what to install" {
  ! ldconfig -p | grep -q 'libcuda\.so\.1' || skip "there is a driver here"
  weft bench gpu
  fails 69 "libcuda.so.1 is not found" "install NVIDIA's driver"
}

@test "bench gpu checks the answer, and measures in a small form on the fake driver" {
  run --separate-stderr env \
    "LD_LIBRARY_PATH=$FAKE_CUDA:$FAKE_CUBLASLT${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    WEFT_FAKE_CUDA=policy=oldest,queues=32 "$WEFT" bench gpu -p 2 -m 4 --repeats 3 --json
  succeeds
  jq -e '.schema == "weft-bench-gpu/1" and .runs_checked == 18 and
    (.actions[0] | .case == "compute" and .us != null and .driver_us > 0) and
    (.replay | length == 18 and all(.step_us > 0 and .bare_launch_us > 0)) and
    (.timed | length == 11) and (.timed[:9] | all(.["8x200us"] > 0.99 and .["8x200us"] < 1.01))' <<<"$output"
  jq -e '.products_not_measured == "" and (.launch_bound | length == 2) and
    (.partitions | length == 6 and all(.step_ms > 0)) and (.sharing | length == 8) and
    (.memory | length == 6 and all(.allocations == 0 and .later == 0) and .[0].ratio == 1)' <<<"$output"
}

@test "bench gpu without cublasLt has no products, and says so" {
  [[ ! -e /usr/local/cuda/lib64/libcublasLt.so ]] || skip "there is a cublasLt here"
  ! ldconfig -p | grep -q libcublasLt || skip "there is a cublasLt here"
  local fake="LD_LIBRARY_PATH=$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  run --separate-stderr env "$fake" WEFT_FAKE_CUDA=policy=oldest,queues=32 \
    "$WEFT" bench gpu -p 2 -m 4 --repeats 2
  succeeds
  [[ ${lines[-1]} == "products were not measured: there is no libcublasLt here"*"'pip install nvidia-cublas'"* ]]
  run --separate-stderr env "$fake" "$WEFT" bench gpu-blocks
  fails 69 "there is no libcublasLt here" "pip install nvidia-cublas"
}
