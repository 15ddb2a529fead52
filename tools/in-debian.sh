#!/bin/bash
# Runs a command in a bare Debian of its own, on a copy of this tree. usage() explains it.
#
# The container is a mount, PID and IPC namespace with its own root (pivot_root, not chroot:
# tests enter mount namespaces, which would leave a chroot) and shares the network. Its mounts
# end with its last process, and that ends with this script, however the script ends.
# shellcheck disable=SC2317 # functions that traps and logged() call
set -euo pipefail
shopt -s inherit_errexit

usage() {
  cat <<'END'
usage: tools/in-debian.sh [OPTION...] SUITE COMMAND...

Runs COMMAND in a bare Debian SUITE (bookworm, trixie), in a copy of this working tree (what
git tracks or would add), and exits with its status. Root only. debootstrap makes the system,
from the mirror and with the proxy of this machine's apt; the network is shared.

  --with PURPOSE  begin with what 'tools/install-deps.sh PURPOSE' installs (build, command,
                  test, lint); without it only git and make are there
  --prepare       make and keep the systems that this command needs, run no command
  --bind FOLDER   show this folder of the machine inside, under the same path, writable
  --fresh         forget the kept systems of SUITE first
  --help          print this

Systems are kept in $WEFT_DEBIAN_CACHE, or else in the folder weft-debian of $XDG_CACHE_HOME or
~/.cache: about 0.4 GB for each SUITE and 3 GB with the purpose test. WEFT_DEBIAN_MIRROR is the
mirror to use instead of that of this machine's apt. Of the environment, COMMAND sees CI, JOBS,
PIP_CERT, TERM, WERROR and the proxies.

  tools/in-debian.sh trixie make train
  tools/in-debian.sh --with test trixie make test
  tools/in-debian.sh --with test trixie            # a shell, to look around
END
}

refuse() { # STATUS MESSAGE HINT
  printf 'in-debian.sh: %s\n  hint: %s\n' "$2" "$3" >&2
  exit "$1"
}

#
# Inside: this script is the first process of the namespaces.
#

# container_main ROOT SYSTEM UPPER BINDS COMMAND...: BINDS is a text of folders, one per line.
container_main() {
  local root=$1 system=$2 upper=$3 binds=$4 name folder
  shift 4
  # The system stays as it is; what is written goes to the upper folder.
  if [[ $upper != - ]]; then
    mount -t overlay weft -o "lowerdir=$system,upperdir=$upper,workdir=$upper.work" "$root"
  else
    mount --bind "$system" "$root"
  fi
  mount -t proc proc "$root/proc"
  mount -t sysfs sys "$root/sys"
  mount -t tmpfs -o mode=755 dev "$root/dev"
  mkdir "$root/dev/shm" "$root/dev/pts" "$root/dev/net"
  mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 pts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for name in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${name%:*}" "$root/dev/${name#*:}"
  done
  for name in null zero full random urandom tty net/tun; do
    if [[ -e /dev/$name ]]; then
      : >"$root/dev/$name"
      mount --bind "/dev/$name" "$root/dev/$name"
    fi
  done
  mount -t tmpfs -o mode=755 run "$root/run"
  while IFS= read -r folder; do
    [[ -n $folder ]] || continue
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
  done <<<"$binds"
  cd "$root"
  pivot_root . .
  umount -l .
  cd /
  # The first process ignores signals that it does not handle, so the command is not the first.
  local status=0
  (cd "$CONTAINER_FOLDER" && exec "$@") || status=$?
  exit "$status"
}

if [[ ${1:-} == --container ]]; then
  shift
  container_main "$@"
fi

#
# Outside.
#

purpose=bare binds='' fresh=false prepare=false
while [[ ${1:-} == -* ]]; do
  case $1 in
    --help | -h)
      usage
      exit 0
      ;;
    --with) purpose=${2:-} ;;
    --bind)
      [[ -d ${2:-} ]] || refuse 66 "--bind ${2:-}: there is no such folder" "give a folder of this machine"
      binds+=$(realpath "$2")$'\n'
      ;;
    --fresh) fresh=true ;;
    --prepare) prepare=true ;;
    *) refuse 2 "unknown option '$1'" "'tools/in-debian.sh --help' lists the options" ;;
  esac
  case $1 in --with | --bind) shift ;; esac
  [[ $# -gt 0 ]] || break
  shift
done
case $purpose in
  bare | build | command | test | lint) ;;
  *) refuse 2 "--with '$purpose': no such purpose" "it is build, command, test or lint" ;;
esac
suite=${1:-}
case $suite in
  bookworm | trixie) shift ;;
  *) refuse 2 "'$suite' is no suite that Weft knows" "it is bookworm or trixie; 'tools/in-debian.sh --help' explains" ;;
esac
[[ $# -gt 0 ]] || set -- bash
if [[ $(id -u) -ne 0 ]]; then
  refuse 77 "namespaces and debootstrap need root" "run it with sudo, which keeps its systems in root's cache"
fi
if ! unshare --mount --pid --ipc --fork true 2>/dev/null; then
  refuse 69 "this machine gives no mount and PID namespaces" \
    "in a container, allow them (docker run --privileged)"
fi

source_dir=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
script=$source_dir/tools/in-debian.sh
cache=${WEFT_DEBIAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weft-debian}
mkdir -p "$cache"

#
# What the container shares with this machine: where packages come from, and how.
#

release_of_machine() {
  # shellcheck source=/dev/null
  (. /etc/os-release && echo "${ID:-} ${VERSION_CODENAME:-}")
}

# machine_sources: the archives of this machine's own Debian, as lines "URI SUFFIX", where the
# suffix is what follows the name of the suite (-security).
machine_sources() {
  local id codename
  read -r id codename < <(release_of_machine)
  [[ $id == debian ]] || return 0
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk -v name="$codename" '$3 == "main" && ($2 == name || $2 == name "-updates" || $2 == name "-security") {
      print $1, substr($2, length(name) + 1) }' | sort -u
}

# write_sources FILE: the same archives with our suite. Without any, debootstrap's own stays.
write_sources() {
  local uri suffix lines
  if [[ -n ${WEFT_DEBIAN_MIRROR:-} ]]; then
    lines="deb $WEFT_DEBIAN_MIRROR $suite main"
  else
    lines=$(machine_sources | while read -r uri suffix; do echo "deb $uri $suite$suffix main"; done)
  fi
  [[ -z $lines ]] || echo "$lines" >"$1"
}

mirror() {
  if [[ -n ${WEFT_DEBIAN_MIRROR:-} ]]; then
    echo "$WEFT_DEBIAN_MIRROR"
  else
    machine_sources | awk 'NF == 1 { print $1; exit }'
  fi
}

# How apt here gets at them: proxies, limits, certificates; no passwords.
write_apt_settings() { # FILE
  apt-config dump 2>/dev/null |
    grep -E '^Acquire::((https?|ftp|socks)::|Retries|Check-Valid-Until|Queue-Mode|ForceIPv)' >"$1" || true
  echo 'Acquire::Languages "none";' >>"$1"
}

proxy_of_apt() { # http or https
  local proxy
  proxy=$(apt-config dump --format '%v' "Acquire::$1::Proxy" 2>/dev/null | head -n 1) || true
  [[ $proxy == DIRECT ]] || echo "$proxy"
}
for protocol in http https; do
  variable=${protocol}_proxy
  proxy=$(proxy_of_apt $protocol)
  if [[ -z ${!variable:-} && -n $proxy ]]; then
    export "$variable=$proxy"
  fi
done

# What belongs to this machine and changes: names and certificates.
share_settings() { # ROOT
  local file
  for file in /etc/resolv.conf /etc/hosts /etc/hostname /etc/ssl/certs/ca-certificates.crt; do
    if [[ -e $file ]]; then
      mkdir -p "$1${file%/*}"
      rm -f "$1$file"
      cp -L "$file" "$1$file"
    fi
  done
}

#
# Containers.
#

work='' child=''
clean_up() {
  local k
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    kill -KILL "$child" 2>/dev/null || true # and with it all processes inside
    wait "$child" 2>/dev/null || true
  fi
  # They go in a moment, and until then may still write.
  for ((k = 0; k < 50; k++)); do
    if [[ -z $work ]] || rm -rf "$work" 2>/dev/null; then
      break
    fi
    sleep 0.1
  done
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# isolated COMMAND...: in namespaces of its own, whose processes end with this script. It runs
# in the background, so that a signal for this script is handled at once; bash then ignores
# SIGINT for it and takes its standard input away, and both are given back here.
isolated() {
  local status=0
  setpriv --pdeathsig KILL env --default-signal=INT,QUIT \
    unshare --mount --pid --ipc --fork --kill-child "$@" <&0 7>&- 8>&- 9>&- &
  child=$!
  wait "$child" || status=$?
  child=''
  return "$status"
}

# in_container SYSTEM UPPER FOLDER COMMAND...: its status. UPPER as in container_main.
in_container() {
  local system=$1 upper=$2 folder=$3 variable kept=()
  shift 3
  for variable in $(compgen -e | grep -E '^(CI|JOBS|PIP_CERT|TERM|WERROR|https?_proxy|no_proxy)$'); do
    kept+=("$variable=${!variable}")
  done
  mkdir -p "$work/root"
  isolated env -i "${kept[@]}" CONTAINER_FOLDER="$folder" HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash "$script" --container "$work/root" "$system" "$upper" "$binds" "$@"
}

has_overlay() {
  mkdir -p "$work/probe/"{lower,upper,upper.work,root}
  unshare --mount mount -t overlay weft \
    -o "lowerdir=$work/probe/lower,upperdir=$work/probe/upper,workdir=$work/probe/upper.work" \
    "$work/probe/root" 2>/dev/null
}

#
# Systems that are kept: a tree per suite and purpose.
#

# What install-deps.sh installs may change; then the system is made again.
name_of() { # PURPOSE
  case $1 in
    bare) echo "$suite-bare" ;;
    *) echo "$suite-$1-$(md5sum <"$source_dir/tools/install-deps.sh" | head -c 8)" ;;
  esac
}

note() { echo "in-debian.sh: $*" >&2; }

# logged WHAT COMMAND...: silent when it succeeds.
logged() {
  if ! "${@:2}" >"$work/log" 2>&1; then
    tail -n 30 "$work/log" >&2
    refuse 69 "$1 failed" "the lines above say why; WEFT_DEBIAN_MIRROR names another mirror"
  fi
}

install_debootstrap() {
  apt-get update -q && apt-get install -q -y --no-install-recommends debootstrap debian-archive-keyring
}

make_bare() { # ROOT
  local mirror
  note "making a bare $suite"
  command -v debootstrap >/dev/null || logged "installing debootstrap by apt-get" install_debootstrap
  if [[ ! -e /usr/share/debootstrap/scripts/$suite ]]; then
    refuse 69 "this debootstrap does not know $suite" "install a newer one"
  fi
  mirror=$(mirror)
  logged debootstrap isolated debootstrap --variant=minbase --include=ca-certificates,git,make \
    "$suite" "$1" ${mirror:+"$mirror"}
  write_sources "$1/etc/apt/sources.list"
  write_apt_settings "$1/etc/apt/apt.conf.d/90weft"
  echo force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/90weft" # what can be made again needs no fsync
}

make_with() { # PURPOSE ROOT
  note "making a $suite with what 'install-deps.sh $1' installs"
  cp -a "$cache/$(name_of bare)" "$2"
  copy_tree "$2/root/weft"
  share_settings "$2"
  logged "install-deps.sh $1 in $suite" in_container "$2" - /root/weft tools/install-deps.sh "$1"
  rm -rf "$2/root/weft" "$2"/var/cache/apt/archives/*.deb
}

# ensure PURPOSE: makes the system unless it is kept.
ensure() {
  local name
  name=$(name_of "$1")
  [[ ! -d $cache/$name ]] || return 0
  case $1 in
    bare) make_bare "$work/$name" ;;
    *)
      ensure bare
      make_with "$1" "$work/$name"
      ;;
  esac
  mv "$work/$name" "$cache/$name"
}

# forget PATTERN FIND-OPTION...: removes kept systems and leftovers that nobody uses.
forget() {
  local found
  while IFS= read -r found; do
    if flock --nonblock --exclusive "$found" true; then
      rm -rf "$found"
    fi
  done < <(find "$cache" -mindepth 1 -maxdepth 1 -type d -name "$1" "${@:2}")
}

copy_tree() { # FOLDER
  mkdir -p "$1"
  (cd "$source_dir" && git -c safe.directory='*' ls-files -z --cached --others --exclude-standard | sort -zu |
    while IFS= read -r -d '' file; do
      if [[ -e $file || -L $file ]]; then
        printf '%s\0' "$file"
      fi
    done | tar --null --no-recursion -T - -c) | tar -x -C "$1" --no-same-owner
}

# One at a time makes systems, which then appear as a whole. Whoever uses a folder locks it.
exec 9>"$cache/lock"
flock 9
forget 'run.*'
forget '*-*-*' -mtime +14
! $fresh || forget "$suite-*"
work=$(mktemp -d "$cache/run.XXXXXX")
exec 8<"$work"
flock --shared 8
ensure "$purpose"
system=$cache/$(name_of "$purpose")
touch "$system"
exec 7<"$system"
flock --shared 7
exec 9>&-
if $prepare; then
  exit 0
fi

if has_overlay; then
  upper=$work/upper
  copied=$upper
  mkdir -m 755 "$upper" "$upper.work"
else
  note "no overlay file system here: copying the system"
  upper=-
  copied=$work/system
  cp -a "$system" "$copied"
  system=$copied
fi
copy_tree "$copied/root/weft"
share_settings "$copied"
{ # read as a whole, so that this file may change meanwhile
  status=0
  in_container "$system" "$upper" /root/weft "$@" || status=$?
  exit "$status"
}
