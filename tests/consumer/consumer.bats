#!/usr/bin/env bats
# The installed library, as its users meet it: through pkg-config, through
# CMake, from C and from C++; and what it shows of itself.
bats_require_minimum_version 1.5.0

warnings=(-Wall -Wextra -Wpedantic -Werror)

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

uses_shared() { readelf -d "$1" | grep -q 'NEEDED.*\[libweft\.so\.0\]'; }

@test "pkg-config: the shared library" {
  read -ra cflags < <(pkg-config --cflags weft)
  read -ra libs < <(pkg-config --libs weft)
  cc -std=c11 "${warnings[@]}" "${cflags[@]}" -o consumer "$consumer/consumer.c" "${libs[@]}"
  uses_shared consumer
  [ "$(LD_LIBRARY_PATH=$LIBDIR ./consumer)" = "cannot hang" ]
}

@test "pkg-config: the static library" {
  read -ra cflags < <(pkg-config --cflags weft)
  read -ra libs < <(pkg-config --static --libs weft)
  cc -std=c11 "${warnings[@]}" "${cflags[@]}" -static -o consumer "$consumer/consumer.c" "${libs[@]}"
  [ "$(./consumer)" = "cannot hang" ]
}

@test "pkg-config: from C++" {
  read -ra cflags < <(pkg-config --cflags weft)
  read -ra libs < <(pkg-config --libs weft)
  g++ -std=c++11 "${warnings[@]}" "${cflags[@]}" -o consumer "$consumer/consumer.cc" "${libs[@]}"
  [ "$(LD_LIBRARY_PATH=$LIBDIR ./consumer)" = "cannot hang" ]
}

# The example of a whole trainer is what a user of the runtime looks like.
@test "pkg-config: a trainer on the shared runtime" {
  read -ra cflags < <(pkg-config --cflags weft-run)
  read -ra libs < <(pkg-config --libs weft-run)
  cc -std=c11 "${warnings[@]}" "${cflags[@]}" -o trainer "$WEFT_SOURCE_DIR/examples/trainer.c" \
    "${libs[@]}" -lm
  readelf -d trainer | grep -q 'NEEDED.*\[libweft-run\.so\.0\]'
  uses_shared trainer
  LD_LIBRARY_PATH=$LIBDIR ./trainer 1F1B >losses
  [ "$(wc -l <losses)" = 5 ]
  awk '{ loss[NR] = $4 } END { exit !(loss[1] > 0.3 && loss[5] < loss[1] / 20) }' losses
  for schedule in GPipe Eager1F1B ZBH1; do # the same losses, whatever the schedule
    LD_LIBRARY_PATH=$LIBDIR ./trainer $schedule | diff losses -
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
}

@test "CMake: a version that does not fit is refused" {
  sed 's/find_package(Weft 0.1/find_package(Weft 7.0/' "$consumer/CMakeLists.txt" >CMakeLists.txt
  run cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$PREFIX"
  [ "$status" -ne 0 ]
  [[ $output == *'requested version "7.0"'* ]]
}

@test "CMake: add_subdirectory" {
  cmake -S "$consumer" -B build -G Ninja -DWEFT_SUBDIRECTORY="$WEFT_SOURCE_DIR" >/dev/null
  cmake --build build --target consumer_static >/dev/null
  [ "$(build/consumer_static)" = "cannot hang" ]
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
  declared_in weft.h comm.h run.h launch.h | comm -23 - declared >declared_by_run
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
