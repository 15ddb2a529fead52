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

# await_handlers PID: waits until the process catches SIGINT and SIGTERM. Before that they would
# end it without a word, however long a busy machine takes to start it.
await_handlers() {
  await 60 "process $1 to catch SIGINT and SIGTERM" catches_signals "$1"
}
catches_signals() {
  local caught
  caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status") &&
    (((16#${caught:-0} & 0x4002) == 0x4002))
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
