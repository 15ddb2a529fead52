#!/usr/bin/env bats
# A walk by somebody who has the documents and nothing else: the commands of docs/install.md and
# docs/your-trainer.md, as they stand there, from `make install` to trainers under mpirun, in an
# empty folder that is $HOME too. A block `text` right below a block `sh` is what that one prints.
# Three commands are not what they seem: `make` finds Weft built, `sudo apt-get install` only
# looks whether the packages are there, and `mpirun` is that of one MPI after the other.
bats_require_minimum_version 1.5.0

setup_file() {
  mpis=
  for name in openmpi mpich; do
    [ ! -e "$WEFT_BUILD_DIR/lib/weft-mpi-$name.so" ] || mpis+=" $name"
  done
  export mpis
  # Root, and more ranks than cores: Open MPI 4, and 5.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  export UCX_LOG_LEVEL=error
}

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  mkdir bin home
  cat >bin/make <<'END'
#!/bin/bash
exec env -u MAKEFLAGS -u MAKELEVEL "$REAL_MAKE" --no-print-directory -C "$WEFT_SOURCE_DIR" -o build "$@"
END
  cat >bin/sudo <<'END'
#!/bin/bash
[ "$1 $2" = "apt-get install" ] || exit 1
! command -v dpkg-query >/dev/null || dpkg-query -W "${@:3}" >/dev/null
END
  REAL_MAKE=$(command -v make)
  export REAL_MAKE HOME=$PWD/home
  chmod +x bin/*
  PATH=$PWD/bin:$PATH
  unset PKG_CONFIG_PATH LD_LIBRARY_PATH CMAKE_PREFIX_PATH
}

# script_of FILE...: all `sh` blocks, the N-th with its output in out/N; what it is said to print
# goes to expected/N.
script_of() {
  awk -v here="$PWD" '
    /^```/ && mark != "" {
      if (mark == "sh") printf "} >%s/out/%d\n", here, n
      above = mark; mark = ""; next
    }
    /^```/ {
      mark = substr($0, 4)
      if (mark == "sh") { n++; print "{" }
      file = mark == "text" && above == "sh" ? here "/expected/" n : "/dev/null"
      above = ""; next
    }
    mark == "sh" { print }
    mark == "text" { print >file }
    mark == "" && NF > 0 { above = "" }' "$@"
}

# walk FILE...: in the empty folder home/work.
walk() {
  local n
  mkdir -p out expected home/work
  script_of "$@" >script
  (cd home/work && timeout 400 bash -e ../../script 2>../../err 3>&-) || {
    echo "status $?; the last block that began was number $(find out -type f | wc -l):" >&2
    cat err >&2
    return 1
  }
  for n in expected/*; do
    diff -u "$n" "out/${n##*/}"
  done
  [ "$(find expected -type f | wc -l)" -ge 6 ]
}

pages=("$WEFT_SOURCE_DIR/docs/install.md" "$WEFT_SOURCE_DIR/docs/your-trainer.md")

@test "from make install to a trainer under mpirun, by the documents alone" {
  [ -n "$mpis" ] || skip "built without MPI: libopenmpi-dev openmpi-bin"
  for mpi in $mpis; do
    rm -f bin/mpirun
    printf '#!/bin/bash\nexec %s "$@"\n' "$(command -v "mpirun.$mpi" || command -v mpirun)" >bin/mpirun.new
    chmod +x bin/mpirun.new
    mv bin/mpirun.new bin/mpirun
    walk "${pages[@]}"
    rm -rf home out expected
    mkdir home
  done
}

@test "make install goes below DESTDIR, and make uninstall removes all of it" {
  make install PREFIX=/usr DESTDIR="$PWD/stage" >printed
  [ ! -s printed ]
  grep -qx 'rpath=' stage/usr/lib*/pkgconfig/weft.pc
  make uninstall PREFIX=/usr DESTDIR="$PWD/stage"
  [ -z "$(find stage ! -type d)" ]
  [ -z "$(find stage -iname weft)" ]
  make install PREFIX="$PWD/with a blank/weft" | grep -F 'export PATH='
  "$PWD/with a blank/weft/bin/weft" --version
  make uninstall PREFIX="$PWD/with a blank/weft"
  [ -z "$(find "with a blank" ! -type d)" ]
}
