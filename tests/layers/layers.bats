#!/usr/bin/env bats
# The law of the modules, tried out: a wrong include does not compile, an upward
# call does not link. The law is written here a second time, so that a slip in
# the build files shows.

modules=(base ir spec gen lower verify inspect sim render plan flight device comm run launch)

may_use() { # MODULE: the modules whose headers and functions it may use
  case $1 in
    base) echo base ;;
    ir) echo base ir ;;
    spec) echo base ir spec ;;
    lower) echo base ir spec lower ;;
    gen) echo base ir spec lower gen ;;
    verify) echo base ir spec verify ;;
    inspect) echo base ir spec verify inspect ;;
    sim) echo base ir spec verify inspect sim ;;
    render) echo base ir spec verify inspect sim render ;;
    plan) echo base ir spec gen lower verify inspect sim plan ;;
    flight) echo base ir spec lower verify inspect flight ;;
    device) echo base device ;;
    comm) echo base ir device comm ;;
    run) echo base ir spec device comm run ;;
    launch) echo base ir device comm launch ;;
    mpi) echo base ir device comm ;; # src/comm/mpi/driver: compiled against an MPI, with a test of its own
    cli) echo cli ;;
  esac
}

public_headers() {
  case $1 in
    base) echo base.h support.h ;;
    ir) echo ir.h event.h ;;
    spec) echo spec.h costs.h ;;
    gen) echo gen.h source.h ;;
    comm) echo tensor.h transport.h comm.h ;;
    plan) echo search.h choice.h compare.h target.h ;;
    *) echo "$1.h" ;;
  esac
}

# All headers below src, as sources include them: plan/problem/problem.h, render/svg/svg_document.h.
internal_headers() { (cd "$WEFT_SOURCE_DIR/src" && find . -name '*.h' ! -path './comm/mpi/driver/*' | sed 's|^./||' | sort); }

allowed() { [[ " $(may_use "$1") " == *" $2 "* ]]; }

setup() {
  # CC, and for each module INCLUDES_x, LAYER_x (what it is linked with) and OBJECTS_x.
  # shellcheck source=/dev/null
  source "$WEFT_BUILD_DIR/tests/law.sh"
  cd "$BATS_TEST_TMPDIR" || return 1
}

compiles() { # MODULE INCLUDE...: in the role of the module, with those includes
  local -n includes=INCLUDES_$1
  printf '#include %s\n' "${@:2}" >probe.c
  echo 'extern int nothing;' >>probe.c
  "$CC" -std=c11 -D_POSIX_C_SOURCE=200809L -fsyntax-only "${includes[@]}" probe.c >log 2>&1
}

# Wrong means: not found, or forbidden. Any other failure would be an accident.
is_refused() { # MODULE INCLUDE
  local -n includes=INCLUDES_$1
  echo "#include $2" >probe.c
  if "$CC" -E -o /dev/null "${includes[@]}" probe.c >log 2>&1; then
    echo "$1 can include $2"
    return 1
  fi
  grep -q 'No such file\|file not found\|may not include' log || { cat log; return 1; }
}

# As is_refused(), of public headers, each of which says so itself: in one run.
are_refused() { # MODULE INCLUDE...
  local -n includes=INCLUDES_$1
  [ $# -gt 1 ] || return 0
  printf '#include %s\n' "${@:2}" >probe.c
  "$CC" -E -o /dev/null "${includes[@]}" probe.c >log 2>&1 || true
  [ "$(grep -c 'error: .*may not include' log)" -eq $(($# - 1)) ] || { echo "$1 can include one of ${*:2}"; cat log; return 1; }
}

expect_includes() { # MODULE, and then OWNER INCLUDE, OWNER INCLUDE...
  local module=$1 right=() wrong=() public=()
  shift
  while [[ $# -gt 0 ]]; do
    if allowed "$module" "$1"; then
      right+=("$2")
    elif [[ $2 == '"'* ]]; then
      wrong+=("$2")
    elif [[ $1 == nobody ]]; then
      is_refused "$module" "$2" || return 1
    else
      public+=("$2")
    fi
    shift 2
  done
  are_refused "$module" "${public[@]}" || return 1
  finds_none "$module" "${wrong[@]}" || return 1
  compiles "$module" "${right[@]}" || { echo "in the role of $module:"; cat log; return 1; }
}

# Internal headers that the module may not use have no file in its include path. One
# preprocessor run looks for all of them.
finds_none() { # MODULE INCLUDE...
  local -n includes=INCLUDES_$1
  local include
  for include in "${@:2}"; do
    printf '#if __has_include(%s)\n#error %s can include %s\n#endif\n' "$include" "$1" "$include"
  done >probe.c
  "$CC" -E -o /dev/null "${includes[@]}" probe.c || return 1
}

@test "a module sees the public headers of what it may use, and no others" {
  local includes=(nobody '<weft/weft.h>')
  for owner in "${modules[@]}"; do
    for header in $(public_headers "$owner"); do
      includes+=("$owner" "<weft/$header>")
    done
  done
  for module in "${modules[@]}"; do
    expect_includes "$module" "${includes[@]}"
  done
}

@test "a module sees the internal headers of what it may use, and no others" {
  local includes=() path
  while read -r path; do
    includes+=("${path%%/*}" "\"$path\"")
  done < <(internal_headers)
  for module in "${modules[@]}"; do
    expect_includes "$module" "${includes[@]}"
  done
  local foreign=()
  for ((i = 0; i < ${#includes[@]}; i += 2)); do
    [[ ${includes[i]} == cli ]] || foreign+=("${includes[i + 1]}")
  done
  finds_none cli "${foreign[@]}"
}

@test "the command sees all public headers, and nothing of the benchmarks and the trainer" {
  compiles cli '<weft/weft.h>'
  is_refused cli '"bench/bench.h"'
  is_refused cli '"trainer/train/trainer.h"'
}

@test "benchmarks and the trainer see public headers and the command's, and nothing below" {
  compiles bench '<weft/weft.h>' '"cli/cli.h"' '"bench/bench.h"'
  is_refused bench '"trainer/train/trainer.h"'
  if [ -n "${INCLUDES_trainer+set}" ]; then
    compiles trainer '<weft/weft.h>' '"cli/cli.h"' '"bench/bench.h"' '"trainer/train/trainer.h"'
  fi
  mapfile -t below < <(internal_headers | sed '/^cli\//d; s/.*/"&"/')
  [ ${#below[@]} -gt 50 ]
  finds_none bench "${below[@]}"
  [ -z "${INCLUDES_trainer+set}" ] || finds_none trainer "${below[@]}"
}

@test "no include goes around the law through a path" {
  run grep -rnE '#[[:space:]]*include[[:space:]]*["<](/|.*\.\./)' \
    "$WEFT_SOURCE_DIR/src" "$WEFT_SOURCE_DIR/include"
  [ "$output" = "" ]
}

@test "the MPI drivers see what comm sees, and nobody else sees MPI" {
  for module in "${modules[@]}"; do
    for header in $(public_headers "$module"); do
      if allowed mpi "$module"; then
        compiles mpi "<weft/$header>" || { cat log; return 1; }
      else
        is_refused mpi "<weft/$header>"
      fi
    done
  done
  local foreign=()
  while read -r path; do
    allowed mpi "${path%%/*}" || foreign+=("\"$path\"")
  done < <(internal_headers)
  finds_none mpi "${foreign[@]}"
  run grep -rlE '#[[:space:]]*include[[:space:]]*<mpi\.h>' --exclude-dir=tests \
    "$WEFT_SOURCE_DIR/src" "$WEFT_SOURCE_DIR/include" "$WEFT_SOURCE_DIR/trainer"
  [[ $output == *src/comm/mpi/driver/* ]]
  [ "$(grep -v '/src/comm/mpi/driver/' <<<"$output")" = "" ]
}

@test "only spec and run include jansson" {
  run grep -rl 'jansson\.h' "$WEFT_SOURCE_DIR/src" "$WEFT_SOURCE_DIR/include"
  [[ $output == *src/spec/* ]]
  [ "$(grep -v '/src/spec/\|/src/run/' <<<"$output")" = "" ]
}

@test "every folder under src has its place in the law" {
  for path in "$WEFT_SOURCE_DIR"/src/*/; do
    path=${path%/}
    [ "$(may_use "${path##*/}")" != "" ]
  done
}

# A function of the module that is not static, whether public or internal.
a_function_of() {
  local -n objects=OBJECTS_$1
  nm --defined-only "${objects[@]}" | awk '$2 == "T" && $3 ~ /^weft_/ { print $3; exit }'
}

calls() { # FUNCTION...: compiles call.o, which calls them
  local function
  {
    printf 'void %s(void);\n' "$@"
    echo 'void weft_probe(void);'
    echo 'void weft_probe(void) {'
    printf '  %s();\n' "$@"
    echo '}'
  } >call.c
  "$CC" -fPIC -c call.c
}

@test "a call downward links, a call upward does not" {
  local -A functions
  for owner in "${modules[@]}"; do
    functions[$owner]=$(a_function_of "$owner")
    [ "${functions[$owner]}" != "" ]
  done
  for module in "${modules[@]}"; do
    local -n layer=LAYER_$module
    local down=() up=() function
    for owner in "${modules[@]}"; do
      function=${functions[$owner]}
      if allowed "$module" "$owner"; then
        down+=("$function")
      else
        up+=("$function")
      fi
    done
    calls "${down[@]}"
    "$CC" -shared -Wl,-z,defs -o probe.so call.o "${layer[@]}"
    [ ${#up[@]} -gt 0 ] || continue
    calls "${up[@]}"
    run "$CC" -shared -Wl,-z,defs -o probe.so call.o "${layer[@]}"
    [ "$status" -ne 0 ]
    for function in "${up[@]}"; do
      [[ $output == *"undefined reference to"*"$function"* ]] ||
        { echo "$module can call $function"; return 1; }
    done
  done
}

@test "gen cannot call weft_verify" {
  local -n gen=LAYER_gen verify=LAYER_verify
  calls weft_verify
  run "$CC" -shared -Wl,-z,defs -o probe.so call.o "${gen[@]}"
  [ "$status" -ne 0 ]
  [[ $output == *"undefined reference to"*weft_verify* ]]
  "$CC" -shared -Wl,-z,defs -o probe.so call.o "${verify[@]}"
}

@test "the command cannot call what is not public" {
  calls weft_bits_init
  run "$CC" -shared -Wl,-z,defs -o probe.so call.o "$WEFT_BUILD_DIR/lib/libweft.so"
  [ "$status" -ne 0 ]
  [[ $output == *weft_bits_init* ]]
  calls weft_version
  "$CC" -shared -Wl,-z,defs -o probe.so call.o "$WEFT_BUILD_DIR/lib/libweft.so"
}

@test "the build links every module against the law" {
  for module in "${modules[@]}"; do
    [ -e "$WEFT_BUILD_DIR/layers/libweft_layer_$module.so" ]
  done
  [ -x "$WEFT_BUILD_DIR/layers/weft_layer_weft_command" ]
  [ -x "$WEFT_BUILD_DIR/layers/weft_layer_weft_bench" ]
}
