#!/usr/bin/env bash
# The nccl transport on one real GPU, all ranks on it, in parts:
#
#     smoke         weft run in 2 and in 4 processes
#     conformance   the suite of transports and that of groups, in 2 and in 4 processes
#     graphs        a graph per rank: schedules, a graph of stages, steps as many as expected
#     training      in 4 processes, as graphs and without, against one process: the same parameters
#     pytorch       the same blocks in PyTorch's pipelining and in Weft, both over NCCL
#     blows         a rank that is killed, and one that is stopped
#
#     tests/device/nccl_on_gpu.sh pack BUILD_DIR FILE.tar.xz           on the machine that builds
#     tests/device/nccl_on_gpu.sh FILE.tar.xz [FOLDER [PART...]]       on the machine with the GPU
#
# The second needs Open MPI 4 or later, NCCL 2.26 or later, and CUDA's libraries; without parts it
# does all, in some minutes. It starts MPS if it can, and prints a line per job when it ends: ok or
# FAILED, seconds, and what was found; after a failure what NCCL, CUDA, MPS and each rank have said
# first. Logs are in FOLDER. Exit status 0: all is ok.
#
# On a slow machine, or one without a GPU (tests/device/fake_cuda), NCCL_ON_GPU_SLOW=10 makes all
# limits ten times as long, NCCL_ON_GPU_DIM=32 the model small, and NCCL_ON_GPU_WIDTH=16 the blocks;
# the conformance suite needs WEFT_FAKE_CUDA=policy=oldest,queues=32 there.
# shellcheck disable=SC2317 # parts are called by their names
set -u
slow=${NCCL_ON_GPU_SLOW:-1}

pack() {
  local build=$1 out=$2 folder name file source
  folder=$(mktemp -d)
  source=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
  mkdir "$folder/lib" "$folder/shared"
  cp "$build/weft" "$build/weft-train" "$build/tests/test_transport_nccl_openmpi" \
    "$build/tests/job_blocks_nccl_openmpi" \
    "$source/bench/pytorch.py" "$folder" && cp -r "$source/bench/pytorch_cases" "$folder" &&
    cp "$build/lib/weft-mpi-openmpi.so" "$folder/lib" || return 1
  # What the programs link and such a machine may not have; never MPI's own libraries.
  for name in libcmocka.so.0 libjansson.so.4 libopenblas.so.0 libgfortran.so.5 libquadmath.so.0; do
    file=$(ldd "$folder/weft-train" "$folder"/*_openmpi |
      awk -v n="$name" '$1 == n { print $3; exit }')
    [ -z "$file" ] || cp -L "$file" "$folder/shared/$name"
  done
  tar -C "$folder" -cJf "$out" . && rm -r "$folder"
}

if [ "${1:-}" = pack ]; then
  pack "$2" "$3"
  exit
fi

bundle=$(realpath "$1")
logs=$(realpath -m "${2:-$(mktemp -d)}")
parts=("${@:3}")
[ ${#parts[@]} -gt 0 ] || parts=(smoke conformance graphs training pytorch blows)
work=$(mktemp -d)
mkdir -p "$logs"
tar -C "$work" -xJf "$bundle" || exit 1
cd "$work" || exit 1

# ---- The machine ----

# folder_of LIBRARY: where it is, if the loader does not know it.
folder_of() {
  local folder place
  IFS=: read -ra place <<<"${LD_LIBRARY_PATH:-}"
  for folder in "${place[@]}"; do
    [ ! -e "$folder/$1" ] || return 0
  done
  # Not through a pipe to grep -q: with pipefail it would look like a failure.
  [[ $(ldconfig -p 2>/dev/null) != *"$1 "* ]] || return 0
  for folder in /usr/local/cuda/lib64 $(python3 -c 'import sys; print(*sys.path[1:])' 2>/dev/null |
    tr ' ' '\n' | sed 's|$|/nvidia/*/lib|'); do
    # shellcheck disable=SC2086
    for place in $folder; do
      if [ -e "$place/$1" ]; then
        echo "$place"
        return
      fi
    done
  done
  place=$(timeout 10 find / -xdev -name "$1" -print -quit 2>/dev/null)
  [ -z "$place" ] || dirname "$place"
}

# What is packed comes last: the machine's own libraries are better where there are any.
for library in libnccl.so.2 libcublasLt.so.13 libnvrtc.so.13; do
  found=$(folder_of $library)
  [ -z "$found" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$work/shared

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl=^tcp,openib OMPI_MCA_btl_vader_single_copy_mechanism=none
# One block per communicator: all ranks of the GPU fit.
export NCCL_MAX_CTAS=1
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
mpirun=$(command -v mpirun.openmpi || command -v mpirun)
start=("$mpirun" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)

mps=no
# A server of MPS that had a client killed may not serve others, so each part has one of its own.
mps_begin() {
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$logs/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  if timeout 10 nvidia-cuda-mps-control -d >"$logs/mps" 2>&1; then
    mps=yes
  else
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
}
mps_end() {
  [ "$mps" = no ] || echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
  mps=no
  rm -rf "$work/mps"
}
clean_up() {
  mps_end
  rm -rf "$work"
}
trap clean_up EXIT

# ---- Lines ----

failed=0
# say NAME GOOD SECONDS WORDS...: the line of a job; what was said, if it is not good, from $logs/NAME*.
say() {
  printf '%-34s %-6s %5.1f s  %s\n' "$1" "$([ "$2" = yes ] && echo ok || echo FAILED)" "$3" "${*:4}"
  if [ "$2" != yes ]; then
    failed=$((failed + 1))
    explain
  fi
}

# The first lines of each kind in the logs of the job, $log*, and what MPS has to complain of.
explain() {
  {
    grep -ahE 'NCCL WARN|CUDA_ERROR|cudaError' "$log"* | sed 's/^[^ ]*:[0-9]*:[0-9]* *//' | awk '!seen[$0]++' | head -n 4
    grep -ahE '^weft: rank [0-9]+|^rank [0-9]+: ' "$log"* | awk '!seen[$3]++' | head -n 6
    grep -ahE '^weft: |^  hint: |ERROR: |what failed|Segmentation|signal' "$log"* | awk '!seen[$0]++' | head -n 6
    [ ! -d "$logs/mps-log" ] || cat "$logs"/mps-log/* 2>/dev/null | grep -aiE 'error|fail|exceed|fault|reached' | tail -n 3
  } | awk '!seen[$0]++' | cut -c 1-300 | sed 's/^/    /'
}

since() {
  awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}

# job RANKS LIMIT COMMAND...: its output in $log.out and $log.err; its status.
job() {
  timeout --kill-after=2 $(($2 * slow)) "${start[@]}" -n "$1" "${@:3}" >"$log.out" 2>"$log.err"
}

# field NAME: of the JSON in $log.out. NCCL prints its version to standard output, too.
field() {
  python3 -c 'import json, sys
print(json.loads(next(line for line in open(sys.argv[1]) if line[0] == "{")).get(sys.argv[2]))' "$log.out" "$1" 2>/dev/null
}

# ---- Parts ----

costs=(--device cuda --transport nccl --f 0.2 --i 0.2 --w 0.2 --json)

part_smoke() {
  local ranks begin status
  for ranks in 2 4; do
    begin=$EPOCHREALTIME log=$logs/smoke.$ranks
    ./weft gen 1F1B -p "$ranks" -m 4 -o t.csv
    NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT NCCL_DEBUG_FILE=$log.nccl.%p \
      job "$ranks" 60 ./weft run t.csv "${costs[@]}" --steps 3
    status=$?
    say "weft run, $ranks processes" "$([ "$status" -eq 0 ] && echo yes)" "$(since "$begin")" \
      "status $status; $(cat "$log".nccl.* 2>/dev/null | grep -ac 'Init COMPLETE') ends of communicators, the slowest after $(
        cat "$log".nccl.* 2>/dev/null | grep -ao 'Init timings.*total [0-9.]*' | sed 's/.*total //' | sort -g | tail -n 1) s"
  done
}

# The suite without those cases that make hundreds of communicators. One has 24 channels, each with a
# stream of its own, for which there should be hardware queues: under MPS as many as it may have.
part_conformance() {
  local ranks begin status passed suite=(./test_transport_nccl_openmpi "${NCCL_ON_GPU_FILTER:-*}" '*traffic*')
  for ranks in 2 4; do
    mps_end # a job that was killed may leave a server that serves nobody
    mps_begin
    begin=$EPOCHREALTIME log=$logs/conformance.$ranks
    CUDA_DEVICE_MAX_CONNECTIONS=$((ranks == 2 ? 32 : 28)) job "$ranks" 200 "${suite[@]}"
    status=$?
    if grep -aq MPS_MAX_CONNECTIONS "$log.out" "$log.err"; then
      job "$ranks" 200 "${suite[@]}"
      status=$?
    fi
    passed=$(cat "$log.out" "$log.err" | grep -aho '\[       OK \] [a-z_]*' | sort | uniq -c | awk -v n="$ranks" '$1 >= n' | wc -l)
    say "conformance, $ranks processes" "$([ "$status" -eq 0 ] && echo yes)" "$(since "$begin")" \
      "status $status, $passed cases passed on all ranks; $(cat "$log.out" "$log.err" | grep -ahE 'FAILED  \]|^\[  ERROR' | head -n 1)"
  done
}

part_graphs() {
  local schedule begin status
  echo '{"schema": "weft-graph/1", "stages": 4, "edges": [{"from": 0, "to": 1}, {"from": 1, "to": 2},
    {"from": 2, "to": 3}, {"from": 0, "to": 3}, {"from": 0, "to": 2}]}' >skip.json
  for schedule in 1F1B ZBVZeroBubble Interleaved1F1B skip; do
    begin=$EPOCHREALTIME log=$logs/graphs.$schedule
    if [ "$schedule" = skip ]; then
      ./weft gen 1F1B --graph skip.json -m 8 -o t.csv
    else
      ./weft gen "$schedule" -p 4 -m 8 -o t.csv
    fi
    job 4 60 ./weft run t.csv "${costs[@]}" --steps 20
    status=$?
    say "graphs, $schedule, 4 processes" "$([ "$status" -eq 0 ] && [ "$(field graph_steps)" = 19 ] && echo yes)" \
      "$(since "$begin")" "status $status, $(field graph_steps) of 20 steps are graphs; $(field no_graph)"
  done
}

model=(--layers 6 --dim "${NCCL_ON_GPU_DIM:-128}" --heads 2 --context 32 --batch 8 -m 4 --json --steps 3 --device cuda --seed 7)

hash_in() {
  grep -ao '"parameters_hash":"[0-9a-f]*"' "$1" 2>/dev/null | tail -n 1
}

part_training() {
  local begin words one status k=0 mode
  seq 1 2000 >data.txt
  for mode in "--shard none --tied" "--shard none --tied --eager" "--shard grads" "--shard full --tied"; do
    begin=$EPOCHREALTIME k=$((k + 1)) log=$logs/training.$k
    read -ra words <<<"$mode"
    timeout --kill-after=2 $((40 * slow)) ./weft train --data data.txt "${model[@]}" -p 2 --dp 2 "${words[@]}" \
      >"$log.one" 2>"$log.one.err"
    one=$(hash_in "$log.one")
    job 4 60 ./weft train --transport nccl --data data.txt "${model[@]}" -p 2 --dp 2 "${words[@]}"
    status=$?
    say "training in 4, $mode" "$([ -n "$one" ] && [ "$one" = "$(hash_in "$log.out")" ] && echo yes)" "$(since "$begin")" \
      "status $status, $(hash_in "$log.out") against $one"
  done
}

# Losses must agree; times are printed.
part_pytorch() {
  local begin=$EPOCHREALTIME status
  log=$logs/pytorch
  mps_end # the script has its own
  timeout --kill-after=2 $((500 * slow)) python3 pytorch.py gpu --width "${NCCL_ON_GPU_WIDTH:-2048}" \
    --weft-nccl ./job_blocks_nccl_openmpi --limit $((110 * slow)) >"$log.out" 2>"$log.err"
  status=$?
  say "blocks beside PyTorch" "$([ "$status" -eq 0 ] && echo yes)" "$(since "$begin")" \
    "status $status, faster on $(awk '$5 ~ /^[0-9.]+$/ && $5 > 1' "$log.out" | wc -l) of $(awk '$5 ~ /^[0-9.]+$/' "$log.out" | wc -l) cases"
  sed 's/^/    /' "$log.out"
}

# process_of JOB RANK: of a job with WEFT_JOB=JOB. What watches a rank is another program, weft.
process_of() {
  local entry
  for entry in /proc/[0-9]*; do
    if [ "$(readlink "$entry/exe" 2>/dev/null)" = "$work/weft-train" ] &&
      [ "$(tr '\0' '\n' <"$entry/environ" 2>/dev/null | grep -cxE "WEFT_JOB=$1|OMPI_COMM_WORLD_RANK=$2")" -eq 2 ]; then
      echo "${entry#/proc/}"
      return
    fi
  done
}

# blow NAME SIGNAL TEXT: rank 2 of a training gets the signal after its third step; the job ends
# with status 75 within the stall limit and some seconds, and the report has the text.
blow() {
  local begin=$EPOCHREALTIME pid status process at took k long=("${model[@]}")
  log=$logs/$1
  long[14]=100000 # steps
  WEFT_JOB=$1 job 4 90 -x WEFT_JOB ./weft train --transport nccl \
    --data data.txt "${long[@]}" -p 2 --dp 2 --shard full --stall-limit $((8 * slow)) &
  pid=$!
  for ((k = 0; k < 600 * slow; k++)); do
    ! grep -aq '"step":3,' "$log.out" 2>/dev/null || break
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  process=$(process_of "$1" 2)
  at=$EPOCHREALTIME
  [ -z "$process" ] || kill "-$2" "$process"
  wait "$pid"
  status=$?
  took=$(since "$at")
  # It stays stopped if nobody else has ended it.
  [ -z "$process" ] || kill -KILL "$process" 2>/dev/null
  say "SIG$2 of rank 2, stall limit $((8 * slow)) s" \
    "$([ "$status" -eq 75 ] && [ -n "$process" ] && grep -aq "$3" "$log.err" && awk -v t="$took" -v s="$slow" 'BEGIN { exit !(t < 14 * s) }' && echo yes)" \
    "$(since "$begin")" \
    "status $status, $took s after the signal: $(grep -a "$3" "$log.err" | head -n 1)"
}

part_blows() {
  seq 1 2000 >data.txt
  blow kill KILL 'rank 2 (.*) died'
  mps_end
  mps_begin
  blow stop STOP 'rank 2 (.*which is stopped'
}

# ---- All ----

timeout 20 ./weft doctor >"$logs/doctor" 2>&1
mps_begin
echo "machine: $("$mpirun" --version 2>&1 | head -n 1); MPS: $mps;" \
  "$(grep -iE 'gpu|nccl' "$logs/doctor" | tr -s ' ' | paste -sd ';')"
mps_end
begin_all=$EPOCHREALTIME
for part in "${parts[@]}"; do
  mps_begin
  "part_$part"
  mps_end
done
log=$logs/none
left=$(for entry in /proc/[0-9]*; do readlink "$entry/exe"; done 2>/dev/null | grep -c "^$work/")
say "nothing is left behind" "$([ "$left" -eq 0 ] && echo yes)" "$(since "$begin_all")" "$left processes"
exit $((failed > 0))
