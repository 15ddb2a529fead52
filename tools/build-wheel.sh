#!/bin/bash
# Builds the wheel of the Python package into build/wheel:
#
#     tools/build-wheel.sh [PYTHON]
#     tools/build-wheel.sh --manylinux
#
# Without --manylinux it links the libraries of the release build, and the wheel is for systems
# with a glibc as new as this one's: auditwheel, where it is there, says which. With it, the
# libraries are compiled again for glibc 2.28, by the C compiler of the package ziglang, which has
# the symbols of every glibc: the wheel is for any Linux since 2018.
#
# PYTHON runs the build; without it a virtual environment in build/wheel does, whose packages
# come from PyPI, in the versions and with the hashes of python/wheel-tools.txt. The last line printed is the path of the wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$PWD/build/wheel
manylinux=
if [[ ${1:-} == --manylinux ]]; then
  manylinux=2_28
  shift
fi
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
  "$python" -m pip install --quiet --disable-pip-version-check --require-hashes \
    -r python/wheel-tools.txt ${manylinux:+-r python/wheel-compiler.txt}
fi

made=$(mktemp -d "$folder/made.XXXXXX")
trap 'rm -rf "$made"' EXIT
settings=(--config-settings=cmake.define.WEFT_BUILD_DIR="$PWD/build")
if [[ -n $manylinux ]]; then
  # The compiler looks for nothing in /usr: it gets jansson's headers and archive.
  read -ra headers < <(pkg-config --variable=includedir jansson)
  find "${headers[0]}" -name 'jansson*.h' -exec cp {} "$made" \;
  printf '#!/bin/sh\nexec "%s" -m ziglang cc -target %s-linux-gnu.%s -I"%s" "$@"\n' \
    "$python" "$(uname -m)" "${manylinux/_/.}" "$made" >"$made/cc"
  chmod +x "$made/cc"
  export CC=$made/cc
  unset CMAKE_C_COMPILER_LAUNCHER
  archive=$(pkg-config --variable=libdir jansson)/libjansson.a
  settings=(--config-settings=cmake.define.JANSSON_ARCHIVE="$archive")
fi
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  "${settings[@]}" --wheel-dir "$made" ./python
rm -f "$folder"/*.whl
PATH=$(dirname "$python"):$PATH
if ! "$python" -m auditwheel repair ${manylinux:+--plat "manylinux_${manylinux}_$(uname -m)"} \
  --wheel-dir "$folder" "$made"/*.whl >"$made/log" 2>&1; then
  if [[ -n $manylinux ]]; then
    cat "$made/log" >&2
    exit 70
  fi
  mv "$made"/*.whl "$folder"
fi
ls "$folder"/*.whl
