# The short way in; the build itself is CMake's.
release:
	@cmake --preset release
	@cmake --build --preset release
.PHONY: release
