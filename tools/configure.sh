#!/bin/bash
# Configures the build of a preset (CMakePresets.json), silently:
#
#     tools/configure.sh PRESET [CMAKE-OPTION...]
#
# CMake refuses a build folder that came here with a copy of a checkout, or moved with it. What is
# in it belongs to another place, so it is removed, and a line says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=$1
shift
folder=build # as in CMakePresets.json
[[ $preset == release ]] || folder=build-$preset

if [[ -e $folder/CMakeCache.txt ]]; then
  made_for=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
  made_in=$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' "$folder/CMakeCache.txt")
  if [[ ! $made_for -ef . || ! $made_in -ef $folder ]]; then
    echo "$folder/ was made for $made_for: starting anew"
    rm -rf "$folder"
  fi
fi
cmake --log-level=WARNING --preset "$preset" "$@" >/dev/null
