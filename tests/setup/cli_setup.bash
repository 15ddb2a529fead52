# For the tests of the command: `load cli_setup`.
# shellcheck disable=SC2154
bats_require_minimum_version 1.5.0
load "${BASH_SOURCE[0]%/*}/wait_setup"

# A folder of its own for each test.
setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  export LC_ALL=C
}

# weft WORDS: runs the command; $status, $output (stdout) and $stderr are set.
weft() {
  run --separate-stderr "$WEFT" "$@"
}

# fails STATUS TEXT...: the last command ended so, reported all of it, wrote no data.
fails() {
  local expected=$1 text
  shift
  if [ "$status" -ne "$expected" ]; then
    echo "status $status instead of $expected; stderr: $stderr" >&2
    return 1
  fi
  for text in "$@"; do
    if [[ $stderr != *"$text"* ]]; then
      echo "not reported: $text; but: $stderr" >&2
      return 1
    fi
  done
  [ "$output" = "" ] && [[ $stderr == "weft: "* ]]
}

# Every error comes with advice.
hints() {
  [[ $stderr == *$'\n'"  hint: "* ]]
}

# The last command succeeded, and had nothing to say beside its data.
succeeds() {
  if [ "$status" -ne 0 ] || [ "$stderr" != "" ]; then
    echo "status $status; stderr: $stderr" >&2
    return 1
  fi
}

# Whether a text is free of bytes that a terminal would obey.
is_clean() {
  if grep -q '[[:cntrl:]]' <<<"$1"; then
    return 1
  fi
}

# has TEXT FILE, lacks TEXT FILE. (bash ignores a failing `! grep` and the left
# side of &&, so these stand alone.)
has() {
  grep -q -e "$1" "$2" || { echo "no '$1' in $2" >&2; return 1; }
}
lacks() {
  if grep -q -e "$1" "$2"; then
    echo "'$1' is in $2" >&2
    return 1
  fi
}

# No temporary file of the command is left here.
is_tidy() {
  [ -z "$(find . -name '.weft-*')" ]
}

hang_table() {
  printf '%s\n' 0F0,0F1,0SEND_F0,0RECV_B0,0SEND_F1,0RECV_B1,0B0,0B1 \
    1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1
}

# differ_on FILE RANKS WORDS...: makes the script FILE, which executes its words, but on those
# ranks (a pattern) WORDS. Instead of 'mpirun ... : ...', on which Open MPI 5's launcher crashes.
differ_on() {
  local file=$1 ranks=$2
  shift 2
  printf '%s\n' '#!/bin/bash' "case \${OMPI_COMM_WORLD_RANK:-\$PMI_RANK} in $ranks) set -- ${*@Q} ;; esac" \
    'exec "$@"' >"$file"
  chmod +x "$file"
}

# Whether this Open MPI is 5 or later; its launcher is another one (PRRTE).
is_openmpi_5() {
  local version
  version=$(mpirun.openmpi --version | sed -n 's/.*(Open MPI) \([0-9]*\).*/\1/p')
  [ "${version:-0}" -ge 5 ]
}

# stuck_library CALLS: makes stuck.so. Preloaded (LD_PRELOAD), it keeps a forward of the trainer
# from returning: the attention's logf() stays in its first call after so many.
stuck_library() {
  cat >stuck.c <<END
#include <math.h>
#include <unistd.h>
static unsigned calls;
float logf(float x) {
  while (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) > $1) {
    (void)pause();
  }
  return (float)log(x);
}
END
  cc -std=gnu11 -O1 -fno-builtin -shared -fPIC -o stuck.so stuck.c -lm
}

# has_no_process TEXT: no command line has it.
has_no_process() {
  ! pgrep -f -- "$1" >/dev/null
}
