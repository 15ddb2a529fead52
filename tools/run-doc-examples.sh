#!/bin/bash
# Writes a document to standard output with what its examples really print:
#
#     WEFT=build/weft tools/run-doc-examples.sh FILE
#     tools/run-doc-examples.sh --apply FILE         only makes its change, in this folder (see below)
#     tools/run-doc-examples.sh --build TREE FILE... only builds TREE, with the changes of all of them
#
# An example is a fenced block marked `console`. "$ " begins a command, "> "
# continues it, the lines that follow are its output. All examples of a document
# run in one shell, in an empty folder, with the command as `weft`. Output is
# standard output and standard error together, without blanks at the ends of
# lines. A line "..." in the document stands for any lines, and output that agrees
# with it is left as it is.
#
# A document that shows how to change Weft has its examples run by a Weft so
# changed: blocks marked `c PATH` are new files, blocks marked `diff` are applied, unless
# somebody has followed the document and the sources are so changed already.
# WEFT_CHANGED_TREE is a folder where --build has made that Weft.
set -euo pipefail

what='write'
case $1 in
  --apply | --build)
    what=${1#--}
    shift
    ;;
esac
if [[ $what == build ]]; then
  mkdir -p "$1"
  tree=$(realpath "$1")
  shift
fi
mapfile -t documents < <(realpath "$@")
document=${documents[0]}
sources=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin" "$scratch/out" "$scratch/work"

# Writes the blocks of the document that are marked $1, or $1 and a path.
blocks() {
  awk -v mark="\`\`\`$1" '$0 == "```" { inside = 0 } inside { print } $0 == mark { inside = 1 }' "$document"
}

# --unidiff-zero: a hunk may end with what it adds, so that it still fits when somebody has added
# a line of their own in the same place.
change_sources() {
  local file patch apply=(git apply -C1 --unidiff-zero --ignore-whitespace)
  sed -n 's/^```c //p' "$document" | while IFS= read -r file; do
    mkdir -p "$(dirname "$file")"
    blocks "c $file" >"$file"
  done
  GIT_CEILING_DIRECTORIES=$(dirname "$PWD")
  export GIT_CEILING_DIRECTORIES
  # Each block by itself: somebody may have followed one part of the document.
  awk -v folder="$scratch" '$0 == "```" { inside = 0 } inside { print >file }
    $0 == "```diff" { inside = 1; file = sprintf("%s/%03d.patch", folder, ++count) }' "$document"
  for patch in "$scratch"/*.patch; do
    "${apply[@]}" --reverse --check "$patch" 2>/dev/null || "${apply[@]}" "$patch" || return
  done
}

# In $tree.
build_changed() {
  cp -R "$sources"/{src,include,trainer,bench,cmake,CMakeLists.txt} "$tree"
  cd "$tree" || return
  for document in "${documents[@]}"; do
    rm -f "$scratch"/*.patch
    change_sources || { echo "$document: the change that it shows does not fit the sources any more" && return 1; }
  done
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=None -DWEFT_TESTS=OFF -DWEFT_TRAINER=OFF \
    -DWEFT_MPI=OFF && cmake --build build --target weft_command
}

build_quietly() {
  if ! (build_changed) >"$scratch/log" 2>&1; then
    cat "$scratch/log" >&2
    exit 1
  fi
}

case $what in
  apply)
    change_sources
    exit
    ;;
  build)
    build_quietly
    exit
    ;;
esac
weft=$(realpath -e "${WEFT:-build/weft}")
if grep -q '^```diff$' "$document"; then
  tree=${WEFT_CHANGED_TREE:-}
  if [[ -z $tree ]]; then
    tree=$scratch/tree
    mkdir "$tree"
    build_quietly
  fi
  weft=$tree/build/weft
fi
ln -s "$weft" "$scratch/bin/weft"

# The document in pieces: text lines, commands as written and as run, and what is
# said to come out.
kinds=()
pieces=()
commands=()
add() {
  kinds+=("$1")
  pieces+=("$2")
}

# Adds a line to the output of the last command.
add_output() {
  local last=$((${#pieces[@]} - 1))
  if [[ ${kinds[last]} == output ]]; then
    pieces[last]+=$'\n'$1
  else
    add output "$1"
  fi
}

read_document() {
  local line in_example=false
  while IFS= read -r line || [[ -n $line ]]; do
    if ! $in_example; then
      add text "$line"
      [[ $line != '```console' ]] || in_example=true
    elif [[ $line == '```' ]]; then
      add text "$line"
      in_example=false
    elif [[ $line == '$ '* ]]; then
      add command "$line"
      commands[${#pieces[@]} - 1]=${line#'$ '}
    elif [[ $line == '> '* && ${kinds[-1]} == command ]]; then
      pieces[-1]+=$'\n'$line
      commands[${#pieces[@]} - 1]+=$'\n'${line#'> '}
    else
      add_output "$line"
    fi
  done <"$document"
}

# One script of all commands; the output of piece i goes to out/i. The status of
# one command is there for the next, so that `echo $?` works.
run_examples() {
  local i
  for i in "${!commands[@]}"; do
    printf '{ %s\n} >%q 2>&1\n' "${commands[i]}" "$scratch/out/$i"
  done >"$scratch/script"
  (cd "$scratch/work" && PATH=$scratch/bin:$PATH LC_ALL=C bash "$scratch/script" </dev/null) || true
}

# Whether the lines of expected[] from $1 on fit those of printed[] from $2 on.
agrees() {
  local i=$1 j=$2 k
  for (( ; i < ${#expected[@]}; i++, j++)); do
    if [[ ${expected[i]} == ... ]]; then
      for ((k = j; k <= ${#printed[@]}; k++)); do
        if agrees $((i + 1)) "$k"; then
          return 0
        fi
      done
      return 1
    fi
    if [[ $j -ge ${#printed[@]} || ${expected[i]} != "${printed[j]}" ]]; then
      return 1
    fi
  done
  [[ $j -eq ${#printed[@]} ]]
}

# Makes expected[] of printed[]; as many lines before and after a "..." as the
# document had.
renew() {
  local i head=-1 tail=0
  for i in "${!expected[@]}"; do
    if [[ ${expected[i]} == ... ]]; then
      head=$i
      tail=$((${#expected[@]} - i - 1))
    fi
  done
  if [[ $head -ge 0 && $((head + tail)) -le ${#printed[@]} ]]; then
    expected=("${printed[@]:0:head}" ... "${printed[@]:${#printed[@]}-tail}")
  else
    expected=("${printed[@]}")
  fi
}

# The output of command $1: as the document has it, if that agrees.
write_output() {
  local expected=() printed=()
  mapfile -t printed < <(sed 's/[[:blank:]]*$//' "$scratch/out/$1")
  if [[ ${kinds[$1 + 1]} == output ]]; then
    mapfile -t expected <<<"${pieces[$1 + 1]}"
  fi
  if ! agrees 0 0; then
    renew
  fi
  [[ ${#expected[@]} -eq 0 ]] || printf '%s\n' "${expected[@]}"
}

read_document
run_examples
for i in "${!pieces[@]}"; do
  case ${kinds[i]} in
    text) printf '%s\n' "${pieces[i]}" ;;
    command)
      printf '%s\n' "${pieces[i]}"
      write_output "$i"
      ;;
  esac
done
