#!/bin/bash
# Everything that can be said about the sources without running them: their
# format, the scripts, a build without warnings by gcc and by clang, clang-tidy.
# Goes through all of it before it fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

failed=()
check() {
  printf '== lint: %s\n' "$1"
  "${@:2}" || failed+=("$1")
}

build_with() {
  cmake --preset "$1" --log-level=WARNING >/dev/null && cmake --build --preset "$1" -- --quiet
}

# With asserts on: they tell the analyzer what cannot be. The folders are for what the clang
# build leaves out, the fuzzers.
tidy() {
  find src app bench tests -name '*.c' ! -path 'tests/consumer/*' -print0 | sort -z |
    xargs -0 -r -n 1 -P "$(nproc)" \
      clang-tidy -p build-clang --quiet --extra-arg=-UNDEBUG --extra-arg="-I$PWD/include" \
      --extra-arg="-I$PWD/src" --extra-arg="-I$PWD/app" 2> >(grep -v 'warnings\? generated' >&2)
}

scripts() {
  shellcheck .ci/run tools/*.sh && find tests -name '*.bats' -print0 | xargs -0 -r shellcheck
}

check clang-format tools/format.sh --check
check shellcheck scripts
check gcc build_with gcc
check clang build_with clang
check clang-tidy tidy

if [[ ${#failed[@]} -gt 0 ]]; then
  echo "lint failed: ${failed[*]}" >&2
  exit 1
fi
echo "lint: all good"
