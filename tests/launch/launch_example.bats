#!/usr/bin/env bats
# examples/mpi_trainer.c, built against the installed library, as a user's trainer: a rank
# that is killed is reported once, and the job ends with status 75.
# Not under sanitizers: whole jobs take long.
# shellcheck disable=SC2154
bats_require_minimum_version 1.5.0
load ../setup/wait_setup

setup_file() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_LOG_LEVEL=error
  export OMPI_MCA_btl=^tcp # one host; Open MPI 5 warns of networks that it would not use
  local name cflags libs
  mpis=
  for name in openmpi mpich; do
    [ ! -e "$WEFT_BUILD_DIR/lib/weft-mpi-$name.so" ] || mpis+=" $name"
  done
  export mpis pc PREFIX=$BATS_FILE_TMPDIR/prefix
  [ -n "$mpis" ] || return 0
  DESTDIR='' cmake --install "$WEFT_BUILD_DIR" --prefix "$PREFIX" >/dev/null
  pc=$(dirname "$(find "$PREFIX" -name weft.pc)")
  read -ra cflags < <(PKG_CONFIG_PATH=$pc pkg-config --cflags weft-run)
  read -ra libs < <(PKG_CONFIG_PATH=$pc pkg-config --libs weft-run)
  cc -std=c11 -Wall -Wextra -Wpedantic ${WEFT_WERROR:+"$WEFT_WERROR"} "${cflags[@]}" -o "$BATS_FILE_TMPDIR/mpi_trainer" \
    "$WEFT_SOURCE_DIR/examples/mpi_trainer.c" "${libs[@]}"
}

setup() {
  [ -n "$mpis" ] || skip "built without MPI: libopenmpi-dev openmpi-bin"
  cd "$BATS_TEST_TMPDIR" || return 1
  trainer=$BATS_FILE_TMPDIR/mpi_trainer
}

# launch MPI COMMAND...: three ranks.
launch() {
  local more=()
  [ "$1" = mpich ] || more=(--oversubscribe)
  timeout --kill-after=5 60 "mpirun.$1" "${more[@]}" -n 3 "${@:2}" 3>&-
}

# The ranks: processes of the trainer whose parent, a supervisor, is one too.
ranks() {
  local pids pid parent
  pids=$(pgrep -f -- "^$trainer $1")
  for pid in $pids; do
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
    if [ -n "$parent" ] && grep -qx "$parent" <<<"$pids"; then
      echo "$pid"
    fi
  done
}

# fails_once STATUS TEXT: the job ended so, and TEXT was reported once.
fails_once() {
  if [ "$status" -ne "$1" ] || [ "$(grep -cE "$2" err)" -ne 1 ]; then
    printf 'status %s, expected %s and once: %s\n' "$status" "$1" "$2" >&2
    cat err >&2
    return 1
  fi
}

# during COMMAND: $status and err of a long job in which it runs after some steps.
during() {
  local job
  launch "$mpi" "$trainer" 100000000 >out 2>err &
  job=$!
  await 30 "a step, and a second rank" has_victim || { cat err >&2; kill "$job"; return 1; }
  "$@"
  await_end 70 "$job" "the job"
  await 10 "the end of all processes of the job" is_gone || { pgrep -fa -- "$trainer" >&2; return 1; }
}

has_victim() {
  victim=$(ranks 1 | sed -n 2p)
  [ -s out ] && [ -n "$victim" ]
}

is_gone() {
  ! pgrep -f -- "^$trainer 1" >/dev/null
}

kill_a_rank() { kill -KILL "$victim"; }
exit_a_rank() { kill -SYS "$victim"; }
terminate_a_rank() { kill -TERM "$victim"; }

@test "the example trains under each MPI, and without a launcher" {
  for mpi in $mpis; do
    run --separate-stderr launch "$mpi" "$trainer" 200
    [ "$status" -eq 0 ]
    [ "$stderr" = "" ]
    [ "$(grep -c '^step' <<<"$output")" -eq 3 ]
    awk '{ loss[NR] = $4 } END { exit !(loss[3] < loss[1] / 5) }' <<<"$output"
  done
  run --separate-stderr "$trainer" 100
  [ "$status" -eq 0 ]
  [ "$stderr" = "" ]
}

@test "a rank that is killed: its supervisor and one rank report it, and the status is 75" {
  for mpi in $mpis; do
    during kill_a_rank
    fails_once 75 '^mpi_trainer: rank [012] \(pid [0-9]+ on .*\) was killed by signal 9 \(SIGKILL\)$'
    fails_once 75 '^mpi_trainer: rank [01]: .*rank [012] \(.*, process [0-9]+\) died'
    "$WEFT" explain-hang hang.json | grep -q '^verdict: rank [012] (.*) died'
    rm hang.json
  done
}

@test "a rank that calls exit(): its supervisor says so with the status, and the job's is 75" {
  cat >exits.c <<'END'
#include <signal.h>
#include <unistd.h>
static void leave(int number) {
  (void)number;
  _exit(STATUS);
}
__attribute__((constructor)) static void begin(void) { signal(SIGSYS, leave); }
END
  local number
  for number in 3 0; do
    cc -shared -fPIC -DSTATUS=$number exits.c -o exits-$number.so
    for mpi in $mpis; do
      LD_PRELOAD=$PWD/exits-$number.so during exit_a_rank
      fails_once 75 "^mpi_trainer: rank [012] \\(pid [0-9]+ on .*\\) exited with status $number, in the middle of the job\$"
      fails_once 75 '^mpi_trainer: rank [01]: .*rank [012] \(.*, process [0-9]+\) died'
      rm hang.json
    done
  done
}

@test "a rank of the other examples that calls exit() is reported likewise" {
  local name cflags libs
  read -ra cflags < <(PKG_CONFIG_PATH=$pc pkg-config --cflags weft-run)
  read -ra libs < <(PKG_CONFIG_PATH=$pc pkg-config --libs weft-run)
  # The rank that says how the first step went.
  printf '#include <stdlib.h>\nint printf(const char *text, ...) { exit(3); }\n' >exits.c
  cc -shared -fPIC -fno-builtin exits.c -o exits.so
  for name in replicas checkpoint; do
    cc -std=c11 "${cflags[@]}" -o "$name" "$WEFT_SOURCE_DIR/examples/$name.c" "${libs[@]}"
    for mpi in $mpis; do
      status=0
      launch "$mpi" env LD_PRELOAD="$PWD/exits.so" "./$name" 1 >out 2>err || status=$?
      fails_once 75 "^$name: rank 2 \\(pid .*\\) exited with status 3, in the middle of the job\$"
    done
  done
}

@test "SIGTERM to one rank ends all, and is reported once" {
  for mpi in $mpis; do
    during terminate_a_rank
    [ "$status" -ne 0 ]
    fails_once "$status" '^mpi_trainer: rank [012]: .*was asked to stop'
  done
}

@test "a rank has the threads that libraries started before it was forked" {
  cat >threads.c <<'END'
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <weft/launch.h>
static void *wait_forever(void *context) {
  for (;;) {
    pause();
  }
  return context;
}
__attribute__((constructor)) static void start_thread(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, wait_forever, NULL);
}
int main(int count, char **words) {
  int threads = -2; /* . and .. */
  puts("main");
  fflush(stdout);
  weft_launch_begin("threads");
  for (DIR *tasks = opendir("/proc/self/task"); readdir(tasks) != NULL;) {
    threads++;
  }
  printf("%d threads, %d words: %s, %s, %s\n", threads, count, words[0], words[1], words[2]);
  return 3;
}
END
  # shellcheck disable=SC2046
  cc -pthread threads.c $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs weft-run) -o threads
  run --separate-stderr env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 ./threads 'two words' ''
  [ "$status" -eq 3 ]
  [ "$stderr" = "" ]
  [ "$output" = "main
main
2 threads, 3 words: ./threads, two words, " ]
}

@test "a job in which a process does not come ends" {
  cat >odd <<'END'
#!/bin/bash
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || exec sleep 30
exec "$@"
END
  cat >stopped <<'END'
#!/bin/bash
if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then
  sleep 1 &
  export LD_PRELOAD=$PWD/stops.so
fi
exec "$@"
END
  printf '#include <signal.h>\nint MPI_Init_thread(int *a, char ***b, int c, int *d) { return (void)a, (void)b, (void)c, (void)d, raise(SIGSTOP); }\n' \
    >stops.c
  cc -shared -fPIC stops.c -o stops.so
  chmod +x odd stopped
  for mpi in $mpis; do
    status=0
    WEFT_START_LIMIT=2 launch "$mpi" ./odd "$trainer" 10 >out 2>err || status=$?
    [ "$status" -ne 0 ]
    grep -Eq '^mpi_trainer: rank [02]: MPI has not started after 2 s: not all of the 3 processes have come; rank 1 \(process [0-9]+\) runs another program$' err
    # A rank that is stopped, whose supervisor has another child.
    status=0
    WEFT_START_LIMIT=4 launch "$mpi" ./stopped "$trainer" 10 >out 2>err || status=$?
    [ "$status" -ne 0 ]
    grep -Eq '^mpi_trainer: rank [012]: MPI has not started after 4 s: .*; rank 1 \(process [0-9]+\) is stopped$' err
    # One that has ended: no launcher takes that amiss.
    sed 's/exec sleep 30/exit 0/' odd >ended
    chmod +x ended
    WEFT_START_LIMIT=2 run ! launch "$mpi" ./ended "$trainer" 10
    [[ $output == *"rank "[02]": MPI has not started after 2 s: not all of the 3 processes have come"*"hint: has one of them ended"* ]]
  done
}
