#!/usr/bin/env bats
# The documents are true: their examples are run, their tables are made from the
# sources, their links lead somewhere.
# Not under sanitizers: it is about files, pages and other programs.
bats_require_minimum_version 1.5.0

# Lines of `sh` blocks, which are not run here: they take long, install, or need
# what only an installed Weft has. makefile.bats and consumer/ see to most of them.
not_run=(
  'make'
  'make train'
  'make check'
  'make test'
  'tools/gates.sh --help'
  'tools/gates.sh graph-gaps        # one of them, with the build that is there'
  'make lint'
  'make bench'
  'tools/in-debian.sh --with test trixie make test'
  'ctest --preset release -L plan'
  'make wheel'
  'make playground'
  'build/weft playground'
  'NGPU=4 ./run_train.sh --parallelism.pipeline_parallel_schedule_csv plan.csv ...'
  'export TORCH_NCCL_TRACE_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1'
  'export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=dumps/nccl_trace_rank_'
  'weft explain-hang dumps --program plan.csv'
  'pip install build/wheel/*.whl'
  "make install PREFIX=\$HOME/weft"
  "export PATH=\$HOME/weft/bin:\$PATH PKG_CONFIG_PATH=\$HOME/weft/lib/pkgconfig"
  "cc example.c \$(pkg-config --cflags --libs weft)"
  'python3 examples/pytorch_costs.py --layers 2,1,1,1 -o measured.json'
  'mpirun -n 4 weft run zbv.csv'
  'mpirun -n 4 weft train --dp 2 --shard full --data notes.txt --checkpoint model'
  'weft train notes.txt --skips -p 4 --steps 20 --profile costs.json --json | tail -n 1 | jq .graph >graph.json'
  'weft plan --graph graph.json --costs costs.json --keep-partition -p 4 -m 8 -o plan.csv'
  'weft train notes.txt --skips --schedule plan.csv'
  'srun -n 64 --mpi=pmix weft train --dp 8 --data notes.txt --checkpoint model'
  "for file in /dev/shm/{vader_segment.,sm_segment.,mpich_shar_tmp,ucx_shm_posix_}*; do grep -qsF \"\$file\" /proc/[0-9]*/maps || rm -f \"\$file\"; done"
  'mpirun -n 4 weft doctor'
  'weft gen 1F1B -p 8 -m 8 -o 1f1b.csv'
  'weft run 1f1b.csv --device cuda --f 0.2 --i 0.2 --w 0.2 --steps 12'
  'weft run 1f1b.csv --device cuda --partitions 4 -o timeline.html'
  'mpirun -n 4 weft run 1f1b.csv --device cuda'
  'mpirun -n 8 weft train --device cuda --dp 2 --data notes.txt --checkpoint model'
  "nvcc -O2 -std=c++20 -forward-unknown-to-host-compiler trainer_cuda.cu \$(pkg-config --cflags --libs weft-run) -o trainer_cuda"
  './trainer_cuda 1F1B 4'
  './trainer_cuda ZBVZeroBubble 4 4'
  './trainer_cuda 1F1B 4 0 eager'
  'mpirun -n 2 --mca btl tcp,self build/weft bench mpi --json >messages.json'
  'mpirun -n 2 build/weft train --layers 8 --dim 256 --heads 8 --steps 4 --profile costs.json'
  'python3 bench/predict_large_worlds.py --costs costs.json --messages messages.json'
)

setup() {
  cd "$WEFT_SOURCE_DIR" || return 1
  documents=(README.md CONTRIBUTING.md CHANGELOG.md docs/*.md trainer/README.md)
}

# lines_in MARK FILE...: the lines of all blocks with that mark.
lines_in() {
  awk -v mark="\`\`\`$1" 'FNR == 1 { inside = 0 }
    /^```/ { inside = !inside && $0 == mark; next }
    inside' "${@:2}"
}

@test "examples print what the documents say, and generated tables are up to date" {
  tools/update-docs.sh --check
}

@test "a stale example is found, and brought up to date" {
  document=$BATS_TEST_TMPDIR/stale.md
  printf '%s\n' '# x' '```console' "\$ weft gen 1F1B -p 1 -m 1" '0F0,0B1' "\$ echo \$?" 0 '```' >"$document"
  run -1 tools/update-docs.sh --check "$document"
  [[ $output == *$'\n-0F0,0B1\n+0F0,0B0,0REDUCE_GRAD\n'*"documents are stale"* ]]
  tools/update-docs.sh "$document"
  [ "$(sed -n 4p "$document")" = 0F0,0B0,0REDUCE_GRAD ]
  tools/update-docs.sh --check "$document"
}

@test "who has followed adding-a-schedule.md can still update the documents" {
  cp -R src include "$BATS_TEST_TMPDIR"
  apply=$PWD/tools/run-doc-examples.sh page=$PWD/docs/adding-a-schedule.md
  cd "$BATS_TEST_TMPDIR"
  for _ in 1 2; do
    "$apply" --apply "$page"
    [ "$(grep -c '(lifo)' src/gen/generators.def)" -eq 1 ]
    [ "$(grep -c weft_pass_split_b src/lower/passes.h)" -eq 1 ]
  done
  # And who has put a generator of their own in that place.
  sed -i 's/(lifo)/(mine)/' src/gen/generators.def
  "$apply" --apply "$page"
  [ "$(grep -c '(lifo)\|(mine)' src/gen/generators.def)" -eq 2 ]
  [ "$(grep -c weft_pass_split_b src/lower/passes.h)" -eq 1 ]
}

# changed_by PAGE: the sources that somebody who follows it edits or writes.
changed_by() {
  sed -nE 's#^```c (src/.*)$#\1#p; s#^\+\+\+ b/((src|include)/.*)$#\1#p' "$1" | sort -u
}

# That they compile, and do what the pages say, is what the first test here shows.
@test "an op takes at most 10 source files, a send model 5, a transport its folder and one line" {
  run changed_by docs/adding-an-op.md
  [ "${#lines[@]}" -gt 1 ] && [ "${#lines[@]}" -le 10 ]
  # In the table of the page, too.
  # shellcheck disable=SC2016
  [ "$(awk -F'|' '/^\| `/ { print $2 }' docs/adding-an-op.md | grep -oE '`(src|include)/[^`]*`' | wc -l)" -le 10 ]
  run changed_by docs/adding-a-send-model.md
  [ "${#lines[@]}" -ge 1 ] && [ "${#lines[@]}" -le 5 ]
  run changed_by docs/adding-a-transport.md
  [ "$(grep -vc '^src/comm/delayed/' <<<"$output")" -eq 1 ]
  [ "$(lines_in diff docs/adding-a-transport.md | grep -c '^+[^+]')" -eq 1 ]
}

@test "without a command nothing is rewritten" {
  document=$BATS_TEST_TMPDIR/kept.md
  printf '%s\n' '```console' "\$ weft --version" kept '```' >"$document"
  WEFT=$BATS_TEST_TMPDIR/none run -66 tools/update-docs.sh "$document"
  [ "$(sed -n 3p "$document")" = kept ]
}

@test "in an example, ... stands for any lines and for nothing else" {
  document=$BATS_TEST_TMPDIR/dots.md
  printf '%s\n' '```console' "\$ seq 9" 1 ... 8 9 "\$ seq 2" 1 ... 2 '```' >"$document"
  tools/update-docs.sh --check "$document"
  printf '%s\n' '```console' "\$ seq 9" 1 ... 8 '```' >"$document"
  run -1 tools/update-docs.sh --check "$document"
}

@test "every rule has a section whose example gives that rule" {
  rules=$(sed -n 's/^WEFT_RULE([A-Z_]*, "\([a-z.]*\)".*/\1/p' include/weft/rules.def)
  [ "$(wc -l <<<"$rules")" -eq "$(grep -c '^WEFT_RULE(' include/weft/rules.def)" ]
  for rule in $rules; do
    section=$(awk -v head="## \`$rule\`" '/^## / { inside = $0 == head } inside' docs/rules.md)
    if [[ $section != *'$ '*'weft verify'*"[$rule]"* ]]; then
      echo "docs/rules.md has no example that gives $rule"
      return 1
    fi
  done
}

@test "the C program of the README compiles, and prints what stands below it" {
  lines_in c README.md >"$BATS_TEST_TMPDIR/example.c"
  grep -q 'int main' "$BATS_TEST_TMPDIR/example.c"
  cd "$BATS_TEST_TMPDIR"
  mapfile -t flags < <(sed -n 's/^WEFT_SANITIZE:STRING=\(.\)/-fsanitize=\1/p' "$WEFT_BUILD_DIR/CMakeCache.txt")
  cc -std=c11 -Wall -Wextra ${WEFT_WERROR:+"$WEFT_WERROR"} "${flags[@]}" -I"$WEFT_SOURCE_DIR/include" example.c \
    -L"$WEFT_BUILD_DIR/lib" -Wl,-rpath,"$WEFT_BUILD_DIR/lib" -lweft -o example
  ./example >printed
  awk '/^```c$/ { seen = 1 } seen && /^```text$/ { inside = 1; next } inside && /^```/ { exit } inside' \
    "$WEFT_SOURCE_DIR/README.md" >expected
  diff expected printed
}

@test "blocks are marked, and what is not run is on the list" {
  # An odd number of fences would turn text and blocks around.
  for document in "${documents[@]}"; do
    [ $(($(grep -c '^```' "$document") % 2)) -eq 0 ]
  done
  marks=$(awk '/^```/ { inside = !inside; if (inside) print FILENAME ": " $0 }' "${documents[@]}")
  run grep -vE ': ```(console|sh|text|c|c src/[a-z_/]+\.c|diff|cmake|python)$' <<<"$marks"
  [ "$output" = "" ]
  while IFS= read -r line; do
    if [[ " ${not_run[*]/#/|} " != *"|$line "* ]]; then
      echo "neither run nor on the list: $line"
      return 1
    fi
  done < <(for document in "${documents[@]}"; do
    [[ $document == docs/@(install|your-trainer).md ]] || lines_in sh "$document" # walk.bats runs these
  done)
}

# The anchors of a document's headings, as they are commonly made.
anchors() {
  awk '/^```/ { inside = !inside } !inside && /^#+ /' "$1" | sed 's/^#* //' |
    tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

@test "links lead somewhere" {
  checked=0
  local -A anchors_of
  for document in "${documents[@]}"; do
    folder=$(dirname "$document")
    while IFS= read -r link; do
      [[ $link != *://* ]] || continue
      path=${link%%#*}
      target=$document
      [ -z "$path" ] || target=$folder/$path
      if [ ! -e "$target" ]; then
        echo "$document: $link: there is no $target"
        return 1
      fi
      checked=$((checked + 1))
      [[ $link == *#* ]] || continue
      [ "${anchors_of[$target]+set}" ] || anchors_of[$target]=$'\n'$(anchors "$target")$'\n'
      if [[ ${anchors_of[$target]} != *$'\n'"${link#*#}"$'\n'* ]]; then
        echo "$document: $link: $target has no such heading"
        return 1
      fi
    done < <(awk '/^```/ { inside = !inside } !inside' "$document" |
      grep -oE '\]\([^)]+\)' | sed 's/^](//; s/)$//')
  done
  [ "$checked" -gt 50 ]
}

@test "every document is reached from the README" {
  for document in docs/*.md CONTRIBUTING.md CHANGELOG.md trainer/README.md; do
    grep -qF "(${document}" README.md
  done
}

@test "the messages that troubleshooting.md quotes are those of the sources" {
  for text in 'installing needs root, and there is no sudo' 'built without its transport' \
    'which runs this command, is not in the folder of this one' ' was killed by signal ' \
    'MPI has not started after ' ' than the others' 'there is no driver for ' ': looked for ' \
    'the MPI driver cannot be loaded: ' 'not the driver of Weft ' 'this process was started by ' \
    ' and is to use ' 'a cycle: ' ' has waited '; do
    grep -qF -- "$text" docs/troubleshooting.md || { echo "not in the page any more: $text"; return 1; }
    grep -qrF -- "$text" src include tools cmake || { echo "no program says: $text"; return 1; }
  done
}

# shellcheck disable=SC2016
@test "files that the documents name are there" {
  # In prose, between backquotes: folders and files of the tree.
  while IFS= read -r path; do
    if ! compgen -G "$path" >/dev/null && ! compgen -G "tests/$path" >/dev/null; then
      echo "named, but not there: $path"
      return 1
    fi
  done < <(cat "${documents[@]}" | awk '/^```/ { inside = !inside } !inside' |
    grep -oE '`(src|include|tests|tools|cmake|bench|docs|trainer)/[A-Za-z0-9_./*-]+`' | tr -d '`' | sort -u)
}

@test "no document names a place of one machine" {
  run grep -nE '(^|[^A-Za-z])(/home/|/root/|/work/|/Users/|localhost)' "${documents[@]}"
  [ "$output" = "" ]
}
