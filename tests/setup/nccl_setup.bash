# Jobs over NCCL without a GPU: `load nccl_setup` after mpi_setup. Every rank is a process with the
# driver and the NCCL of tests/device/fake_cuda.
# shellcheck shell=bash disable=SC2154

# nccl_begin: in setup_file.
nccl_begin() {
  mpi_machine_begin
  export OMPI_MCA_btl=^tcp UCX_LOG_LEVEL=error # one host
  export LD_LIBRARY_PATH=$FAKE_NCCL:$FAKE_CUBLASLT:$FAKE_CUDA${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# per_rank CUDA NCCL [RANK CUDA]: writes ./weft, the command with such fake libraries, for that rank
# with more of the driver; what the driver of a rank found is in report.RANK.
per_rank() {
  cat >weft <<END
#!/bin/sh
rank=\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}
WEFT_FAKE_CUDA=report=$PWD/report.\$rank${1:+,$1} WEFT_FAKE_NCCL=$2
[ "\$rank" != "$3" ] || WEFT_FAKE_CUDA=\$WEFT_FAKE_CUDA,$4
export WEFT_FAKE_CUDA WEFT_FAKE_NCCL
exec "$WEFT" "\$@"
END
  chmod +x weft
  rm -f report.*
}

# is_sound RANKS: no rank's driver found anything, and nothing is left on its GPU.
is_sound() {
  local what rank
  for ((rank = 0; rank < $1; rank++)); do
    for what in races deadlocks faults early pending blocks; do
      grep -qx "$what 0" "report.$rank" || { echo "rank $rank: $(cat "report.$rank")" >&2; return 1; }
    done
  done
}

model=(--layers 6 --dim 32 --heads 2 --context 16 --batch 8 -m 4 --json --steps 2 --device cuda)

# hash: of the parameters at the end.
hash() {
  jq -r 'select(.parameters_hash) | .parameters_hash + " " + .transport' <<<"$output"
}

# same RANKS WORDS...: as many processes end with the parameters of one.
same() {
  local expected
  run --separate-stderr "$WEFT" train --data data.txt "${model[@]}" "${@:2}"
  expected=$(hash)
  [[ $expected =~ ^[0-9a-f]{16}\ cuda$ ]]
  per_rank "seed=$1" "seed=$1"
  mpi_run -n "$1" ./weft train --data data.txt "${model[@]}" "${@:2}"
  [ "$status" -eq 0 ] || { echo "$*: $stderr" >&2; return 1; }
  [ "$(hash)" = "${expected% *} nccl" ] || { echo "$*: $(hash) instead of $expected" >&2; return 1; }
  is_sound "$1"
}

# wound HOW WHERE CALL RANK: training in four processes, two replicas with all kinds of collectives,
# in which that rank gets SIGKILL (die) or SIGSTOP (stop) in that call of nccl, cuda or mpi.
wound() {
  local preloaded=()
  case $2 in
    nccl) per_rank "" "$1=any:$3@$4" ;;
    cuda) per_rank "" "" "$4" "die=any:$3" ;;
    mpi)
      per_rank
      mpi_signal_at openmpi "$4" "$3" 9
      ;;
  esac
  mpi_run -n 4 "${preloaded[@]}" ./weft train --data data.txt "${model[@]}" -p 2 --dp 2 --shard full --tied \
    --stall-limit "$([ "$1" = stop ] && echo 3 || echo 30)"
}

# is_named HOW RANK: the job has ended with 75, and one report names the rank, its host, and what it
# was doing. Before the first step the launcher may end the job before a rank reports; then what
# watches the rank that was killed has named it.
is_named() {
  local count
  ends_with 75 || return 1
  count=$(grep -c "^weft: rank [0-9]: .*rank $2 (.*, process [0-9]*)" <<<"$stderr")
  if [ "$count" -gt 1 ] || { [ "$count" -eq 0 ] && [[ $1 == stop || $stderr == *" in step "* ]]; }; then
    echo "$count reports: $stderr" >&2
    return 1
  fi
  if [ "$1" = stop ]; then
    reports "rank $2 (" "which is stopped, by a signal or a debugger"
    return
  fi
  reports "weft: rank $2 (pid " "was killed by signal 9 (SIGKILL)" || return 1
  [ "$count" -eq 0 ] || reports ": rank $2 (" ") died" || return 1
  # What it was doing, if it has done anything.
  [[ $stderr != *"died; "* ]] || reports "died; rank $2 was " ", with GPU 0"
}

# launches RANK: of graphs.
launches() {
  sed -n 's/^calls cuGraphLaunch //p' "report.$1"
}
