# The programs. All see the public headers only, and src/cli, which reads their command
# lines and files and writes their messages:
#
#     weft         src/cli           libc, libm and jansson; no BLAS
#     weft-bench   bench/            the same
#     weft-train   trainer/command  the reference trainer, the only one with BLAS
#                  trainer/bench    (cmake/WeftTrainer.cmake)
#
# Everything but the files with main() is in libraries, so that tests can link it.

weft_stage(cli src/cli)
weft_stage(bench bench)

# weft_program_library(NAME INCLUDES folders... SOURCES files...)
function(weft_program_library name)
  cmake_parse_arguments(LIBRARY "" "" "INCLUDES;SOURCES" ${ARGN})
  add_library(${name} STATIC ${LIBRARY_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${LIBRARY_INCLUDES})
  target_link_libraries(${name} PRIVATE weft_flags)
endfunction()

file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.c)
list(FILTER sources EXCLUDE REGEX "/main\\.c$")
weft_program_library(weft_cli SOURCES ${sources} INCLUDES ${PROJECT_BINARY_DIR}/inc/cli)

# Stages whose results are compared bit for bit on the host and on GPUs: for bench/ and tests, whose
# fake driver is a shared library. No fused multiply-add on the host either.
add_library(weft_linear_stage STATIC bench/linear/linear_stage.c bench/linear/linear_kernels.c)
set_source_files_properties(bench/linear/linear_kernels.c PROPERTIES
  COMPILE_OPTIONS -ffp-contract=off)
set_target_properties(weft_linear_stage PROPERTIES POSITION_INDEPENDENT_CODE ON)
weft_kernels_text(weft_linear_stage weft_linear_kernels_text bench/linear/linear_kernels.h
  ${PROJECT_SOURCE_DIR}/bench/linear/linear_kernels.cu)
target_include_directories(weft_linear_stage PRIVATE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/inc/bench)
target_link_libraries(weft_linear_stage PRIVATE weft_flags)

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.c
  ${PROJECT_SOURCE_DIR}/bench/gpu/*.c)
list(FILTER sources EXCLUDE REGEX "_main\\.c$")
weft_program_library(weft_benchmarks SOURCES ${sources}
  INCLUDES ${PROJECT_BINARY_DIR}/inc/cli ${PROJECT_BINARY_DIR}/inc/bench)
target_link_libraries(weft_benchmarks PRIVATE weft_cublaslt)

# weft_program(TARGET NAME MAIN libraries...): and once more with the shared libraries, which
# hide what is not public, for nothing but the check.
function(weft_program target name main)
  add_executable(${target} ${main})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_libraries(${target} PRIVATE weft_flags ${ARGN} weft_run_static weft_static m)
  if(WEFT_CHECK_LAYERS)
    add_executable(weft_layer_${target} ${main})
    set_target_properties(weft_layer_${target} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/layers)
    target_link_libraries(weft_layer_${target} PRIVATE weft_flags ${ARGN} weft_run_shared weft_shared m)
  endif()
endfunction()

set(WEFT_PROGRAMS weft_command weft_bench)
weft_program(weft_command weft src/cli/main.c weft_cli)
weft_program(weft_bench weft-bench bench/bench_main.c weft_benchmarks weft_linear_stage weft_cli)
if(WEFT_HAS_TRAINER)
  file(GLOB sources CONFIGURE_DEPENDS trainer/command/*.c trainer/bench/*.c)
  list(FILTER sources EXCLUDE REGEX "_main\\.c$")
  weft_program_library(weft_train_commands SOURCES ${sources} INCLUDES
    ${PROJECT_BINARY_DIR}/inc/trainer ${PROJECT_BINARY_DIR}/inc/cli ${PROJECT_BINARY_DIR}/inc/bench)
  target_link_libraries(weft_train_commands PRIVATE PkgConfig::OPENBLAS)
  weft_program(weft_train weft-train trainer/command/train_main.c
    weft_train_commands weft_benchmarks weft_linear_stage weft_cli weft_gpt)
  target_include_directories(weft_train PRIVATE ${PROJECT_BINARY_DIR}/inc/trainer)
  list(APPEND WEFT_PROGRAMS weft_train)
endif()
