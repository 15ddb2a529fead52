# The short way in; the build itself is CMake's (CMakeLists.txt, CMakePresets.json).
#
#   make              the library and the command, in build/
#   make test         every test, plain and under sanitizers, and a minute of fuzzing
#   make test-long    the tests that take long
#   make bench        measure
#   make lint         format, warnings of two compilers, clang-tidy, shellcheck
#   make install      PREFIX=/usr/local, DESTDIR= for packagers
#   make train        the reference trainer (not in this release)
#   make clean
#
# What is missing on the machine is installed first (tools/install-deps.sh).

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc)

.DEFAULT_GOAL := build
.PHONY: build deps-build deps-test deps-lint test test-long bench lint install train clean

deps-build deps-test deps-lint: deps-%:
	@tools/install-deps.sh $*

build: deps-build
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release --target product

# One rule for a whole build, tests included: built-release, built-asan ...
built-%: deps-test
	@cmake --preset $* --log-level=WARNING >/dev/null
	@cmake --build --preset $*

test: built-release built-asan built-tsan built-fuzz
	@tools/run-tests.sh release asan tsan fuzz -- -j $(JOBS) -LE long

test-long: built-release
	@tools/run-tests.sh release -- -j $(JOBS) -L long

bench: build
	@build/weft bench
	@if command -v python3 >/dev/null; then \
	  for script in bench/*against_pytorch.py; do echo; python3 $$script || exit 1; done; \
	else echo "bench/: no python3 here; not compared with PyTorch"; fi

lint: deps-lint
	@tools/lint.sh

install: build
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)"

train:
	@echo "make train: the trainer comes with a later release; this one plans and proves schedules" >&2; exit 69

clean:
	rm -rf build build-*/
