#!/usr/bin/env bats
# What packagers ask of the build (docs/install.md). Little is built here.
# Not under sanitizers: it is about files, pages and other programs.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

# A toolchain that says so makes a cross build, whatever its compiler is for. One folder for all
# tests: a compiler is looked at once.
cross() {
  tree=$BATS_FILE_TMPDIR/tree
  printf 'set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR other)\n' >"$BATS_FILE_TMPDIR/other.cmake"
  cmake -G Ninja -S "$WEFT_SOURCE_DIR" -B "$tree" --toolchain "$BATS_FILE_TMPDIR/other.cmake" \
    -DWEFT_MPI=OFF -DWEFT_TRAINER=OFF -DWEFT_PLAYGROUND=OFF -DBUILD_TESTING=OFF \
    -UWEFT_HOST_COMMAND -UCMAKE_CROSSCOMPILING_EMULATOR "$@" >configured
}

manual=(man/man1/weft.1 bash-completion/completions/weft zsh/site-functions/_weft fish/vendor_completions.d/weft.fish)

@test "a cross build does not run its own command: the host's writes the manual" {
  printf '#!/bin/sh\necho "$1" >>%s\nexec %s "$@"\n' "$PWD/asked" "$WEFT" >host
  chmod +x host
  cross -DWEFT_HOST_COMMAND=host
  lacks 'built without the man page' configured
  cmake --build "$tree" --target weft_manual >/dev/null
  [ ! -e "$tree/weft" ]
  for file in "${manual[@]}"; do
    cmp "$tree/share/$file" "$WEFT_BUILD_DIR/share/$file"
  done
  [ "$(grep -c '^help$' asked)" -eq 4 ]
}

@test "a cross build without a command for this machine leaves the manual out, and says so" {
  cross
  has 'without WEFT_HOST_COMMAND: built without the man page and completions' configured
  cmake --build "$tree" --target weft_manual >/dev/null
  lacks 'help --man' "$tree/build.ninja"
  # With an emulator it does run its own.
  cross -DCMAKE_CROSSCOMPILING_EMULATOR=/usr/bin/env
  has '/usr/bin/env .*weft help --man' "$tree/build.ninja"
}

@test "a cross build refuses a host command that is another version, or does not run" {
  printf '#!/bin/sh\necho weft 9.9.9\n' >host
  chmod +x host
  run -1 cross -DWEFT_HOST_COMMAND=host
  [[ ${output//$'\n'/ } == *"found 'weft 9.9.9'"* ]]
  run -1 cross -DWEFT_HOST_COMMAND="$PWD/none"
  [[ $output == *"WEFT_HOST_COMMAND="* ]]
}

@test "a cross build refuses the jansson of another machine when it is configured" {
  mkdir pc
  echo 'not for that machine' >pc/libjansson.so
  cp "$(pkg-config --variable=includedir jansson)"/jansson*.h pc
  printf 'Name: jansson\nDescription: -\nVersion: 2.14\nLibs: -L%s -ljansson\nCflags: -I%s\n' "$PWD/pc" "$PWD/pc" \
    >pc/jansson.pc
  PKG_CONFIG_LIBDIR=$PWD/pc run -1 cross -B "$PWD/b"
  [[ ${output//$'\n'/ } == *"$PWD/pc/libjansson.so,"*"cannot be linked for other:"*"PKG_CONFIG_LIBDIR"* ]]
}

@test "jansson's header may be where only pkg-config says" {
  mkdir pc
  cp "$(pkg-config --variable=includedir jansson)"/jansson*.h pc
  sed "s|^Cflags:.*|Cflags: -I$PWD/pc|" "$(pkg-config --variable=pcfiledir jansson)/jansson.pc" >pc/jansson.pc
  PKG_CONFIG_LIBDIR=$PWD/pc cross -B "$PWD/b"
  cmake --build b --target weft_spec weft_flight weft_run >/dev/null
  ninja -C b -t deps >listed
  has "$PWD/pc/jansson.h" listed
  lacks ' /usr/include/jansson.h' listed
}

@test "BUILD_TESTING=OFF leaves the tests out, and so does a cross build that is not asked for them" {
  cross -DWEFT_TESTS=ON # as a folder has it that was configured before
  ninja -C "$tree" -t targets all >targets.txt
  has '^weft: ' targets.txt
  lacks 'test_' targets.txt
  cross -UBUILD_TESTING -UWEFT_TESTS
  ninja -C "$tree" -t targets all >targets.txt
  has '^weft: ' targets.txt
  lacks 'test_' targets.txt
}

@test "a build without cmocka leaves the tests out, and says so" {
  mkdir root
  cross -B "$PWD/b" -DBUILD_TESTING=ON -DWEFT_TESTS=ON -DCMAKE_FIND_ROOT_PATH="$PWD/root" -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY
  has 'no cmocka .libcmocka-dev.: built without the tests' configured
  ninja -C b -t targets all >targets.txt
  has '^weft: ' targets.txt
  lacks 'test_' targets.txt
  mkdir -p root/usr/include
  touch root/usr/include/cmocka.h
  cross -B "$PWD/b" -DBUILD_TESTING=ON # it has come meanwhile
  lacks 'without the tests' configured
}
