#!/usr/bin/env bats
# The tree itself: folders stay small, file names are unique, the README stays short, and the
# private words of version 0.1 do not come back (docs/language.md has the field's words).
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

@test "no static function is only a verb: it stands alone in a profile, a stack and a grep" {
  run grep -rnE --include='*.[ch]' --include='*.cu' \
    '^(static|STEP|TWICE|[A-Z_]*INLINE) .*[ *](take|add|run|prepare|describe)\(' src trainer bench tests examples
  [ "$status" -eq 1 ] || { echo "$output"; return 1; }
}

@test "the README has fewer than 250 lines" {
  [ "$(wc -l <README.md)" -lt 250 ]
}

@test "the documents are at most 24 pages and 45,000 words" {
  pages=(docs/*.md trainer/README.md)
  [ "${#pages[@]}" -le 24 ]
  [ "$(cat "${pages[@]}" | wc -w)" -le 45000 ]
}

@test "texts of the library name no command: its callers are C and Python programs too" {
  run grep -rnE --include='*.[ch]' \
    "\"[^\"]*\bweft (gen|lower|verify|sim|compare|plan|show|explain|diff|run|train|doctor|help)\b[^\"]*\"" \
    src --exclude-dir=cli
  [ "$status" -eq 1 ] || { echo "$output"; return 1; }
}

@test "the libraries set the variables of the environment that base.h and mpi.md list, in one place" {
  local name
  run grep -rlwE 'setenv|putenv|unsetenv|clearenv' src --include='*.[ch]' --exclude-dir=cli
  [ "$(sort <<<"$output")" = $'src/device/environment_default.c\nsrc/device/environment_default.h\nsrc/launch/supervisor.c' ] ||
    { echo "$output"; return 1; }
  run sed -nE 's/^  X\((\w+)\).*/\1/p' src/device/environment_default.h
  [ "${#lines[@]}" -ge 6 ]
  for name in "${lines[@]}"; do
    grep -qw "$name" include/weft/base.h || { echo "$name is not in base.h"; return 1; }
    grep -q "^| \`$name\` |" docs/mpi.md || { echo "$name is not in mpi.md"; return 1; }
  done
  # And nothing that is no longer set.
  # shellcheck disable=SC2016
  [ "$(grep -cE '^\| `(CUDA|NCCL|OMPI)_\w+` \|' docs/mpi.md)" -eq "${#lines[@]}" ]
}

# comments FILE...: the file names in their comments, as FILE:LINE: NAME.
named_in_comments() {
  awk '
    FNR == 1 { inside = 0; hash = FILENAME !~ /\.(c|h|cc|hh|cu|def|js)$/ }
    {
      line = $0; text = ""
      if (hash) { text = line ~ /^[ \t]*#/ ? line : "" ; line = "" }
      while (length(line) > 0) {
        open = index(line, "/*"); rest = index(line, "//"); close_at = index(line, "*/")
        if (inside && close_at == 0) { text = text line; line = "" }
        else if (inside) { text = text substr(line, 1, close_at - 1) " "; line = substr(line, close_at + 2); inside = 0 }
        else if (rest > 0 && (open == 0 || rest < open)) { text = text substr(line, rest + 2); line = "" }
        else if (open > 0) { line = substr(line, open + 2); inside = 1 }
        else line = ""
      }
      gsub(/<[^<>]*>/, " ", text) # of the system
      gsub(/[^A-Za-z0-9_.\/-]/, " ", text)
      count = split(text, words, " ")
      for (k = 1; k <= count; k++) {
        sub(/[.\/-]+$/, "", words[k]); sub(/^(\.*\/)+/, "", words[k])
        if (words[k] ~ /[A-Za-z0-9_]\.(c|h|cc|hh|cu|def|js|py|sh|bats|cmake)$/) print FILENAME ":" FNR ": " words[k]
      }
    }' "$@"
}

# missing LIST: of these lines, those whose NAME is the end of no path in the file LIST.
missing() {
  awk 'NR == FNR { for (path = $0; ; sub("^[^/]*/", "", path)) { there[path] = 1; if (path !~ "/") break } next }
    !($2 in there)' "$1" -
}

@test "comments name files that are there" {
  git ls-files --cached --others --exclude-standard >"$BATS_TEST_TMPDIR/files" 2>/dev/null ||
    find . -type f ! -path './build*' ! -path './.git/*' >"$BATS_TEST_TMPDIR/files"
  # Files of others, examples of a name, and what the build makes.
  printf '%s\n' llm.c sysexits.h mpi.h x.h hashes.cmake timeline_page.c kernels_text.c >"$BATS_TEST_TMPDIR/others"
  cat "$BATS_TEST_TMPDIR/others" >>"$BATS_TEST_TMPDIR/files"
  mapfile -t named < <(grep -E '(\.(c|h|cc|hh|cu|def|js|py|sh|bash|bats|cmake)|/CMakeLists.txt|Makefile)$' "$BATS_TEST_TMPDIR/files" |
    grep -vE '^(\./)?tests/(golden|corpus|expected)/')
  existing=()
  for file in "${named[@]}"; do [ ! -f "$file" ] || existing+=("$file"); done
  [ "${#existing[@]}" -gt 500 ]
  run missing "$BATS_TEST_TMPDIR/files" < <(named_in_comments "${existing[@]}")
  [ "$output" = "" ] || { printf 'a comment names a file that is not there:\n%s\n' "$output"; return 1; }
}

@test "a comment with the name of a file that is not there is found" {
  cd "$BATS_TEST_TMPDIR"
  printf '%s\n' '/* As in gone.c, and <gone.h>. */' 'int x; // see b/kept.h, a/kept.h.' ' * not inside: gone.py' >a.c
  printf '%s\n' 'a.c = gone.c' '# gone.sh, a.c; x_*.c' >a.sh
  printf '%s\n' a.c a.sh a/kept.h >files
  run missing files < <(named_in_comments a.c a.sh)
  [ "$output" = $'a.c:1: gone.c\na.c:2: b/kept.h\na.sh:2: gone.sh' ] || { echo "$output"; return 1; }
}

# A member that is missing is read from behind the structure, which mostly goes well.
@test "the structures that bench/pytorch.py declares are those of the headers" {
  command -v python3 >/dev/null || skip "no python3 here"
  cat >"$BATS_TEST_TMPDIR/sizes.c" <<'END'
#include <stddef.h>
#include <stdio.h>
#include <weft/support.h>
#include <weft/weft.h>
int main(void) {
  printf("%zu %zu %zu %zu %zu\n", sizeof(struct weft_shape), sizeof(struct weft_lower_options),
         sizeof(struct weft_error), sizeof(struct weft_text),
         offsetof(struct weft_program, action_count));
}
END
  "${CC:-cc}" -I include "$BATS_TEST_TMPDIR/sizes.c" -o "$BATS_TEST_TMPDIR/sizes"
  declared=$(PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=bench python3 -c '
from ctypes import sizeof
from pytorch_cases.shared import Error, LowerOptions, ProgramHead, Shape, Text
print(*map(sizeof, (Shape, LowerOptions, Error, Text)), ProgramHead.action_count.offset)')
  [ "$declared" = "$("$BATS_TEST_TMPDIR/sizes")" ]
}
