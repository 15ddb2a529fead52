#!/usr/bin/env bats
# weft run --device cuda, on the driver without a GPU of tests/device/fake_cuda.
# shellcheck disable=SC2030,SC2031,SC2154
load ../setup/cli_setup

# on_gpus OPTIONS WORDS...: the command with the fake driver, whose options are the first word; its
# findings are in report.
on_gpus() {
  run --separate-stderr env "LD_LIBRARY_PATH=$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    "WEFT_FAKE_CUDA=report=$PWD/report${1:+,$1}" "$WEFT" "${@:2}"
}

# The driver found nothing wrong, and nothing is left on the device.
is_sound() {
  local what
  for what in races deadlocks faults early pending blocks; do
    grep -qx "$what 0" report || { echo "$(grep "^$what" report): $(cat report)" >&2; return 1; }
  done
}

@test "run on GPUs reports as on the host" {
  local schedule
  for schedule in 1F1B Interleaved1F1B ZBVZeroBubble DualPipeV; do
    "$WEFT" gen "$schedule" -p 2 -m 4 >t.csv
    on_gpus seed=5 run t.csv --device cuda --f 1 --b 2
    succeeds
    is_sound
    [[ ${lines[1]} == "ran        on cuda, stages that keep the GPU busy, "* ]]
    grep -Eq '^measured   makespan [0-9.]+ ms, of step [23], the median$' <<<"$output"
  done
}

@test "run on GPUs: times are those of the device's clock" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  on_gpus policy=oldest,queues=32 run t.csv --device cuda --f 1 --b 2 --json
  succeeds
  is_sound
  has '^calls cuGraphLaunch 2$' report
  [ "$(jq -r '.schema + " " + .transport' <<<"$output")" = "weft-run/1 cuda" ]
  jq -e '.ratio > 0.95 and .ratio < 1.05' <<<"$output"
  # A rank that waits for another is not busy.
  jq -e '.ranks | length == 4 and all(.busy > 22.5 and .busy < 25.5)' <<<"$output"
}

@test "a step that cannot be recorded is enqueued, and the reason is printed" {
  local call
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  for call in cuStreamBeginCapture cuGraphInstantiate; do
    on_gpus "fail=$call:1" run t.csv --device cuda --json
    [ "$status" -eq 0 ]
    is_sound
    [ "$(wc -l <<<"$stderr")" -eq 1 ]
    [[ $stderr == *"each step was enqueued action by action: it cannot be recorded as a CUDA graph: $call failed"* ]]
    jq -e --arg call "$call" '.no_graph | contains("\($call) failed")' <<<"$output"
    lacks 'calls cuGraphLaunch [1-9]' report
  done
  on_gpus "" run t.csv --device cuda --json
  succeeds
  jq -e 'has("no_graph") | not' <<<"$output"
}

@test "run on GPUs draws a picture" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  on_gpus "" run t.csv --device cuda -o x.html
  succeeds
  has '<svg' x.html
  # Each action takes its time on the device, with a graph and without. Without, a rank's times count
  # from when the host enqueued its first action, which is later by what the host was kept from it:
  # its waits for another rank seem longer or shorter by that.
  for graph in "" --eager; do
    # shellcheck disable=SC2086
    on_gpus policy=oldest,queues=32 run t.csv --device cuda --f 1 --b 2 $graph -o x.json
    succeeds
    jq -e --arg exact "${graph:+^PP:(0F|1B)}" \
      '[.traceEvents[] | select(.ph == "X" and (.name | test("^PP:[01][FB]")))] |
       length == 16 and
       all(.[] | select(.name | test($exact));
           .dur / (if .name | test("PP:.F") then 1000 else 2000 end) | . > 0.99 and . < 1.01)' x.json
  done
}

@test "run on GPUs and parts of them" {
  "$WEFT" gen 1F1B -p 4 -m 8 >t.csv
  on_gpus devices=2 run t.csv --device cuda --partitions 2 --gpus 1,0
  succeeds
  is_sound
  grep -Eq '^calls cuGreenCtxCreate 4$' report
  on_gpus "" run t.csv --device cuda --eager
  succeeds
  is_sound
  lacks 'cuGraphLaunch [1-9]' report
}

@test "run on GPUs that reach each other, and on others" {
  local peers schedule
  for schedule in 1F1B ZBVZeroBubble; do
    "$WEFT" gen "$schedule" -p 4 -m 8 >t.csv
    for peers in "" ,no_peers=1; do
      on_gpus "devices=2,seed=3$peers" run t.csv --device cuda --gpus 0,1 --json
      succeeds
      is_sound
      jq -e 'has("no_graph") | not' <<<"$output"
    done
  done
}

@test "GPUs that there are not" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  on_gpus "" run t.csv --device cuda --gpus 1
  fails 2 "there is no GPU 1: this machine has 1"
  hints
  for list in 0,x ',' "" -1 0,,1; do
    on_gpus "" run t.csv --device cuda --gpus "$list"
    fails 2 "--gpus"
    hints
  done
  on_gpus devices=2 run t.csv --device cuda --gpus 0,1,0
  fails 2 "GPU 0 is named twice"
  hints
  for kind in sleep spin; do
    on_gpus "" run t.csv --device cuda --stage "$kind"
    fails 2 "--stage $kind is for the host"
    hints
  done
  on_gpus sms=16 run t.csv --device cuda --partitions 64
  fails 2 "partition"
  hints
  on_gpus "" run t.csv --device cuda --transport threads
  fails 2 "stages on GPUs and --transport threads do not go together"
  for option in "--gpus 0" "--partitions 2" --eager; do
    # shellcheck disable=SC2086
    weft run t.csv $option
    fails 2 "${option%% *} has no effect: it is for stages on GPUs" "--device cuda"
  done
}

@test "a GPU that is too old is refused" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  on_gpus capability=70 run t.csv --device cuda
  fails 69 "GPU 0 (Weft fake GPU) has compute capability 7.0, and Weft needs 7.5"
  hints
  on_gpus capability=75 run t.csv --device cuda
  succeeds
}

@test "a GPU that fails ends the command with a reason" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  on_gpus fail=cuLaunchKernel:9 run t.csv --device cuda
  [ "$status" -ne 0 ]
  [[ $stderr == *"rank "*"cuLaunchKernel failed"* ]]
  on_gpus crash=weft_spin:9 run t.csv --device cuda
  [ "$status" -ne 0 ]
  [[ $stderr == *"rank "*", step "*", most likely "* ]]
  # What a GPU that still works may touch is not freed.
  ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" \
    on_gpus hang=weft_spin:1 run t.csv --device cuda --stall-limit 0.3
  [ "$status" -eq 75 ]
  [[ $stderr == *"rank 0"*"0F0"* ]]
  # All has been enqueued: the stage's function has returned, and what it enqueued has not ended.
  [[ $stderr == *"look at rank 0's stage 0: GPU 0 has not ended its forward"* ]]
  weft explain-hang weft-hang.json
  [[ ${lines[0]} == "rank 0: GPU 0 is in 0F0, since "*" s; step 1, cell "+([0-9]) ]]
  [[ $output == *$'\nculprit: rank 0\n'* ]]
  # The third one is rank 1's, on the second GPU.
  ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" \
    on_gpus devices=2,hang=weft_spin:3 run t.csv --device cuda --stall-limit 0.3
  [ "$status" -eq 75 ]
  [[ $stderr == *"look at rank 1's stage 1: GPU 1 has not ended its forward"* ]]
  weft explain-hang weft-hang.json
  [[ ${lines[0]} == "rank 0: GPU 0 waits before 0B0 for rank 1, since "* ]]
  [[ ${lines[1]} == "rank 1: GPU 1 is in 1F0, since "* ]]
}

@test "a message that never comes is reported with the GPUs that wait for it" {
  printf '0F0,0SEND_F0,0F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n' >t.csv
  on_gpus devices=2 run t.csv --unchecked --device cuda --stall-limit 0.3
  [ "$status" -eq 75 ]
  [[ $stderr == *"a cycle: rank 0 with GPU 0 waits before 0B1 for rank 1 (1SEND_B1); rank 1 with GPU 1 waits before 1F1 for rank 0 (0SEND_F1)"* ]]
}

@test "kernels are compiled once, and again if the cache is damaged" {
  local damage file
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  export XDG_CACHE_HOME=$PWD/cache
  on_gpus nvrtc=lost run t.csv --device cuda
  fails 69 "cannot compile the kernels"
  [ -z "$(find cache -name 'kernels-*' 2>/dev/null)" ]
  on_gpus "" run t.csv --device cuda
  succeeds
  file=$(echo cache/weft/kernels-*)
  cp "$file" whole
  on_gpus nvrtc=fail run t.csv --device cuda
  succeeds
  for damage in "truncate -s -9" "truncate -s 3" "sed -i s/weft_/waft_/"; do
    $damage "$file"
    on_gpus "" run t.csv --device cuda
    succeeds
    cmp "$file" whole
  done
}

@test "a cache of kernels holds links, pipes and others' files: they are not followed, and replaced" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  export XDG_CACHE_HOME=$PWD/cache
  on_gpus "" run t.csv --device cuda
  succeeds
  [ "$(stat -c %a cache/weft cache/weft/kernels-*)" = $'700\n600' ]
  local file bad
  file=$(echo cache/weft/kernels-*)
  cp "$file" whole
  echo precious >victim
  bad=("ln -s $PWD/victim" "mkfifo" "mkdir" "install -m 620 whole")
  [ "$(id -u)" -ne 0 ] || bad+=("install -m 600 -o nobody whole")
  for bad in "${bad[@]}"; do
    rm -rf "$file"
    $bad "$file"
    # nvrtc=fail would succeed with code of the cache.
    on_gpus nvrtc=fail run t.csv --device cuda
    fails 69 "cannot compile the kernels"
    on_gpus "" run t.csv --device cuda
    succeeds
    [[ $bad == mkdir ]] || cmp "$file" whole
    [ "$(cat victim)" = precious ]
  done
}

@test "a cache of kernels that others may write to is not used, and the reason is printed" {
  local bad
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  export XDG_CACHE_HOME=$PWD/cache
  on_gpus "" run t.csv --device cuda
  succeeds
  mkdir elsewhere
  bad=("chmod g+w cache/weft" "chmod o+w cache/weft" "ln -sfn ../elsewhere cache/weft" "cp t.csv cache/weft")
  [ "$(id -u)" -ne 0 ] || bad+=("chown nobody cache/weft")
  for bad in "${bad[@]}"; do
    [[ $bad != ln* && $bad != cp* ]] || mv cache/weft kept
    $bad
    on_gpus nvrtc=fail run t.csv --device cuda
    fails 69 "cannot compile the kernels"
    on_gpus "" run t.csv --device cuda
    [ "$status" -eq 0 ]
    [[ ${stderr_lines[0]} == "weft: compiled kernels are not kept: $PWD/cache/weft "* ]]
    on_gpus "" doctor --quick
    [[ $output == *"; compiled kernels are not kept: $PWD/cache/weft "* ]]
    [ -z "$(ls elsewhere)" ]
    [ ! -d kept ] || { rm cache/weft && mv kept cache/weft; }
    chmod 700 cache/weft
    chown "$(id -u)" cache/weft
  done
}

# Files of other names are other versions: fake_nvrtc.c.
@test "of several NVRTCs, the one whose code the driver loads is used; else a hint says which would be" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  export XDG_CACHE_HOME=$PWD/cache
  on_gpus version=12040 run t.csv --device cuda
  fails 69 "the driver, for CUDA 12.4, does not load what NVRTC 13.99 compiled"
  [[ $stderr == *"hint: install NVRTC 12 "* ]]
  mkdir both
  cp "$FAKE_CUDA/libnvrtc.so.13" both/libnvrtc.so.12
  export LD_LIBRARY_PATH=$PWD/both
  on_gpus version=12040 run t.csv --device cuda
  succeeds
  on_gpus version=12040 doctor --quick
  [[ $output == *"driver for CUDA 12.4, NVRTC 12.99"* ]]
  on_gpus "" doctor --quick
  [[ $output == *"driver for CUDA 13.0, NVRTC 13.99"* ]]
  on_gpus version=14000 run t.csv --device cuda
  succeeds
}

@test "NVRTC without a run path: its built-in headers are found beside it, or a hint names the folder" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  export XDG_CACHE_HOME=$PWD/cache
  mkdir real links
  cp "$FAKE_CUDA/libnvrtc.so.13" real/libnvrtc.so.13.0
  ln -s ../real/libnvrtc.so.13.0 links/libnvrtc.so.12
  on_gpus nvrtc=builtins run t.csv --device cuda
  fails 69 "failed to open libnvrtc-builtins.so.13.99"
  [[ $stderr == *"hint: it comes with NVRTC, as a file of its own: have LD_LIBRARY_PATH name its folder ($FAKE_CUDA"* ]]
  # As in a folder that has a link to NVRTC alone.
  echo 'int weft_fake_builtins;' >builtins.c
  cc -shared -fPIC -Wl,-soname,libnvrtc-builtins.so.12.99 -o real/libnvrtc-builtins.so.12.99 builtins.c
  export LD_LIBRARY_PATH=$PWD/links
  on_gpus version=12040,nvrtc=builtins run t.csv --device cuda
  succeeds
}

@test "a signal ends the command, whatever a GPU does" {
  local graph hangs pid
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  # The first step is enqueued, and the third one is a replay.
  for hangs in 1 20; do
    for graph in "" --eager; do
      # shellcheck disable=SC2086
      env --default-signal=INT "LD_LIBRARY_PATH=$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        "WEFT_FAKE_CUDA=hang=weft_spin:$hangs" "ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0" \
        "$WEFT" run t.csv --device cuda --stall-limit 600 $graph >out 2>err &
      pid=$!
      await_handlers "$pid"
      sleep 0.3
      kill -s INT "$pid"
      await_end 20 "$pid" "weft run --device cuda $graph"
      [ "$status" -eq 130 ]
      grep -q '^weft: stopped by SIGINT' err
    done
  done
}

@test "without a driver, GPUs are refused with what to install" {
  "$WEFT" gen 1F1B -p 2 -m 4 >t.csv
  [ ! -e /dev/nvidiactl ] || skip "there is one"
  weft run t.csv --device cuda
  fails 69 "there is no CUDA driver here: libcuda.so.1 is not found"
  hints
  weft doctor --quick
  [[ $output == *"CUDA          none: there is no CUDA driver here"* ]]
}

@test "doctor lists GPUs" {
  on_gpus devices=2 doctor --quick
  [[ $output == *"CUDA          driver for CUDA 13.0, NVRTC "*"GPU 0: Weft fake GPU, 132 SMs, 1 GiB, capability 9.0"* ]]
  [[ $output == *"GPU 1: Weft fake GPU"* ]]
}
