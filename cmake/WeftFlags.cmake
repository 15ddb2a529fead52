# How C is compiled here: the language, the warnings, the build types, and the
# sanitizers. Everything hangs on the interface target weft_flags, so that
# nothing leaks into a project that adds Weft as a subdirectory.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
  if(WEFT_SANITIZE OR WEFT_FUZZ)
    # Asserts stay on; lines and functions for reports, which is half the time of -g.
    set(CMAKE_C_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")
  else()
    set(CMAKE_C_FLAGS_DEBUG "-O0 -g")
  endif()
endif()

# The same bytes in whichever folder: no path of it in what is linked.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)

add_library(weft_flags INTERFACE)
target_compile_definitions(weft_flags INTERFACE _POSIX_C_SOURCE=200809L)
# No interposition: with it, a call to a function of the API could not be
# inlined even inside the library.
target_compile_options(weft_flags INTERFACE
  -fvisibility=hidden -fno-semantic-interposition
  -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
  $<$<BOOL:${WEFT_WERROR}>:-Werror>)

if(WEFT_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "WEFT_FUZZ needs clang (found ${CMAKE_C_COMPILER_ID}): use the preset `fuzz`")
  endif()
  set(WEFT_SANITIZE address,undefined)
  target_compile_options(weft_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(WEFT_SANITIZE)
  target_compile_options(weft_flags INTERFACE
    -fsanitize=${WEFT_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(weft_flags INTERFACE -fsanitize=${WEFT_SANITIZE})
  if(CMAKE_C_COMPILER_ID STREQUAL GNU)
    # gcc warns falsely here when the sanitizers' code is in the way.
    target_compile_options(weft_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
