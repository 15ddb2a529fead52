#!/usr/bin/env bats
# The installed library, as its users meet it: through pkg-config, through
# CMake, from C and from C++; and what it shows of itself.
# shellcheck disable=SC2030,SC2031
bats_require_minimum_version 1.5.0

warnings=(-Wall -Wextra -Wpedantic ${WEFT_WERROR:+"$WEFT_WERROR"})

setup_file() {
  export PREFIX=$BATS_FILE_TMPDIR/prefix
  DESTDIR='' cmake --install "$WEFT_BUILD_DIR" --prefix "$PREFIX" >/dev/null
  PKG_CONFIG_PATH=$(dirname "$(find "$PREFIX" -name weft.pc)")
  export PKG_CONFIG_PATH
  LIBDIR=$(pkg-config --variable=libdir weft)
  export LIBDIR
}

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  consumer=$WEFT_SOURCE_DIR/tests/consumer
}

# finds_driver PROGRAM: under each MPI that Weft was built for.
finds_driver() {
  local mpi
  for mpi in openmpi mpich; do
    [ -e "$WEFT_BUILD_DIR/lib/weft-mpi-$mpi.so" ] || continue
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_LOG_LEVEL=error \
      timeout 60 "mpirun.$mpi" -n 1 "$1" 0 3>&- | grep '^step   0  loss'
  done
}

uses_shared() { readelf -d "$1" | grep -q 'NEEDED.*\[libweft\.so\.[0-9]'; }

@test "pkg-config: the shared library" {
  read -ra cflags < <(pkg-config --cflags weft)
  read -ra libs < <(pkg-config --libs weft)
  cc -std=c11 "${warnings[@]}" "${cflags[@]}" -o consumer "$consumer/consumer.c" "${libs[@]}"
  uses_shared consumer
  [ "$(./consumer)" = "cannot hang" ]
}

@test "pkg-config: the static library" {
  read -ra cflags < <(pkg-config --cflags weft)
  read -ra libs < <(pkg-config --static --libs weft)
  cc -std=c11 "${warnings[@]}" "${cflags[@]}" -static -o consumer "$consumer/consumer.c" "${libs[@]}"
  [ "$(./consumer)" = "cannot hang" ]
}

# While the major version is 0, every minor version has an interface of its own.
@test "a program does not load the library of another interface" {
  IFS=. read -r major minor _ < <(pkg-config --modversion weft)
  interface=$major
  [ "$major" -ne 0 ] || interface=0.$minor
  for name in libweft libweft-run; do
    readelf -d "$LIBDIR/$name.so" | grep -q "SONAME.*\[$name\.so\.$interface\]"
    [ -e "$LIBDIR/$name.so.$interface" ]
  done
  cc -I"$PREFIX/include" -o consumer "$consumer/consumer.c" "$LIBDIR/libweft.so"
  [ "$(LD_LIBRARY_PATH=$LIBDIR ./consumer)" = "cannot hang" ]
  mkdir next # the names that the next minor version brings
  cp "$LIBDIR/libweft.so.$major.$minor."* "next/libweft.so.$major.$((minor + 1)).0"
  ln -s "libweft.so.$major.$((minor + 1)).0" "next/libweft.so.$major.$((minor + 1))"
  ln -s "libweft.so.$major.$((minor + 1))" next/libweft.so
  run -127 env LD_LIBRARY_PATH=next ./consumer
  [[ $output == *"libweft.so.$interface: cannot open shared object file"* ]]
}

@test "the libraries know nothing of the folder in which they were built" {
  for file in "$LIBDIR"/libweft*.so "$WEFT_BUILD_DIR"/lib/libweft*.so; do
    run -1 grep -cF "$WEFT_BUILD_DIR" "$file"
    run -1 grep -cF "$WEFT_SOURCE_DIR" "$file"
  done
}

@test "pkg-config: from C++" {
  read -ra cflags < <(pkg-config --cflags weft)
  read -ra libs < <(pkg-config --libs weft)
  g++ -std=c++11 "${warnings[@]}" "${cflags[@]}" -o consumer "$consumer/consumer.cc" "${libs[@]}"
  [ "$(./consumer)" = "cannot hang" ]
}

@test "C++: what docs/your-trainer.md does with an exception of a stage ends the step, by name" {
  # Its block, where the dots throw.
  # shellcheck disable=SC2016
  sed -n '/^enum weft_status forward(.*/,/^```$/p' "$WEFT_SOURCE_DIR/docs/your-trainer.md" | sed -e '/^```$/d' \
    -e 's/^  \.\.\.$/  if (stage != nullptr \&\& call != nullptr) throw std::runtime_error("no more rows");/' >forward.inc
  grep -q throw forward.inc
  grep -q catch forward.inc
  read -ra cflags < <(pkg-config --cflags weft-run)
  read -ra libs < <(pkg-config --libs weft-run)
  g++ -std=c++11 "${warnings[@]}" -I. "${cflags[@]}" -o throwing "$consumer/throwing_stage.cc" "${libs[@]}"
  run -1 ./throwing
  [ "$output" = "rank 0, step 1, 0F0 failed: no more rows" ]
}

# The example of a whole trainer is what a user of the runtime looks like.
@test "pkg-config: a trainer on the shared runtime" {
  read -ra cflags < <(pkg-config --cflags weft-run)
  read -ra libs < <(pkg-config --libs weft-run)
  cc -std=c11 "${warnings[@]}" "${cflags[@]}" -o trainer "$WEFT_SOURCE_DIR/examples/trainer.c" \
    "${libs[@]}" -lm
  readelf -d trainer | grep -q 'NEEDED.*\[libweft-run\.so\.[0-9]'
  uses_shared trainer
  ./trainer 1F1B >losses
  [ "$(wc -l <losses)" = 5 ]
  awk '{ loss[NR] = $4 } END { exit !(loss[1] > 0.3 && loss[5] < loss[1] / 20) }' losses
  for schedule in GPipe Eager1F1B ZBH1; do # the same losses, whatever the schedule
    ./trainer $schedule | diff losses -
  done
}

@test "the example trainer has less than 150 lines, and fails with a reason" {
  [ "$(wc -l <"$WEFT_SOURCE_DIR/examples/trainer.c")" -lt 150 ]
  read -ra cflags < <(pkg-config --cflags weft-run)
  read -ra libs < <(pkg-config --static --libs weft-run)
  cc -std=c11 "${warnings[@]}" "${cflags[@]}" -static -o trainer \
    "$WEFT_SOURCE_DIR/examples/trainer.c" "${libs[@]}" -lm
  run -1 ./trainer nosuch
  [[ $output == *"unknown schedule 'nosuch'"* ]]
  run -1 ./trainer Interleaved1F1B # two stages per rank
  [[ $output == *"the program has 8 stages, and options.stage_count is 4"* ]]
}

@test "pkg-config: the version is the command's" {
  [[ $("$PREFIX/bin/weft" --version) == *"$(pkg-config --modversion weft)"* ]]
}

@test "pkg-config: the prefix may be moved" {
  cp -a "$PREFIX" moved
  moved_pc=$(dirname "$(find "$PWD/moved" -name weft.pc)")
  read -ra cflags < <(PKG_CONFIG_PATH=$moved_pc pkg-config --cflags weft)
  [ -e "${cflags[0]#-I}/weft/weft.h" ]
  [ "$(realpath "${cflags[0]#-I}")" = "$(realpath moved/include)" ]
}

@test "CMake: find_package(Weft), shared, static and C++" {
  cmake -S "$consumer" -B build -G Ninja -DCMAKE_PREFIX_PATH="$PREFIX" >/dev/null
  cmake --build build >/dev/null
  for program in consumer_shared consumer_static consumer_cxx; do
    [ "$(build/$program)" = "cannot hang" ]
  done
  for program in trainer_shared trainer_static; do
    [[ $(build/$program | tail -n 1) == "step 400"* ]]
  done
  uses_shared build/consumer_shared
  run ! uses_shared build/consumer_static
  finds_driver build/mpi_shared
  finds_driver build/mpi_static
}

@test "CMake: a version that does not fit is refused" {
  sed 's/find_package(Weft 0.1/find_package(Weft 7.0/' "$consumer/CMakeLists.txt" >CMakeLists.txt
  run cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$PREFIX"
  [ "$status" -ne 0 ]
  [[ $output == *'requested version "7.0"'* ]]
}

@test "CMake: add_subdirectory" {
  cmake -S "$consumer" -B build -G Ninja -DWEFT_SUBDIRECTORY="$WEFT_SOURCE_DIR" >/dev/null
  cmake --build build --target consumer_static mpi_shared mpi_static >/dev/null
  [ "$(build/consumer_static)" = "cannot hang" ]
  finds_driver build/mpi_shared
  finds_driver build/mpi_static
}

@test "a driver that is not found: the error says where it was looked for" {
  read -ra cflags < <(pkg-config --cflags weft-run)
  cc "${cflags[@]}" -o alone "$WEFT_SOURCE_DIR/examples/mpi_trainer.c" \
    "$LIBDIR/libweft-run.a" "$LIBDIR/libweft.a" -ljansson -lm -pthread
  run env PMI_RANK=0 PMI_SIZE=1 ./alone
  [[ $output == *"there is no driver for MPICH: looked for weft-mpi-mpich.so in "*" of "*"$PWD"* ]]
  [[ $output == *"hint: WEFT_MPI_DRIVER may name the file; for a Weft built without it: install libmpich-dev and mpich"* ]]
  run env PMI_RANK=0 PMI_SIZE=1 WEFT_MPI_DRIVER=nosuch.so ./alone
  [[ $output == *"the MPI driver cannot be loaded: nosuch.so"* ]]
}

@test "a driver that others can change is not loaded, nor one relative to the current folder" {
  local place
  read -ra cflags < <(pkg-config --cflags weft-run)
  cc "${cflags[@]}" -c -o trainer.o "$WEFT_SOURCE_DIR/examples/mpi_trainer.c"
  cc -o alone trainer.o "$LIBDIR/libweft-run.a" "$LIBDIR/libweft.a" -ljansson -lm -pthread
  cat >planted.c <<'END'
#include <stdio.h>
__attribute__((constructor)) static void begin(void) { puts("PLANTED"); }
END
  cc -shared -fPIC -o planted.so planted.c
  mkdir -p shared/lib shared/weft here/lib my/own
  for place in shared/lib shared/weft here here/lib my/own; do
    cp planted.so "$place/weft-mpi-mpich.so"
  done
  cp alone shared/
  cp alone my/own/
  chmod 1777 shared
  chmod 777 shared/lib shared/weft
  # In the program's own folder and in the current one; then where others may write.
  run env PMI_RANK=0 PMI_SIZE=1 bash -c 'cd here && exec -a ./alone ../my/own/alone'
  [[ $output == *"there is no driver for MPICH"* && $output != *PLANTED* ]]
  run env PMI_RANK=0 PMI_SIZE=1 shared/alone
  [[ $output == *"the MPI driver "*"/shared/lib/weft-mpi-mpich.so is not loaded: others can change it"* ]]
  [[ $output == *"hint: it and its folder must belong to you, "* && $output != *PLANTED* ]]
  if [ "$(id -u)" -eq 0 ]; then
    chmod 755 shared/lib shared/weft
    chown nobody shared/lib shared/weft/weft-mpi-mpich.so
    run env PMI_RANK=0 PMI_SIZE=1 shared/alone
    [[ $output == *"is not loaded: others can change it"* && $output != *PLANTED* ]]
  fi
  # A link leads where others may write.
  rm -r shared/lib shared/weft
  mkdir shared/lib open
  chmod 777 open
  cp planted.so open/driver.so
  ln -s ../../open/driver.so shared/lib/weft-mpi-mpich.so
  run env PMI_RANK=0 PMI_SIZE=1 shared/alone
  [[ $output == *"the MPI driver "*"/open/driver.so is not loaded: others can change it"* && $output != *PLANTED* ]]
  # The run path comes before what is beside the program.
  cc -o shared/alone trainer.o "$LIBDIR/libweft-run.a" "$LIBDIR/libweft.a" -ljansson -lm -pthread \
    -Wl,-rpath,"$LIBDIR/weft"
  run ! grep -q PLANTED <(finds_driver shared/alone)
}

@test "the examples at the top of run.h compile" {
  { cat <<'END'
#include <weft/run.h>
#include <weft/source.h>
static struct weft_named_source my_schedule = {.schedule = "1F1B", .ranks = 4};
static struct weft_stage *my_stages[4];
static struct weft_boundary my_boundary;
static struct weft_batch my_batch;
END
    sed -n '/\*\//q; s/^ \*     //p; s/^ \*$//p' "$PREFIX/include/weft/run.h" | sed 's/void \*context/void */'
  } >example.c
  grep -q WEFT_TRY example.c
  cc -std=c11 -Wall -Wextra ${WEFT_WERROR:+"$WEFT_WERROR"} -Wno-unused-function -I"$PREFIX/include" -fsyntax-only example.c
}

@test "examples: stages that form a graph learn two heads, on any schedule" {
  read -ra cflags < <(pkg-config --cflags weft-run)
  read -ra libs < <(pkg-config --libs weft-run)
  cc -std=c11 "${warnings[@]}" "${cflags[@]}" -o graph_trainer \
    "$WEFT_SOURCE_DIR/examples/graph_trainer.c" "${libs[@]}" -lm
  ./graph_trainer 1F1B >losses
  [ "$(wc -l <losses)" = 5 ]
  awk '{ a[NR] = $4; b[NR] = $5 } END { exit !(a[5] < a[1] / 20 && b[5] < b[1] / 20) }' losses
  for words in GPipe Eager1F1B ZBH1 "1F1B loopback"; do
    # shellcheck disable=SC2086
    ./graph_trainer $words | diff losses -
  done
  run -1 ./graph_trainer Interleaved1F1B
  [[ $output == *"the graph has 5 stages"* ]]
}

# rank by rank the same, with and without shards, on threads; walk.bats adds MPI.
@test "examples: replicas agree, and a training that was killed goes on with the same bits" {
  read -ra cflags < <(pkg-config --cflags weft-run)
  read -ra libs < <(pkg-config --libs weft-run)
  for program in replicas checkpoint; do
    cc -std=c11 "${warnings[@]}" "${cflags[@]}" -o "$program" \
      "$WEFT_SOURCE_DIR/examples/$program.c" "${libs[@]}"
  done
  for replicas in 1 2 4; do
    ./replicas $replicas >unsharded
    [ "$(wc -l <unsharded)" = 3 ]
    ./replicas $replicas full | diff unsharded -
  done
  run -75 ./replicas 3
  [[ $output == "replicas: 3 replicas on 4 ranks"* ]]

  ./checkpoint killed 100000000 >/dev/null &
  for ((k = 0; k < 300; k++)); do
    [ ! -e killed/step-100 ] || break
    sleep 0.1
  done
  kill -KILL $!
  wait $! || true
  last=$(od -An -t d8 killed/latest | tr -d ' ')
  ./checkpoint killed $((last + 70)) >/dev/null
  ./checkpoint whole $((last + 70)) >/dev/null
  diff -r "killed/step-$((last + 70))" "whole/step-$((last + 70))"
  rm -r "killed/step-$((last + 70))"
  run -75 ./checkpoint killed $((last + 99))
  [[ $output == "checkpoint: "*"cannot read killed/step-"*"No such file"* ]]
}

# A smaller model, its kernels compiled for the host (fake_cudart.hh): any order of the device's work
# gives the same losses, on every schedule, number of ranks, partition, and without a graph.
@test "examples: the trainer on GPUs learns on the fake driver" {
  sed -E 's/([a-z_]+)<<<(.*)>>>/fake_launch(\1, \2)/
    s/N = 64, LAYERS = 16, ROWS = 32(.*) STEPS = 400/N = 8, LAYERS = 8, ROWS = 2\1 STEPS = 100/' \
    "$WEFT_SOURCE_DIR/examples/trainer_cuda.cu" >trainer_cuda.cc
  read -ra cflags < <(pkg-config --cflags weft-run)
  read -ra libs < <(pkg-config --libs weft-run)
  g++ -O1 -std=c++20 -I"$WEFT_SOURCE_DIR/tests/device/fake_cuda" -include "$consumer/fake_cudart.hh" \
    "${cflags[@]}" -o trainer_cuda trainer_cuda.cc "${libs[@]}" -L"$FAKE_CUDA" -lcuda
  export LD_LIBRARY_PATH=$FAKE_CUDA XDG_CACHE_HOME=$PWD
  ./trainer_cuda 1F1B 1 | grep '^step' >losses
  [ "$(wc -l <losses)" = 2 ]
  awk '{ loss[NR] = $4 } END { exit !(loss[1] > 0.1 && loss[2] < loss[1] / 5) }' losses
  seed=0
  while read -r words; do
    seed=$((seed + 1))
    export WEFT_FAKE_CUDA="seed=$seed,queues=$((5 * seed)),report=found"
    # shellcheck disable=SC2086
    ./trainer_cuda $words | grep '^step' | diff losses -
    [ "$(grep -cxE '(races|deadlocks|faults|early|pending|blocks) 0' found)" = 6 ]
  done <<<$'1F1B 2\n1F1B 3 0 eager\nZBVZeroBubble 2 2\nDualPipeV 4\nInterleaved1F1B 4 4 eager'
}

# CUDA's runtime has more to ask than the fake driver can answer: here up to the first launch.
@test "examples: nvcc compiles the trainer on GPUs, in less than 200 lines; it fails with a reason" {
  [ "$(wc -l <"$WEFT_SOURCE_DIR/examples/trainer_cuda.cu")" -lt 200 ]
  command -v nvcc >/dev/null || skip "nvcc is not installed"
  read -ra cflags < <(pkg-config --cflags weft-run)
  read -ra libs < <(pkg-config --libs weft-run)
  nvcc -std=c++20 -forward-unknown-to-host-compiler -Wall -Wextra -Wno-missing-field-initializers \
    "$WEFT_SOURCE_DIR/examples/trainer_cuda.cu" "${cflags[@]}" "${libs[@]}" -o trainer_cuda >printed 2>&1
  cat printed
  [ ! -s printed ]
  export LD_LIBRARY_PATH=$FAKE_CUDA XDG_CACHE_HOME=$PWD
  run -1 ./trainer_cuda nosuch
  [[ $output == *"unknown schedule 'nosuch'"* ]]
  run -1 ./trainer_cuda 1F1B 2 200
  [[ $output == *"cannot be split into 200 partitions"* ]]
  run -1 ./trainer_cuda 1F1B 2
  [[ $output == *"rank 0, step 1, 0F0 failed: a launch failed: "* ]]
}

@test "every public header stands alone, in strict C11 and in C++11" {
  for header in "$PREFIX"/include/weft/*.h; do
    printf '#include <weft/%s>\nextern int nothing;\n' "${header##*/}" >alone.c
    cc -std=c11 "${warnings[@]}" -I"$PREFIX/include" -fsyntax-only alone.c
    g++ -std=c++11 "${warnings[@]}" -I"$PREFIX/include" -fsyntax-only -x c++ alone.c
  done
}

@test "all public headers are installed, and nothing else" {
  diff -r "$WEFT_SOURCE_DIR/include" "$PREFIX/include"
}

@test "the shared library exports weft_ names only" {
  run bash -c 'nm -D --defined-only "$1" | awk "{ print \$3 }" | grep -v "^weft_"' - "$LIBDIR/libweft.so"
  [ "$output" = "" ]
  [ "$(nm -D --defined-only "$LIBDIR/libweft.so" | wc -l)" -gt 10 ]
}

# declared_in HEADER...: the functions that they and what they include declare.
declared_in() {
  printf '#include <weft/%s>\n' "$@" | cc -E -P -I"$PREFIX/include" - |
    tr '\n' ' ' | tr ';' '\n' | grep 'visibility("default")' |
    grep -oE 'visibility\("default"\)\)\)[^(]*\<weft_[a-z0-9_]+ ?\(' |
    grep -oE '\<weft_[a-z0-9_]+ ?\($' | tr -d ' (' | sort -u
}

exported_by() { nm -D --defined-only "$LIBDIR/$1" | awk '{ print $3 }' | sort; }

@test "the shared libraries export exactly what the headers declare" {
  declared_in weft.h >declared
  exported_by libweft.so | diff declared -
  declared_in weft.h comm.h cuda.h run.h launch.h | comm -23 - declared >declared_by_run
  exported_by libweft-run.so | diff declared_by_run -
}

@test "the static library defines no global name but weft_ ones" {
  run bash -c 'nm -g --defined-only "$1" | awk "NF == 3 { print \$3 }" | grep -v "^weft_"' - "$LIBDIR/libweft.a"
  [ "$output" = "" ]
}

@test "the library needs libc and jansson only" {
  run bash -c 'readelf -d "$1" | grep NEEDED | grep -v "\[libc\.so\|\[libm\.so\|\[libjansson\.so"' - "$LIBDIR/libweft.so"
  [ "$output" = "" ]
}

@test "the runtime needs libweft, libc and threads, and jansson only" {
  run bash -c 'readelf -d "$1" | grep NEEDED | grep -v "\[libc\.so\|\[libm\.so\|\[libjansson\.so\|\[libweft\.so"' - "$LIBDIR/libweft-run.so"
  [ "$output" = "" ]
}

@test "all programs are installed, and find each other" {
  [ -x "$PREFIX/bin/weft-bench" ]
  "$PREFIX/bin/weft" bench --list | grep -q '^plan '
  if [ -x "$WEFT_BUILD_DIR/weft-train" ]; then
    run "$PREFIX/bin/weft" sample
    [ "$status" -eq 2 ]
    [[ $output == *"there is no model"* ]]
  fi
}

@test "the man page and the completions are installed" {
  grep -q '^\.TH' "$PREFIX/share/man/man1/weft.1"
  for script in bash-completion/completions/weft zsh/site-functions/_weft \
    fish/vendor_completions.d/weft.fish; do
    grep -q verify "$PREFIX/share/$script"
  done
  bash -n "$PREFIX/share/bash-completion/completions/weft"
}
