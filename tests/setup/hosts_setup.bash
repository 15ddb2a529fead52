# Machines for tests: `load hosts_setup`. A host has a network namespace, a name, a boot id,
# process numbers (but for the first host, where launchers are started: a process can only
# enter a PID namespace below its own), a /dev/shm and a temporary folder of its own. What it
# shares with the others is the rest of the file system. Two networks join the hosts, `control` for
# launchers (10.77.0.N) and `data` for messages (10.77.1.N); `data` can be slow, lossy, and
# cut.
#
# All of it lives in one sandbox: a PID namespace whose first process gets SIGKILL when the test
# ends, however it ends; then the kernel ends everything else in the sandbox and takes the
# networks away.
# shellcheck shell=bash
load "${BASH_SOURCE[0]%/*}/wait_setup"

# hosts_missing: prints what is missing for such hosts on this machine; fails when nothing is.
hosts_missing() {
  local tool probe status=0
  for tool in ip unshare nsenter setpriv ss; do
    command -v $tool >/dev/null || { echo "there is no command '$tool'"; return 0; }
  done
  [ "$(id -u)" -eq 0 ] || { echo "network namespaces with TUN devices need root"; return 0; }
  unshare --net --pid --fork ip link add test type veth peer name tset 2>/dev/null ||
    { echo "this kernel or container gives no network namespaces with virtual links"; return 0; }
  # Entering a mount namespace resets the root of a process to that of the namespace.
  probe=$(mktemp "${BATS_FILE_TMPDIR:-/tmp}/probe.XXXXXX")
  nsenter --target $$ --mount -- test -e "$probe" 2>/dev/null || status=$?
  rm "$probe"
  [ $status -eq 0 ] || { echo "this is a chroot, which 'nsenter --mount' would leave"; return 0; }
  return 1
}

# hosts_begin NAME...: hosts of these names, joined by both networks; exports $HOSTS.
# Options of the data network before the names, in the words of the wire program:
# --delay MS, --jitter MS, --loss PERCENT, --rate MBIT, --seed N.
hosts_begin() {
  local options=()
  while [[ $1 == --* ]]; do
    options+=("$1" "$2")
    shift 2
  done
  HOSTS=$(mktemp -d "${BATS_FILE_TMPDIR:-/tmp}/hosts.XXXXXX")
  export HOSTS
  printf '%s\n' "$@" >"$HOSTS/names"
  mkdir "$HOSTS/tmp"
  if ! { hosts_open_sandbox && hosts_start "$@" && hosts_join_control &&
    hosts_join_data "${options[@]}" && hosts_in_sandbox ps -e -o pid= >"$HOSTS/own"; }; then
    echo "the hosts $* could not be started" >&2
    hosts_end
    unset HOSTS
    return 1
  fi
}

# The first process of the sandbox stays bash, which waits for orphans as init does.
hosts_open_sandbox() {
  # shellcheck disable=SC2016
  setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc \
    bash -c 'ip link set lo up; : >"$HOSTS/up"; sleep infinity; :' 3>&- &
  echo $! >"$HOSTS/keeper"
  await 20 "the first process of the sandbox" test -e "$HOSTS/up" || return 1
  { cat "/proc/$!/task/$!/children"; echo; } >"$HOSTS/sandbox"
}

# (bats waits for whoever has its descriptor 3. With $HOSTS_STAYS="exec", for what goes on in
# the background, no shell waits for it, which would tell of its end.)
hosts_in_sandbox() {
  local sandbox
  read -r sandbox _ <"$HOSTS/sandbox"
  ${HOSTS_STAYS:-} nsenter --target "$sandbox" --net --mount --pid -- env --chdir="$PWD" "$@" 3>&-
}

# What the first process of a host does: names in $1, $2 its boot id. In /proc/self/stat is
# its number in the sandbox, as long as that is the sandbox's /proc.
# shellcheck disable=SC2016
HOSTS_INIT='
  read -r pid _ </proc/self/stat && mount -t proc proc /proc && mount -t sysfs sys /sys &&
  mount -t tmpfs shm /dev/shm && mount -t tmpfs tmp "$HOSTS/tmp" &&
  mount --bind "$HOSTS/etc_hosts" /etc/hosts &&
  mount --bind "$HOSTS/$1.boot_id" /proc/sys/kernel/random/boot_id &&
  hostname "$1" && ip link set lo up && echo "$pid" >"$HOSTS/$1.pid" && sleep infinity; :'

hosts_start() {
  local host pid_space=()
  { echo "127.0.0.1 localhost"
    for host in "$@"; do echo "10.77.0.$(hosts_number "$host") $host"; done; } >"$HOSTS/etc_hosts"
  for host in "$@"; do
    cat /proc/sys/kernel/random/uuid >"$HOSTS/$host.boot_id"
    HOSTS_STAYS="exec" hosts_in_sandbox unshare --net --uts --ipc --mount "${pid_space[@]}" \
      bash -c "$HOSTS_INIT" host "$host" &
    disown
    await 20 "the first process of host '$host'" test -s "$HOSTS/$host.pid" || return 1
    pid_space=(--pid --fork --kill-child)
  done
}

# hosts_number HOST: 1, 2, ...
hosts_number() {
  awk -v name="$1" '$1 == name { print NR; found = 1 } END { exit !found }' "$HOSTS/names"
}

hosts_names() {
  cat "$HOSTS/names"
}

# hosts_on HOST COMMAND...: there, in the sandbox, which ends with the test.
hosts_on() {
  hosts_in_sandbox "$WEFT_SOURCE_DIR/tests/hosts/on_host" "$@"
}

# hosts_plug HOST NETWORK: a virtual cable from the host to the bridge of that name.
hosts_plug() {
  local number
  number=$(hosts_number "$1")
  hosts_in_sandbox ip link add "$2$number" type veth peer name "$2" netns "$(cat "$HOSTS/$1.pid")"
  hosts_in_sandbox ip link set "$2$number" master "$2" up
}

hosts_join_control() {
  local host
  hosts_in_sandbox ip link add control type bridge
  hosts_in_sandbox ip link set control up
  for host in $(hosts_names); do
    hosts_plug "$host" control
    hosts_address "$host" control 0
  done
}

# hosts_address HOST NETWORK THIRD
hosts_address() {
  hosts_on "$1" ip address add "10.77.$3.$(hosts_number "$1")/24" dev "$2"
  hosts_on "$1" ip link set "$2" up
}


# Whether this kernel can delay and lose packets itself.
hosts_has_netem() {
  hosts_in_sandbox ip link add probe type dummy 2>/dev/null &&
    hosts_in_sandbox tc qdisc add dev probe root netem delay 1ms 2>/dev/null
}

# Plain virtual cables when nothing is asked of them; else netem on them where the kernel has
# it, else the wire program. hosts_link prints which.
hosts_join_data() {
  local host link=wire
  if [ $# -eq 0 ]; then
    link=veth
  elif hosts_has_netem; then
    link=netem
  fi
  echo $link >"$HOSTS/link"
  if [ $link = wire ]; then
    hosts_join_wire "$@"
  else
    hosts_join_veth "$@"
  fi
  for host in $(hosts_names); do
    hosts_address "$host" data 1
  done
  echo "# data network of $(hosts_names | tr '\n' ' '): $link $*"
}

hosts_link() {
  cat "$HOSTS/link"
}

hosts_join_veth() {
  local host
  hosts_in_sandbox ip link add data type bridge
  hosts_in_sandbox ip link set data up
  for host in $(hosts_names); do
    hosts_plug "$host" data
    if [ $# -gt 0 ]; then
      # shellcheck disable=SC2046
      hosts_on "$host" tc qdisc add dev data root netem $(hosts_netem_words "$@")
    fi
  done
}

# The wire's options in the words of tc. (Netem has no seed before Linux 6.6.)
hosts_netem_words() {
  local delay=0 jitter=0 loss=0 rate=
  while [ $# -gt 0 ]; do
    case $1 in
      --delay) delay=$2 ;;
      --jitter) jitter=$2 ;;
      --loss) loss=$2 ;;
      --rate) rate=$2 ;;
    esac
    shift 2
  done
  echo "delay ${delay}ms ${jitter}ms loss $loss%${rate:+ rate ${rate}mbit}"
}

hosts_join_wire() {
  local host pids=() answer
  for host in $(hosts_names); do
    pids+=("$(cat "$HOSTS/$host.pid")")
  done
  mkfifo "$HOSTS/orders" "$HOSTS/answers"
  HOSTS_STAYS="exec" hosts_in_sandbox "$WEFT_BUILD_DIR/tests/wire" "$@" data "${pids[@]}" \
    0<>"$HOSTS/orders" 1<>"$HOSTS/answers" &
  disown
  if ! read -r -t 60 answer <"$HOSTS/answers" || [ "$answer" != ready ]; then
    echo "waited 60 s for the wire program to be ready" >&2
    return 1
  fi
}

# hosts_order WORDS: sends an order to the wire program; its answer goes to standard output.
hosts_order() {
  local answer
  echo "$*" >"$HOSTS/orders"
  read -r -t 60 answer <"$HOSTS/answers" ||
    { echo "waited 60 s for the wire program to answer '$*'" >&2; return 1; }
  echo "$answer"
}

# hosts_cut HOST, hosts_mend HOST: its cable to the data network. Nobody is told: packets do
# not arrive any more.
hosts_cut() {
  if [ "$(hosts_link)" = wire ]; then
    [ "$(hosts_order cut "$(hosts_number "$1")")" = "cut $(hosts_number "$1")" ]
  else
    hosts_in_sandbox ip link set "data$(hosts_number "$1")" nomaster
  fi
}
hosts_mend() {
  if [ "$(hosts_link)" = wire ]; then
    [ "$(hosts_order mend "$(hosts_number "$1")")" = "mend $(hosts_number "$1")" ]
  else
    hosts_in_sandbox ip link set "data$(hosts_number "$1")" master data
  fi
}

# hosts_power_off HOST: all of its processes are gone at once, and nobody answers for it. Not
# for the first host.
hosts_power_off() {
  hosts_in_sandbox ip link set "control$(hosts_number "$1")" nomaster
  hosts_cut "$1"
  hosts_in_sandbox kill -KILL "$(cat "$HOSTS/$1.pid")"
}

# hosts_left: what is left of jobs: processes, files in /dev/shm and temporary folders,
# sockets of theirs; nothing when all have tidied up.
hosts_left() {
  local host
  hosts_in_sandbox ps -e -o pid=,stat=,args= |
    awk 'NR == FNR { own[$1]; next } !($1 in own) && $3 != "ps" { print "process", $0 }' "$HOSTS/own" -
  for host in $(hosts_names); do
    # shellcheck disable=SC2016
    hosts_on "$host" bash -c 'find /dev/shm "$TMPDIR" -mindepth 1; ss -Hatuxp | grep users:' |
      sed "s/^/$host: /"
  done
}

# hosts_end: all of it goes.
hosts_end() {
  local keeper
  read -r keeper <"$HOSTS/keeper"
  kill -KILL "$keeper"
  wait "$keeper" 2>/dev/null || true
  rm -rf "$HOSTS"
}
