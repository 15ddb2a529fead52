#!/bin/bash
# Installs, through apt-get, what is missing for a purpose:
#
#     tools/install-deps.sh build|check|command|test|gates|lint|playground
#
# check: what `make check` needs; command: `make test-command`; test: `make test`; gates:
# tools/gates.sh.
# Silent, and touches nothing, when all is there. With WEFT_NO_INSTALL in the environment, or
# without root, it prints the command that installs the packages, and ends with status 69.
set -euo pipefail

purpose=${1:-build}
build=(cmake ninja gcc libc jansson pkg-config openblas) # an MPI is used where there is one
mpis=(openmpi-run openmpi mpich-run mpich)
command=("${build[@]}" "${mpis[@]}" g++ cmocka bats git jq ip ps strace python3)
playground=(clang gzip wasm-ld wasm-libc wasm-rt) # C to WebAssembly
case $purpose in
  build) wanted=("${build[@]}") ;;
  check) wanted=("${build[@]}" cmocka bats jq) ;;
  command) wanted=("${command[@]}") ;;
  # Browsers, for the HTML timeline and the playground: the largest by far.
  test)  wanted=("${command[@]}" clang-rt python3-venv "${playground[@]}" chromium chromedriver firefox-esr node) ;;
  gates) wanted=("${build[@]}" cmocka bats jq python3 valgrind) ;;
  playground) wanted=("${playground[@]}") ;;
  lint)  wanted=("${build[@]}" "${mpis[@]}" g++ clang cmocka clang-format clang-tidy shellcheck) ;;
  *)
    echo "usage: $0 build|check|command|test|gates|lint|playground" >&2
    exit 2
    ;;
esac

# clang's run-time libraries stand in a package that carries its version, which is that of the
# default clang. A system that never ran apt-get update does not know it yet.
clang_runtime_package() {
  local version
  version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]\+\)$/\1/p' | head -n 1)
  if [[ -z $version ]]; then
    # shellcheck source=/dev/null
    case $(. /etc/os-release 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}") in
      "debian 13") version=19 ;;
      "ubuntu 24.04") version=18 ;;
      *) version=14 ;;
    esac
  fi
  echo "libclang-rt-$version-dev${1:-}"
}

is_there() {
  case $1 in
    libc)     [[ -e /usr/include/stdio.h ]] ;;
    jansson)  [[ -e /usr/include/jansson.h ]] ;;
    cmocka)   [[ -e /usr/include/cmocka.h ]] ;;
    openblas) pkg-config --exists openblas 2>/dev/null ;;
    openmpi)  [[ -e $(mpicc.openmpi -showme:incdirs 2>/dev/null | cut -d ' ' -f 1)/mpi.h ]] ;;
    openmpi-run) command -v mpirun.openmpi >/dev/null ;;
    mpich)    [[ -e $(mpicc.mpich -show 2>/dev/null | tr ' ' '\n' | sed -n 's/^-I//p' | head -n 1)/mpi.h ]] ;;
    mpich-run) command -v mpirun.mpich >/dev/null ;;
    clang-rt) clang -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null \
                <<<'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9; }' ;;
    wasm-libc) [[ -e /usr/include/wasm32-wasi/stdio.h ]] ;;
    wasm-rt)  clang --target=wasm32-wasi -x c - -o /dev/null 2>/dev/null <<<'int main(void) { return 0; }' ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    *)        command -v "$1" >/dev/null ;;
  esac
}

package_of() {
  case $1 in
    ninja)    echo ninja-build ;;
    libc)     echo libc6-dev ;;
    jansson)  echo libjansson-dev ;;
    cmocka)   echo libcmocka-dev ;;
    openblas) echo libopenblas-dev ;;
    openmpi)  echo libopenmpi-dev ;;
    openmpi-run) echo openmpi-bin ;;
    mpich)    echo libmpich-dev ;;
    mpich-run) echo mpich ;;
    ip)       echo iproute2 ;;
    ps)       echo procps ;;
    chromedriver) echo chromium-driver ;;
    clang-rt) clang_runtime_package ;;
    wasm-ld)  echo lld ;;
    wasm-libc) echo wasi-libc ;;
    wasm-rt)  clang_runtime_package -wasm32 ;;
    node)     echo nodejs ;;
    *)        echo "$1" ;;
  esac
}

missing=()
for thing in "${wanted[@]}"; do
  is_there "$thing" || missing+=("$thing")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

packages() {
  local thing
  for thing in "${missing[@]}"; do
    package_of "$thing"
  done | sort -u | paste -sd ' '
}

refuse() { # REASON
  echo "missing: ${missing[*]}; $1" >&2
  if [[ -e /etc/debian_version ]]; then
    echo "  hint: install them, as root, with: apt-get install --no-install-recommends $(packages)" >&2
  fi
  exit 69
}

as_root=()
if [[ -n ${WEFT_NO_INSTALL:-} ]]; then
  refuse "WEFT_NO_INSTALL is set, so nothing is installed"
elif ! command -v apt-get >/dev/null; then
  refuse "there is no apt-get here, so please install them"
elif [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || refuse "installing needs root, and there is no sudo"
  echo "missing: ${missing[*]}; installing them takes sudo (WEFT_NO_INSTALL=1: prints the packages instead)"
  sudo -v || refuse "installing needs root, and sudo gives none"
  as_root=(sudo)
fi

"${as_root[@]}" apt-get update -q
read -ra chosen < <(packages)
echo "installing by apt-get: ${chosen[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -q -y --no-install-recommends "${chosen[@]}"

for thing in "${missing[@]}"; do
  if ! is_there "$thing"; then
    echo "$thing is still missing after apt-get install $(package_of "$thing")" >&2
    exit 69
  fi
done
