# The short way in; the build itself is CMake's (CMakeLists.txt, CMakePresets.json).
#
#   make              the library and the command, in build/
#   make check        the quick tests, while you change something
#   make test         every test, plain and under sanitizers, and some fuzzing
#   make test-long    the tests that take long
#   make test-command the tests of the programs, the documents and MPI, in the plain build
#   make test-peers   the tests beside PyTorch and others that apt-get does not bring
#   make gates        plans and instruction counts against stored results (tools/gates.sh)
#   make bench        measure
#   make lint         format, warnings of two compilers, clang-tidy, shellcheck
#   make install      PREFIX=/usr/local, DESTDIR= for packagers; docs/install.md
#   make uninstall    the same PREFIX and DESTDIR
#   make wheel        the Python package, in build/wheel; MANYLINUX=1: for any Linux since 2018
#   make playground   Weft in the browser: one HTML file; `build/weft playground` opens it
#   make train        train a small GPT on these sources; what comes of it is in train-out/
#   make clean
#
# With WERROR=1, here or in the environment, the compiler's warnings are errors.
# What is missing on the machine is installed first (tools/install-deps.sh); with WEFT_NO_INSTALL=1
# the packages are printed instead.

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc)
WERROR ?=
WERROR_OPTION = -DWEFT_WERROR=$(if $(WERROR),ON,OFF)

.DEFAULT_GOAL := build
.PHONY: build deps-build deps-check deps-command deps-test deps-gates deps-lint deps-playground check test test-long test-command test-peers gates bench lint install uninstall wheel playground train clean

deps-build deps-check deps-command deps-test deps-gates deps-lint deps-playground: deps-%:
	@tools/install-deps.sh $*

build: deps-build
	@tools/configure.sh release $(WERROR_OPTION)
	@cmake --build --preset release --target product

# One rule for a whole build, tests included: built-release, built-asan ...
built-%: deps-test
	@tools/configure.sh $* $(WERROR_OPTION)
	@cmake --build --preset $*

# More tests than there are cores: many wait for a stall limit, or for each other.
TEST_JOBS = $(shell expr 3 \* $(JOBS) + 2)

check: deps-check
	@tools/configure.sh release $(WERROR_OPTION)
	@cmake --build --preset release --target check_programs
	@tools/run-tests.sh release -- -j $(TEST_JOBS) -L '^check$$'

test: built-release built-asan built-tsan built-fuzz
	@tools/run-tests.sh release asan tsan fuzz -- -j $(TEST_JOBS) -LE long

test-long: built-release
	@tools/run-tests.sh release -- -j $(JOBS) -L long

# Left out: cli_train_safetensors, for which Python's safetensors package would have to be there.
test-command: deps-command
	@tools/configure.sh release $(WERROR_OPTION)
	@cmake --build --preset release --target command_tests
	@tools/run-tests.sh release -- -j $(TEST_JOBS) -LE long \
	  -R '^(cli_|docs|launch_|mpi_|consumer|makefile|packaging|tree|without_mpi)|_(openmpi|mpich)$$' \
	  -E '^cli_train_safetensors$$'

# They are part of `make test` too, and skipped there where Python does not have what they need.
test-peers: built-release
	@tools/run-tests.sh release -- -j $(JOBS) \
	  -R '^(python_wheel|pytorch_peer|ortools_peer|cli_train_pytorch|cli_train_safetensors)$$'

gates: deps-gates
	@tools/configure.sh release $(WERROR_OPTION)
	@cmake --build --preset release
	@tools/gates.sh --jobs $(JOBS)

bench: build
	@build/weft bench
	@echo; build/weft bench train || [ $$? -eq 69 ] # without the trainer
	@echo; build/weft bench mpi || [ $$? -eq 69 ] # without MPI
	@echo; build/weft bench gpu || [ $$? -eq 69 ] # without a GPU
	@if command -v python3 >/dev/null; then \
	  python3 bench/pytorch.py; \
	else echo "bench/pytorch.py: no python3 here; not compared with PyTorch"; fi

lint: deps-lint
	@tools/lint.sh

install uninstall: build
	@tools/install.sh $@ "$(PREFIX)" "$(DESTDIR)"

wheel: build
	@tools/build-wheel.sh $(if $(MANYLINUX),--manylinux)

# And the command, which opens it.
playground: deps-build deps-playground
	@tools/configure.sh release $(WERROR_OPTION)
	@cmake --build --preset release --target playground weft_command
	@echo build/share/weft/playground.html

# TRAIN: further options. The folder is for one training, so the last one's goes.
TRAIN ?=
TRAIN_OUT ?= train-out
WEFT ?= build/weft

train: build
	@if [ -e "$(TRAIN_OUT)" ]; then rm -rf "$(TRAIN_OUT).old" && mv "$(TRAIN_OUT)" "$(TRAIN_OUT).old"; fi
	@mkdir -p "$(TRAIN_OUT)"
	@$(WEFT) train --ranks 2 --checkpoint "$(TRAIN_OUT)/checkpoint" --checkpoint-every 200 \
	  --log "$(TRAIN_OUT)/log.jsonl" --profile "$(TRAIN_OUT)/costs.json" -o "$(TRAIN_OUT)/timeline.html" $(TRAIN)

clean:
	rm -rf build build-*/
