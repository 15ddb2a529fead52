#!/usr/bin/env bats
# The tree itself: folders stay small, file names are unique, the README stays short, and the
# private words of version 0.1 do not come back (docs/glossary.md has the field's words).
bats_require_minimum_version 1.5.0

setup() { cd "$WEFT_SOURCE_DIR" || return 1; }

sources() { find include src trainer bench examples tests tools cmake -type f \
  ! -path 'tests/golden/*' ! -path 'tests/corpus/*' ! -path 'tests/expected/*' ! -name '*.pyc'; }

@test "no folder of sources has more than 40 files" {
  run awk -F/ '{ sub("/[^/]*$", ""); count[$0]++ }
    END { for (folder in count) if (count[folder] > 40) print folder ": " count[folder] " files" }' \
    <(sources)
  [ "$output" = "" ] || { echo "$output"; return 1; }
}

@test "file names are unique" {
  run bash -c 'sed "s|.*/||" | grep "\.[ch]$" | sort | uniq -d' < <(sources)
  [ "$output" = "" ] || { echo "$output"; return 1; }
}

@test "no file is named after nothing" {
  run grep -E '/(util|utils|common|helper|helpers|misc)[^/]*$' <(sources)
  [ "$status" -eq 1 ]
}

@test "the README has fewer than 250 lines" {
  [ "$(wc -l <README.md)" -lt 250 ]
}

@test "texts of the library name no command: its callers are C and Python programs too" {
  run grep -rnE --include='*.[ch]' \
    "\"[^\"]*\bweft (gen|lower|verify|sim|compare|plan|show|explain|diff|run|train|doctor|help)\b[^\"]*\"" \
    src --exclude-dir=cli
  [ "$status" -eq 1 ] || { echo "$output"; return 1; }
}

@test "the libraries set the variables of the environment that base.h and launch.md list, in one place" {
  local name
  run grep -rlwE 'setenv|putenv|unsetenv|clearenv' src --include='*.[ch]' --exclude-dir=cli
  [ "$(sort <<<"$output")" = $'src/device/environment_default.c\nsrc/device/environment_default.h\nsrc/launch/supervisor.c' ] ||
    { echo "$output"; return 1; }
  run sed -nE 's/^  X\((\w+)\).*/\1/p' src/device/environment_default.h
  [ "${#lines[@]}" -ge 6 ]
  for name in "${lines[@]}"; do
    grep -qw "$name" include/weft/base.h || { echo "$name is not in base.h"; return 1; }
    grep -q "^| \`$name\` |" docs/launch.md || { echo "$name is not in launch.md"; return 1; }
  done
  # And nothing that is no longer set.
  # shellcheck disable=SC2016
  [ "$(grep -cE '^\| `(CUDA|NCCL|OMPI)_\w+` \|' docs/launch.md)" -eq "${#lines[@]}" ]
}
