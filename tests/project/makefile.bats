#!/usr/bin/env bats
# The scripts behind the Makefile.
# Not under sanitizers: it is about files, pages and other programs.
bats_require_minimum_version 1.5.0

setup() {
  cd "$WEFT_SOURCE_DIR" || return 1
}

# The command under test, and none that is built on the way.
@test "make train trains, and leaves what comes of it in a folder" {
  if ! "$WEFT" doctor --quick | grep -q 'BLAS  *OpenBLAS'; then
    run --separate-stderr make -o build train WEFT="$WEFT" TRAIN_OUT="$BATS_TEST_TMPDIR/out"
    # shellcheck disable=SC2154
    [[ $stderr == *libopenblas-dev*"Error 69"* ]]
    return
  fi
  run --separate-stderr env -u MAKEFLAGS -u MAKELEVEL make -o build train WEFT="$WEFT" \
    TRAIN_OUT="$BATS_TEST_TMPDIR/out" TRAIN='--steps 3 --layers 2 --dim 16 --heads 2'
  [ "$status" -eq 0 ]
  # shellcheck disable=SC2154
  [ "$stderr" = "" ]
  [[ $output == *"2 ranks"*"step 3/3"*"parameters_hash"*"Sample:"* ]]
  for file in checkpoint/step-00000003/manifest.json log.jsonl costs.json timeline.html; do
    [ -s "$BATS_TEST_TMPDIR/out/$file" ]
  done
}

@test "install-deps does nothing, and says nothing, when all is there" {
  purposes=(build command)
  ! command -v chromium >/dev/null || purposes+=(test) # not after 'install-deps.sh command'
  for purpose in "${purposes[@]}"; do
    run tools/install-deps.sh "$purpose"
    [ "$status" -eq 0 ]
    [ "$output" = "" ]
  done
}

@test "install-deps refuses an unknown purpose" {
  run tools/install-deps.sh party
  [ "$status" -eq 2 ]
  [[ $output == usage:* ]]
}

# A machine that has everything but CMake and Ninja, in the PATH $bare; its apt-get says what it is
# asked for, and brings both.
bare_path() {
  local folder folders files=()
  bare=$BATS_TEST_TMPDIR/bare
  mkdir -p "$bare"
  IFS=: read -ra folders <<<"$PATH"
  for folder in "${folders[@]}"; do
    files+=("$folder"/*)
  done
  ln -s "${files[@]}" "$bare" 2>/dev/null || true # the first of a name stays
  rm -f "$bare"/{cmake,ninja,sudo,apt-get}
  # shellcheck disable=SC2016
  printf '#!/bin/bash\necho "apt-get $*"\n[[ $1 != install ]] || ln -s /bin/true "%s/cmake"\n' "$bare" >"$bare/apt-get"
  # shellcheck disable=SC2016
  echo '[[ $1 != install ]] || ln -s /bin/true "${0%/*}/ninja"' >>"$bare/apt-get"
  chmod +x "$bare/apt-get"
}

@test "install-deps says what it installs before it does" {
  [ "$(id -u)" -eq 0 ] || skip "only root installs without being asked for a password"
  bare_path
  run -0 env PATH="$bare" tools/install-deps.sh build
  [ "${#lines[@]}" -eq 3 ]
  [ "${lines[1]}" = "installing by apt-get: cmake ninja-build" ]
  [[ ${lines[2]} == "apt-get install "*" cmake ninja-build" ]]
}

@test "install-deps names the packages where it may not install, or cannot" {
  bare_path
  run -69 env PATH="$bare" WEFT_NO_INSTALL=1 tools/install-deps.sh build
  [[ ${lines[0]} == "missing: cmake ninja; WEFT_NO_INSTALL is set"* ]]
  [ "${lines[1]}" = "  hint: install them, as root, with: apt-get install --no-install-recommends cmake ninja-build" ]
  [ "${#lines[@]}" -eq 2 ]
  run -2 env -u MAKEFLAGS -u MAKELEVEL PATH="$bare" make WEFT_NO_INSTALL=1 train
  [[ $output == *"missing: cmake ninja; "*"apt-get install --no-install-recommends cmake ninja-build"*"Error 69"* ]]
  rm -f "$bare/clang" # is for more than one purpose, and named once
  run -69 env PATH="$bare" WEFT_NO_INSTALL=1 tools/install-deps.sh test
  [ -z "$(sed 's/^missing: //; s/;.*//' <<<"${lines[0]}" | tr ' ' '\n' | sort | uniq -d)" ]
  ln -sf "$BATS_TEST_TMPDIR/id" "$bare/id"
  printf '#!/bin/bash\necho 1000\n' >"$BATS_TEST_TMPDIR/id"
  chmod +x "$BATS_TEST_TMPDIR/id"
  run -69 env PATH="$bare" tools/install-deps.sh build
  [[ $output == *"there is no sudo"*"hint: "*"apt-get install --no-install-recommends cmake ninja-build" ]]
  printf '#!/bin/bash\necho "sudo: a password is required" >&2\nexit 1\n' >"$bare/sudo"
  chmod +x "$bare/sudo"
  run -69 env PATH="$bare" tools/install-deps.sh build
  [[ $output == *"sudo gives none"*"hint: "*"apt-get install --no-install-recommends cmake ninja-build" ]]
}

# The README's first two commands.
@test "make playground builds the command that opens it, too" {
  run -0 env -u MAKEFLAGS make --dry-run playground
  [[ $output == *"--target playground weft_command"* ]]
}

@test "a copy of a built checkout starts its build anew, and says so" {
  mkdir -p "$BATS_TEST_TMPDIR/first/tools"
  cd "$BATS_TEST_TMPDIR/first"
  cp "$WEFT_SOURCE_DIR/tools/configure.sh" tools
  cp "$WEFT_SOURCE_DIR/CMakePresets.json" .
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(small LANGUAGES NONE)\n' >CMakeLists.txt
  run -0 tools/configure.sh release
  [ "$output" = "" ]
  touch build/stays
  run -0 tools/configure.sh release
  [ "$output" = "" ]
  [ -e build/stays ]
  cp -a ../first ../second
  cd ../second
  run -1 cmake --preset release # what it is about
  run -0 tools/configure.sh release -DCMAKE_INSTALL_PREFIX=/foo
  [ "$output" = "build/ was made for $BATS_TEST_TMPDIR/first: starting anew" ]
  [ ! -e build/stays ]
  grep -q '^CMAKE_INSTALL_PREFIX:.*=/foo$' build/CMakeCache.txt
  # Moved instead of copied; and only the builds that are there.
  mv ../second ../third
  cd ../third
  run -0 tools/configure.sh release
  [ "$output" = "build/ was made for $BATS_TEST_TMPDIR/second: starting anew" ]
  for target in build built-asan test-command playground; do
    run -0 env -u MAKEFLAGS make -C "$WEFT_SOURCE_DIR" --dry-run $target
    [[ $output == *tools/configure.sh* ]]
  done
}

# A ctest that answers in the words of the real one: fake_ctest LINE STATUS
fake_ctest() {
  mkdir -p "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/bash\n%s\n' "$1" >"$BATS_TEST_TMPDIR/bin/ctest"
  chmod +x "$BATS_TEST_TMPDIR/bin/ctest"
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
}

@test "run-tests sums over the builds, and ends with the sum" {
  fake_ctest 'echo "100% tests passed, 0 tests failed out of 12"; echo; echo "Total Test time"'
  run tools/run-tests.sh release asan
  [ "$status" -eq 0 ]
  [ "${lines[-1]}" = "24 passed, 0 failed" ]
}

@test "run-tests fails when a test fails in any build" {
  # shellcheck disable=SC2016
  fake_ctest 'if [[ $2 = asan ]]; then echo "75% tests passed, 1 tests failed out of 4"; exit 8; fi
    echo "100% tests passed, 0 tests failed out of 4"'
  run tools/run-tests.sh asan release
  [ "$status" -eq 1 ]
  [ "${lines[-1]}" = "7 passed, 1 failed" ]
}

@test "run-tests fails when ctest cannot run at all" {
  fake_ctest 'echo "No tests were found!!!"; exit 8'
  run tools/run-tests.sh release
  [ "$status" -eq 1 ]
  [ "${lines[-1]}" = "0 passed, 1 failed" ]
}

# What it does inside, .ci/run shows. Here: what it refuses.
@test "in-debian explains itself, and refuses what it cannot do" {
  run -0 tools/in-debian.sh --help
  [[ $output == "usage: tools/in-debian.sh "* ]]
  run -2 tools/in-debian.sh etch true
  [[ $output == *"'etch' is no suite"*"hint: it is bookworm or trixie"* ]]
  run -2 tools/in-debian.sh --with cake trixie true
  [[ $output == *"'cake': no such purpose"* ]]
  run -2 tools/in-debian.sh --cake trixie true
  [[ $output == *"unknown option '--cake'"* ]]
  run -66 tools/in-debian.sh --bind "$BATS_TEST_TMPDIR/none" trixie true
  if [ "$(id -u)" -eq 0 ]; then
    run -77 setpriv --reuid 65534 --clear-groups bash -s trixie true <tools/in-debian.sh
  else
    run -77 tools/in-debian.sh trixie true
  fi
  [[ $output == *"need root"*"hint: run it with sudo"* ]]
}

# A compiler that nobody has tried yet warns of something: so does this one, in every file.
@test "a warning stops the build only where that is asked for" {
  cd "$BATS_TEST_TMPDIR"
  echo '#warning "a new compiler finds something"' >warning.h
  configure() {
    CFLAGS="-include $PWD/warning.h" cmake -S "$WEFT_SOURCE_DIR" -B tree -G Ninja \
      -DWEFT_TESTS=OFF -DWEFT_TRAINER=OFF -DWEFT_MPI=OFF "$@" >/dev/null
  }
  configure
  run -0 cmake --build tree --target weft_device
  [[ $output == *"a new compiler finds something"* ]]
  configure -DWEFT_WERROR=ON
  run -1 cmake --build tree --target weft_device
  [[ $output == *"a new compiler finds something"* ]]
  # The Makefile asks for it when it is asked.
  cd "$WEFT_SOURCE_DIR"
  for target in build built-release built-fuzz; do
    run env -u WERROR -u MAKEFLAGS make --dry-run $target
    [[ $output == *-DWEFT_WERROR=OFF* ]]
    run env -u MAKEFLAGS WERROR=1 make --dry-run $target
    [[ $output == *-DWEFT_WERROR=ON* ]]
  done
}

# .ci/run in a tree whose commands do nothing but answer: fake_ci IN-DEBIAN-SCRIPT
fake_ci() {
  mkdir -p "$BATS_TEST_TMPDIR/"{tree/.ci,tree/tools,bin}
  cd "$BATS_TEST_TMPDIR/tree" || return 1
  cp "$WEFT_SOURCE_DIR/.ci/run" .ci/run
  printf '#!/bin/bash\n' >tools/install-deps.sh
  # shellcheck disable=SC2016
  printf '#!/bin/bash\n[[ $1 == test ]] && printf "skipped in release: one (why)\\n7 passed, 0 failed\\n" || echo "validation 1.4 on text that it has not seen"\n' \
    >../bin/make
  printf '#!/bin/bash\n%s\n' "$1" >tools/in-debian.sh
  chmod +x tools/*.sh ../bin/make
  PATH=$BATS_TEST_TMPDIR/bin:$PATH
}

@test "ci runs both of the README's commands on both systems, and says what came of them" {
  # shellcheck disable=SC2016
  fake_ci '[[ $1 == --prepare ]] || "${@:2}"'
  run -0 .ci/run
  [ "$(grep -c '^[^=].* make test .*7 passed, 0 failed, 1 skipped$' <<<"$output")" -eq 3 ]
  [[ $output == *"bare Debian 13"*"make test"*"bare Debian 12"*"make test"*"bare Debian 12"*"make train"*"bare Debian 13"*"make train"* ]]
  [[ ${lines[-1]} =~ ^all\ of\ it\ took\ [0-9]+\ s$ ]]
}

@test "ci fails when a system cannot be made, and when a suite ends without its count" {
  # shellcheck disable=SC2016
  fake_ci '[[ $* != *bookworm* ]] || exit 69; [[ $1 == --prepare ]] || "${@:2}"'
  run -1 .ci/run
  [[ $output == *"bare Debian 12 "*"make train"*"FAILED with status 69"* ]]
  # shellcheck disable=SC2016
  fake_ci '[[ $* != "trixie make test" ]] || exit 0; [[ $1 == --prepare ]] || "${@:2}"'
  run -1 .ci/run
  [[ $output == *"bare Debian 13 "*"make test"*"FAILED with status 0"* ]]
}
