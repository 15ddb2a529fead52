#!/usr/bin/env bats
# The Python package: built, installed into a fresh virtual environment, and tested there with
# pytest, mypy and ruff. What is needed of them comes from PyPI.
# Not under sanitizers: it is about files, pages and other programs.
bats_require_minimum_version 1.5.0

get() { # what pip installs
  "$PYTHON" -m pip install --quiet --no-compile --disable-pip-version-check --retries 1 --timeout 30 "$@"
}

setup_file() {
  export WITH_TORCH=${PYTHON:-python3} # as in peers/pytorch_peer.bats
  export ENVIRONMENT=$BATS_FILE_TMPDIR/environment
  export PYTHON=$ENVIRONMENT/bin/python
  export WHY_NOT=
  cd "$WEFT_SOURCE_DIR" || return 1
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    WHY_NOT="no Python of version 3.9 or later"
  elif ! python3 -m venv "$ENVIRONMENT" >/dev/null 2>&1; then
    WHY_NOT="no virtual environments: python3-venv is not installed"
  elif ! get numpy pytest 'mypy~=2.4' 'ruff~=0.17.0' >/dev/null 2>&1; then
    WHY_NOT="PyPI is not reachable"
  fi
}

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  [ -z "$WHY_NOT" ] || skip "$WHY_NOT"
}

# As tools/build-wheel.sh gets them: --require-hashes refuses a tool, or a tool of a tool, that is
# not listed with its version and hash.
@test "the tools that build the wheel are those that are listed" {
  get --require-hashes -r "$WEFT_SOURCE_DIR/python/wheel-tools.txt"
  grep -q -e '--require-hashes' "$WEFT_SOURCE_DIR/tools/build-wheel.sh"
  # ziglang, which is large: as it is listed.
  grep -qE '^ziglang==[0-9.]+ ' "$WEFT_SOURCE_DIR/python/wheel-compiler.txt"
  grep -qE -e '^ +--hash=sha256:[0-9a-f]{64}' "$WEFT_SOURCE_DIR/python/wheel-compiler.txt"
}

@test "the wheel is built and installed" {
  wheel=$("$WEFT_SOURCE_DIR/tools/build-wheel.sh" "$PYTHON")
  [[ $wheel == */weft_pipeline-*-py3-none-*linux*.whl ]]
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
}

@test "the metadata of the wheel say who made it, what for, and for which Pythons" {
  "$PYTHON" -m pip show --verbose weft-pipeline >shown
  grep -qx 'Author: Weft maintainers' shown
  grep -qx '  Programming Language :: Python :: 3.9' shown
  "$PYTHON" -c 'import importlib.metadata as m; print(m.metadata("weft-pipeline")["Keywords"])' |
    grep -q 'pipeline parallelism'
  "$PYTHON" -c 'import importlib.metadata as m; print(*m.metadata("weft-pipeline").get_all("Provides-Extra"))' |
    grep -qx 'numpy pandas plot torch'
}

@test "the command of the wheel runs without a library beside libc" {
  "$ENVIRONMENT/bin/weft" gen 1F1B -p 2 -m 2 | "$ENVIRONMENT/bin/weft" verify -
  run ldd "$ENVIRONMENT/bin/weft"
  [[ $output != *jansson* ]]
}

@test "the command of the wheel lists the commands that it has, and says so of the others" {
  "$ENVIRONMENT/bin/weft" --help >help
  for command in train sample bench playground; do
    ! grep -q "^  $command " help || { cat help; return 1; }
    for words in "$command" "$command --help" "help $command"; do
      # shellcheck disable=SC2086,SC2154
      run -69 --separate-stderr "$ENVIRONMENT/bin/weft" $words
      # shellcheck disable=SC2154
      [[ $stderr == "weft: this installation has no '$command'"*"hint: build Weft from its sources"* ]]
    done
  done
  # Those that it has are all others.
  "$WEFT_BUILD_DIR/weft" --help | grep -vE '^  (train|sample|bench|playground) ' | diff - help
}

@test "pytest" {
  "$PYTHON" -m pytest -q -rs -p no:cacheprovider --rootdir "$WEFT_SOURCE_DIR/tests/python" \
    "$WEFT_SOURCE_DIR/tests/python"
}

# The machine's own PyTorch, which is too large to be installed for a test, gets the package.
need_torch() {
  "$WITH_TORCH" -c 'import torch.distributed.pipelining' 2>/dev/null ||
    skip "PyTorch is not installed"
  export PYTHONPATH=$BATS_FILE_TMPDIR/packages
  if [ ! -d "$PYTHONPATH" ]; then
    "$WITH_TORCH" -m pip install --quiet --disable-pip-version-check --target "$PYTHONPATH" pytest
    "$WITH_TORCH" -m pip install --quiet --disable-pip-version-check --target "$PYTHONPATH" \
      --no-index "$WEFT_SOURCE_DIR"/build/wheel/*.whl
  fi
}

@test "weft_pipeline.torch" {
  need_torch
  "$WITH_TORCH" -m pytest -q -p no:cacheprovider "$WEFT_SOURCE_DIR/tests/python/test_torch.py" \
    "$WEFT_SOURCE_DIR/tests/python/test_torch_modules.py" "$WEFT_SOURCE_DIR/tests/python/test_torch_graphs.py" \
    "$WEFT_SOURCE_DIR/tests/python/test_torch_batches.py" "$WEFT_SOURCE_DIR/tests/python/test_torch_kinds.py" \
    "$WEFT_SOURCE_DIR/tests/python/test_torch_split.py" \
    "$WEFT_SOURCE_DIR/tests/python/test_torch_tools.py"
}

@test "weft_pipeline.torch: jobs of torchrun" {
  need_torch
  "$WITH_TORCH" -m pytest -q -p no:cacheprovider "$WEFT_SOURCE_DIR/tests/python/test_torchrun.py"
}

@test "weft_pipeline.torch: stages on GPUs, on the fake driver" {
  need_torch
  "$WITH_TORCH" -m pytest -q -p no:cacheprovider "$WEFT_SOURCE_DIR/tests/python/test_torch_gpus.py"
}

@test "weft_pipeline.torch: stages on a real GPU" {
  need_torch
  "$WITH_TORCH" "$WEFT_SOURCE_DIR/tests/python/device_tensors.py" | tee said
  ! grep -q '^skipped: ' said || skip "$(sed -n 's/^skipped: //p' said)"
}

@test "mypy --strict" {
  "$PYTHON" -m mypy --strict --cache-dir "$BATS_TEST_TMPDIR" -p weft_pipeline
}

@test "ruff" {
  cd "$WEFT_SOURCE_DIR"
  "$PYTHON" -m ruff check --no-cache --config python/pyproject.toml python tests/python
  "$PYTHON" -m ruff format --no-cache --check --config python/pyproject.toml python tests/python
}
