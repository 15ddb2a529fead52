# The built-in kernels, src/device/cuda/kernels.cu, as text in a C file of module device: a GPU's
# compiler gets them at run time.
#
# Included, it adds the step to the build. Run as a script, it is that step:
#
#     cmake -D OUTPUT=kernels_text.c -P cmake/WeftKernels.cmake

set(kernel_source ${CMAKE_CURRENT_LIST_DIR}/../src/device/cuda/kernels.cu)

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(kernel_text ${PROJECT_BINARY_DIR}/kernels_text.c)
  add_custom_command(OUTPUT ${kernel_text}
    COMMAND ${CMAKE_COMMAND} -D OUTPUT=${kernel_text} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${CMAKE_CURRENT_LIST_FILE} ${kernel_source}
    COMMENT "Writing kernels_text.c" VERBATIM)
  target_sources(weft_device PRIVATE ${kernel_text})
  # The host runs them too, with the same bits: no fused multiply-add.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/device/kernel.c PROPERTIES
    COMPILE_OPTIONS -ffp-contract=off OBJECT_DEPENDS ${kernel_source})
  return()
endif()

cmake_minimum_required(VERSION 3.25)
file(READ ${kernel_source} text)
string(REPLACE "\\" "\\\\" text "${text}")
string(REPLACE "\"" "\\\"" text "${text}")
string(REPLACE "\n" "\\n\"\n    \"" text "${text}")
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"/* Written by cmake/WeftKernels.cmake from src/device/cuda/kernels.cu. */
#include \"device/cuda/cuda_compile.h\"

const char weft_cuda_kernels_text[] =
    \"@text@\";
")
