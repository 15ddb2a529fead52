#!/bin/bash
# Everything that can be said about the sources without running them: their
# format, the scripts, a build without warnings by gcc and by clang, clang-tidy.
# Goes through all of it before it fails.
#
#     tools/lint.sh [--tidy FILE...]
#
# clang-tidy takes half an hour of a core for all files. What it has found clean is kept in
# build-clang/tidy and not looked at again until the file, a header of it, or .clang-tidy
# changes: a run that was stopped goes on, and a second one takes a minute. --tidy looks at
# these files only.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

failed=()
check() {
  printf '== lint: %s\n' "$1"
  "${@:2}" || failed+=("$1")
}

build_with() {
  tools/configure.sh "$1" && cmake --build --preset "$1" -- --quiet
}

# What the clang build leaves out, the fuzzers, is compiled with these.
flags=(-UNDEBUG) # asserts tell the analyzer what cannot be
for folder in include src src/cli . trainer bench tests/*/ trainer/tests; do
  flags+=("-I$PWD/$folder")
done

# All that a verdict on the file depends on, as one number. Comments count: NOLINT is one.
hash_of() { # FILE
  { cat .clang-tidy && clang-tidy --version && printf '%s\n' "${flags[@]}" &&
    clang -E -C -P -w -std=c11 -D_POSIX_C_SOURCE=200809L "${flags[@]}" "$1" 2>/dev/null; } | md5sum
}

tidy_file() { # FILE
  local stamp=build-clang/tidy/$1 hash
  hash=$(hash_of "$1")
  if [[ -e $stamp && $(<"$stamp") == "$hash" ]]; then
    return 0
  fi
  clang-tidy -p build-clang --quiet "${flags[@]/#/--extra-arg=}" "$1" 2> >(grep -v 'warnings\? generated' >&2) || return
  mkdir -p "${stamp%/*}"
  echo "$hash" >"$stamp"
}

tidy() {
  find src trainer bench tests -name '*.c' ! -path 'tests/consumer/*' -print0 | sort -z |
    xargs -0 -r -n 1 -P "$(nproc)" tools/lint.sh --tidy
}

scripts() {
  shellcheck .ci/run tools/*.sh && find tests trainer -name '*.bats' -print0 | xargs -0 -r shellcheck
}

if [[ ${1:-} == --tidy ]]; then
  status=0
  for file in "${@:2}"; do
    tidy_file "$file" || status=1
  done
  exit $status
fi

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
