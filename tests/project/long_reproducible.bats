#!/usr/bin/env bats
# The same sources give the same bytes, wherever they and the build are.
bats_require_minimum_version 1.5.0

@test "what is installed has the same bytes, built in another folder from another folder" {
  cd "$BATS_TEST_TMPDIR"
  mkdir -p a much/longer/name
  (cd "$WEFT_SOURCE_DIR" && tar -c --exclude='./build*' --exclude=./.git .) | tar -x -C much/longer/name
  build_of() { # SOURCE BUILD PREFIX
    CCACHE_DISABLE=1 cmake -S "$1" -B "$2" -G Ninja -DBUILD_TESTING=OFF >/dev/null
    CCACHE_DISABLE=1 cmake --build "$2" --target product >/dev/null
    cmake --install "$2" --prefix "$PWD/$3" >/dev/null
    # The playground is not part of `product`, and shown by its own module.
    rm -rf "$3/share/weft"
  }
  build_of "$WEFT_SOURCE_DIR" a/build first
  build_of much/longer/name much/longer/name/out second
  diff -r first second
}
