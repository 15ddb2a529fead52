# Waits with a deadline for tests: `load ../setup/wait_setup`. A wait that takes too long
# fails, and says what it waited for.
# shellcheck shell=bash disable=SC2034

# await SECONDS WHAT COMMAND...: repeats the command until it succeeds.
await() {
  local until=$((SECONDS + $1))
  until "${@:3}"; do
    if [ "$SECONDS" -gt "$until" ]; then
      echo "waited $1 s for $2" >&2
      return 1
    fi
    sleep 0.02
  done
}

has_ended() {
  ! kill -0 "$1" 2>/dev/null
}

# await_end SECONDS PID WHAT: waits for the end of a background process and sets $status; one
# that takes too long is killed.
await_end() {
  status=0
  if ! await "$1" "the end of $3" has_ended "$2"; then
    kill -KILL "$2" 2>/dev/null || true
    return 1
  fi
  wait "$2" || status=$?
}

# has_open PID FILE: whether the process has the file open.
has_open() {
  local fd
  for fd in "/proc/$1/fd"/*; do
    [ ! "$fd" -ef "$2" ] || return 0
  done
  return 1
}
