#!/bin/bash
# Installs what the build folder holds (WEFT_BUILD_DIR, default build), or removes it:
#
#     tools/install.sh install|uninstall PREFIX [DESTDIR]
#
# DESTDIR is for packagers: a folder in front of PREFIX.
set -euo pipefail
action=$1
prefix=$(realpath -ms "$2")
destdir=${3:-}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lay_down() { # DESTDIR
  DESTDIR=$1 cmake --install "${WEFT_BUILD_DIR:-build}" --prefix "$prefix" >/dev/null
}

# What this build installs, and the folders called weft that are then empty, with all in them.
remove() {
  local list path
  list=$(mktemp -d)
  lay_down "$list"
  while IFS= read -r path; do
    rm -f "$destdir/$path"
  done < <(cd "$list" && find . ! -type d)
  while IFS= read -r path; do
    rmdir "$destdir/$path" 2>/dev/null || true
  done < <(cd "$list" && find . -depth -type d -iregex '.*/weft\(/.*\)?')
  rm -rf "$list"
}

say_how_to_use() {
  local pc
  pc=$(dirname "$(find "$prefix" -path '*/pkgconfig/weft.pc' | head -n 1)")
  echo "Weft is in $prefix. Where that is not a standard place:"
  printf "  export PATH=%q:\$PATH\n" "$prefix/bin"
  printf "  export PKG_CONFIG_PATH=%q\n" "$pc"
}

case $action in
  install)
    lay_down "$destdir"
    [[ -n $destdir ]] || say_how_to_use
    ;;
  uninstall) remove ;;
  *)
    echo "usage: $0 install|uninstall PREFIX [DESTDIR]" >&2
    exit 2
    ;;
esac
