# The playground, playground/: a project of its own with clang for WebAssembly, built from here into
# <build>/share/weft/playground.html, from where it is installed. Where clang cannot make
# WebAssembly, everything else is built, and the target `playground` says what is missing.
if(NOT PROJECT_IS_TOP_LEVEL OR WEFT_SANITIZE OR WEFT_FUZZ)
  return()
endif()
option(WEFT_PLAYGROUND "Build the playground, where there is clang with wasi-libc" ON)

set(WEFT_HAS_PLAYGROUND OFF)
find_program(WEFT_CLANG clang)
if(WEFT_PLAYGROUND AND WEFT_CLANG)
  set(probe ${PROJECT_BINARY_DIR}/playground-probe)
  file(WRITE ${probe}.c "#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n")
  execute_process(COMMAND ${WEFT_CLANG} --target=wasm32-wasi ${probe}.c -o ${probe}.wasm
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
  if(result EQUAL 0)
    set(WEFT_HAS_PLAYGROUND ON)
  endif()
endif()

set(WEFT_PLAYGROUND_FILE ${PROJECT_BINARY_DIR}/share/weft/playground.html)
if(NOT WEFT_HAS_PLAYGROUND)
  message(STATUS "no clang for WebAssembly (wasi-libc, lld, libclang-rt-*-dev-wasm32): built without the playground")
  add_custom_target(playground
    COMMAND ${CMAKE_COMMAND} -E echo
      "the playground needs clang for WebAssembly: tools/install-deps.sh playground installs clang, lld, wasi-libc and libclang-rt-*-dev-wasm32; then configure again"
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  return()
endif()
set(folder ${PROJECT_BINARY_DIR}/playground)
add_custom_target(playground ALL
  COMMAND ${CMAKE_COMMAND} -S ${PROJECT_SOURCE_DIR}/playground -B ${folder} -G Ninja
    --toolchain ${PROJECT_SOURCE_DIR}/playground/wasi.cmake --log-level=WARNING
    -D WEFT_PLAYGROUND_OUTPUT=${WEFT_PLAYGROUND_FILE} -D WEFT_WERROR=${WEFT_WERROR}
    -D CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER}
  COMMAND ${CMAKE_COMMAND} --build ${folder}
  BYPRODUCTS ${WEFT_PLAYGROUND_FILE}
  COMMENT "Building the playground" USES_TERMINAL VERBATIM)
