#!/bin/bash
# Messages over a network that needs no core of the ranks: two
# hosts in network namespaces, joined by a virtual cable that the kernel slows down (tc tbf).
#
#     bench/mpi_over_network.sh [MBIT] [openmpi|mpich]
#
# Needs root, iproute2, and a build with its tests (make test builds them). For each way to
# progress it starts `mpirun -n 2 weft bench mpi` over the two hosts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
WEFT_SOURCE_DIR=$PWD WEFT_BUILD_DIR=$PWD/build WEFT=$PWD/build/weft
export WEFT_SOURCE_DIR WEFT_BUILD_DIR WEFT
mbit=${1:-200} mpi=${2:-openmpi}
# shellcheck source=/dev/null
load() { source "tests/setup/${1##*/}.bash"; }
load mpi_setup

if reason=$(hosts_missing); then
  echo "left out: $reason" >&2
  exit 0
fi
hosts_begin a b
trap hosts_end EXIT
# A burst that holds 64 KiB several times, so that the kernel hands on large packets whole, as
# to a network card that cuts them: packets of 1,500 bytes take the cores of the ranks.
for host in a b; do
  hosts_on $host tc qdisc add dev data root tbf rate "${mbit}mbit" burst 256k latency 500ms
done
mpi_hosts "$mpi" a:1 b:1
# Each host believes that it has the machine for itself: bound, both ranks would get core 0.
if [[ $mpi == openmpi ]]; then
  launcher+=(--bind-to none)
fi
# Other work on this machine is no part of the question.
# shellcheck disable=SC2016
rank=(bash -c '{ echo -20 >/proc/self/autogroup; } 2>/dev/null || :; exec nice -n -20 "$@"' rank)
for progress in calls thread; do
  echo "$mpi over $mbit Mbit/s, progress by $progress:"
  mpi_start -n 2 "${rank[@]}" "$WEFT" bench mpi --progress $progress | sed -n '/^messages/,$p'
done
