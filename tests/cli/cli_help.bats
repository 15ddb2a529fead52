#!/usr/bin/env bats
# Help, the manual page and the completions, which all come from one table.
# Not under sanitizers: it is about texts.
# shellcheck disable=SC2154,SC2016
load ../setup/cli_setup

commands() {
  "$WEFT" help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p'
}

# Long options of a command, as its help lists them.
options_of() {
  "$WEFT" help "$1" | sed -n 's/^  \(   \|-[a-z],\) --\([a-z-]*\).*/\2/p'
}

@test "--version" {
  weft --version
  succeeds
  version=$(sed -n 's/^#define WEFT_VERSION "\(.*\)"/\1/p' "$WEFT_SOURCE_DIR/include/weft/base.h")
  [ "$output" = "weft $version" ]
}

@test "help lists the commands of this release" {
  weft help
  succeeds
  [ "$(commands | tr '\n' ' ')" = "gen lower verify sim compare plan show run train sample explain explain-hang diff bench doctor playground help " ]
  [ "$output" = "$("$WEFT" --help)" ]
  [ "$output" = "$("$WEFT" -h)" ]
  [ "$(wc -L <<<"$output")" -le 80 ]
}

@test "help COMMAND and COMMAND --help are the same, with an example that works" {
  "$WEFT" gen 1F1B -p 4 -m 8 | "$WEFT" lower >program.csv
  cp program.csv a.csv
  cp program.csv b.csv
  cp "$WEFT_SOURCE_DIR/tests/corpus/fuzz_hang/chain.json" hang.json
  seq 1 2000 >notes.txt
  mkdir bin
  ln -s "$WEFT" bin/weft
  for command in $(commands); do
    "$WEFT" help "$command" >a
    "$WEFT" "$command" --help >b
    cmp a b
    [ "$(wc -L <a)" -le 80 ]
    example=$(sed -n '/^Example:/,$s/^  //p' a)
    [[ $example == *weft* ]]
    if [[ $command =~ ^(train|sample)$ ]] && ! "$WEFT" doctor --quick | grep -q 'BLAS  *OpenBLAS'; then
      continue
    fi
    if [ "$command" = playground ] && [ ! -e "$(dirname "$WEFT")/share/weft/playground.html" ]; then
      continue # built where clang can make WebAssembly
    fi
    if [[ $command != bench && $command != help ]]; then
      PATH=$PWD/bin:$PATH bash -o pipefail -c "$example" >/dev/null
    fi
  done
}

@test "every command takes -o and --help" {
  for command in $(commands); do
    options_of "$command" | grep -qx output
    options_of "$command" | grep -qx help
  done
}

@test "every option of the help is accepted by the parser" {
  for command in $(commands); do
    for option in $(options_of "$command"); do
      # With --help at the end nothing is done; a bad option would be an error first. The first one
      # may be the option's value.
      said=$("$WEFT" "$command" "--$option" --help --help 2>&1 >/dev/null) || true
      [[ $said != *"unknown option"* ]]
    done
  done
}

@test "every command and option is in the manual page and in each completion" {
  "$WEFT" help --man >weft.1
  for shell in bash zsh fish; do
    "$WEFT" help --completion $shell >weft.$shell
  done
  for command in $(commands); do
    manual=$(sed -n "/^\.SS \"weft $command/,/^\.SS/p" weft.1)
    in_bash=$(sed -n "/^    $command) options=/p" weft.bash)
    in_zsh=$(sed -n "/^    $command)/,/;;/p" weft.zsh)
    in_fish=$(grep "seen_subcommand_from $command' " weft.fish)
    [ "$manual" != "" ]
    for option in $(options_of "$command"); do
      [[ $manual == *"\\-\\-${option//-/\\-}"* ]]
      [[ $in_bash == *" --$option "* || $in_bash == *" --$option'"* ]]
      [[ $in_zsh == *"'--$option="* || $in_zsh == *"'--${option}["* ]]
      [[ $in_fish == *" -l $option "* ]]
    done
  done
  for name in $("$WEFT" gen --list --json | jq -r '.schedules[].name'); do
    for shell in bash zsh fish; do
      has "[ '(]${name}[ ')]" weft.$shell
    done
  done
}

@test "the manual page is free of faults" {
  "$WEFT" help --man >weft.1
  lacks '[^[:print:]]' weft.1
  if command -v groff >/dev/null; then
    groff -man -Tascii -P-cbou -ww weft.1 2>faults >page
    [ ! -s faults ]
    grep -q 'EXIT STATUS' page
  fi
}

# complete WORDS...: what the bash completion offers for the last word.
complete_bash() {
  set +e # as in a shell that one types into
  COMP_WORDS=(weft "$@")
  COMP_CWORD=$#
  _weft
  printf '%s\n' "${COMPREPLY[@]}"
}

@test "the bash completion completes" {
  # shellcheck disable=SC1090
  source <("$WEFT" help --completion bash)
  [ "$(complete_bash ver)" = verify ]
  complete_bash gen Dual | grep -qx DualPipeV
  complete_bash lower --no | grep -qx -- --no-reduce-grad
  complete_bash verify --channel p | grep -qx pair
  complete_bash verify --comm s | grep -qx slots:K
  [ "$(complete_bash bench s)" = sim ]
  [ "$(complete_bash help doc)" = doctor ]
  touch table.csv
  complete_bash verify tab | grep -qx table.csv
  complete_bash verify t.csv -o tab | grep -qx table.csv
}

@test "the completions of the other shells parse" {
  for shell in zsh fish; do
    if command -v $shell >/dev/null; then
      "$WEFT" help --completion $shell >weft.$shell
      $shell -n weft.$shell
    fi
  done
}
