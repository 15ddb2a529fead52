#!/usr/bin/env bash
# The nccl transport on one real GPU, all ranks on it: conformance suite and groups in 2 and 4
# processes, training in 4 processes against one process, and a rank that is killed or stopped.
#
#     tests/device/nccl_on_gpu.sh pack BUILD_DIR FILE.tar.xz   on the machine that builds
#     tests/device/nccl_on_gpu.sh FILE.tar.xz [FOLDER]         on the machine with the GPU
#
# The second needs Open MPI 4 or later, NCCL 2.26 or later, and CUDA's libraries; it takes some
# minutes, starts MPS if it can, and prints a line per part: ok or FAILED, seconds, and what was
# found. Logs are in FOLDER. Exit status 0: all parts are ok.
#
# On a slow machine, or one without a GPU (tests/device/fake_cuda), NCCL_ON_GPU_SLOW=10 makes all
# limits ten times as long, and NCCL_ON_GPU_DIM=32 the model small.
set -u
slow=${NCCL_ON_GPU_SLOW:-1}

pack() {
  local build=$1 out=$2 folder name file
  folder=$(mktemp -d)
  mkdir "$folder/lib" "$folder/shared"
  cp "$build/weft" "$build/weft-train" "$build/tests/test_transport_nccl_openmpi" "$folder" &&
    cp "$build/lib/weft-mpi-openmpi.so" "$folder/lib" || return 1
  # What the programs link and such a machine may not have; never MPI's own libraries.
  for name in libcmocka.so.0 libjansson.so.4 libopenblas.so.0 libgfortran.so.5 libquadmath.so.0; do
    file=$(ldd "$folder/weft-train" "$folder/test_transport_nccl_openmpi" | awk -v n="$name" '$1 == n { print $3; exit }')
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
export WEFT_NCCL_CTAS=1
mpirun=$(command -v mpirun.openmpi || command -v mpirun)
start=("$mpirun" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)

export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps-log
mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
clean_up() {
  [ "$mps" = no ] || echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
  rm -rf "$work"
}
mps=no
trap clean_up EXIT
if timeout 10 nvidia-cuda-mps-control -d >"$logs/mps" 2>&1; then
  mps=yes
else
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi
timeout 20 ./weft doctor >"$logs/doctor" 2>&1
echo "machine: $("$mpirun" --version 2>&1 | head -n 1); MPS: $mps;" \
  "$(grep -iE 'gpu|nccl' "$logs/doctor" | tr -s ' ' | paste -sd ';')"

# ---- Parts ----

failed=0
# say NAME GOOD SECONDS WORDS...: the line of a part.
say() {
  [ "$2" = yes ] || failed=$((failed + 1))
  printf '%-34s %-6s %5.1f s  %s\n' "$1" "$([ "$2" = yes ] && echo ok || echo FAILED)" "$3" "${*:4}"
}

since() {
  awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}

# conformance RANKS LIMIT [FILTER]: the suite without those cases that make hundreds of
# communicators. Writes its line to a file.
conformance() {
  local begin=$EPOCHREALTIME name="conformance, $1 processes" log=$logs/conformance.$1 status passed
  timeout --kill-after=2 $(($2 * slow)) "${start[@]}" -n "$1" \
    ./test_transport_nccl_openmpi "${3:-*}" '*traffic*' >"$log.out" 2>&1
  status=$?
  passed=$(grep -aho '\[       OK \] [a-z_]*' "$log.out" | sort | uniq -c | awk -v n="$1" '$1 >= n' | wc -l)
  say "$name" "$([ $status -eq 0 ] && echo yes)" "$(since "$begin")" \
    "status $status, $passed cases passed on all ranks; $(grep -ahE 'FAILED  \]|error|^NCCL' "$log.out" | head -n 1)" \
    >"$log.line"
}

model=(--layers 6 --dim "${NCCL_ON_GPU_DIM:-128}" --heads 2 --context 32 --batch 8 -m 4 --json --steps 3 --device cuda --seed 7)
modes=("--shard none --tied" "--shard grads" "--shard full --tied")

# training K: one process and four, with the k-th mode.
training() {
  local begin=$EPOCHREALTIME log=$logs/training.$1 words one four status
  read -ra words <<<"${modes[$1]}"
  mkdir "train.$1"
  cd "train.$1" || return
  timeout --kill-after=2 $((15 * slow)) ../weft train --data ../data.txt "${model[@]}" -p 2 --dp 2 "${words[@]}" \
    >"$log.one" 2>"$log.one.err"
  timeout --kill-after=2 $((25 * slow)) "${start[@]}" -n 4 ../weft train --transport nccl --data ../data.txt \
    "${model[@]}" -p 2 --dp 2 "${words[@]}" >"$log.four" 2>"$log.four.err"
  status=$?
  one=$(grep -ao '"parameters_hash":"[0-9a-f]*"' "$log.one" | tail -n 1)
  four=$(grep -ao '"parameters_hash":"[0-9a-f]*"' "$log.four" | tail -n 1)
  say "training in 4, ${modes[$1]}" "$([ -n "$one" ] && [ "$one" = "$four" ] && echo yes)" "$(since "$begin")" \
    "status $status, ${four#*:} against ${one#*:}; $(grep -ah '^weft:' "$log.four.err" "$log.one.err" | head -n 1)" \
    >"$log.line"
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
  local begin=$EPOCHREALTIME log=$logs/$1 job status process at took k
  mkdir "$1"
  cd "$1" || return
  model[14]=100000 # steps
  WEFT_JOB=$1 timeout --kill-after=2 $((32 * slow)) "${start[@]}" -n 4 -x WEFT_JOB ../weft train --transport nccl \
    --data ../data.txt "${model[@]}" -p 2 --dp 2 --shard full --stall-limit $((8 * slow)) >"$log.out" 2>"$log.err" &
  job=$!
  for ((k = 0; k < 180 * slow; k++)); do
    ! grep -aq '"step":3,' "$log.out" || break
    sleep 0.1
  done
  process=$(process_of "$1" 2)
  at=$EPOCHREALTIME
  [ -z "$process" ] || kill "-$2" "$process"
  wait "$job"
  status=$?
  took=$(since "$at")
  # It stays stopped if nobody else has ended it.
  [ -z "$process" ] || kill -KILL "$process" 2>/dev/null
  say "SIG$2 of rank 2, stall limit $((8 * slow)) s" \
    "$([ $status -eq 75 ] && [ -n "$process" ] && grep -aq "$3" "$log.err" && awk -v t="$took" -v s="$slow" 'BEGIN { exit !(t < 14 * s) }' && echo yes)" \
    "$(since "$begin")" \
    "status $status, $took s after the signal: $(grep -a "$3" "$log.err" | head -n 1)" >"$log.line"
}

# One job at a time: under MPS a GPU has channels for a few processes only.
seq 1 2000 >data.txt
begin=$EPOCHREALTIME
for mode in 0 1 2; do
  (training $mode)
done
(blow kill KILL 'rank 2 (.*) died')
(blow stop STOP 'rank 2 (.*which is stopped')
(conformance 2 120)
(conformance 4 180)
for line in "$logs"/*.line; do
  cat "$line"
  ! grep -q ' FAILED ' "$line" || failed=$((failed + 1))
done
left=$(for entry in /proc/[0-9]*; do readlink "$entry/exe"; done 2>/dev/null | grep -c "^$work/")
say "nothing is left behind" "$([ "$left" -eq 0 ] && echo yes)" "$(since "$begin")" "$left processes"
exit $((failed > 0))
