# Kernels as text in a C file: a GPU's compiler gets them at run time. The built-in ones,
# src/device/cuda/kernels.cu, are in module device; the trainer and bench/linear have their own.
#
# Included, it has a function that adds the step to the build. Run as a script, it is that step:
#
#     cmake -D NAME=weft_cuda_kernels_text -D HEADER=device/cuda/cuda_compile.h
#           -D OUTPUT=kernels_text.c -D SOURCES=src/device/cuda/kernels.cu -P cmake/WeftKernels.cmake

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(WEFT_KERNELS_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
  # weft_kernels_text(TARGET NAME HEADER sources...): const char NAME[] in a source of the target.
  function(weft_kernels_text target name header)
    set(output ${PROJECT_BINARY_DIR}/${name}.c)
    list(JOIN ARGN "," sources)
    add_custom_command(OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -D NAME=${name} -D HEADER=${header} -D OUTPUT=${output}
        -D SOURCES=${sources} -P ${WEFT_KERNELS_SCRIPT}
      DEPENDS ${WEFT_KERNELS_SCRIPT} ${ARGN}
      COMMENT "Writing ${name}.c" VERBATIM)
    target_sources(${target} PRIVATE ${output})
  endfunction()

  set(kernel_source ${PROJECT_SOURCE_DIR}/src/device/cuda/kernels.cu)
  weft_kernels_text(weft_device weft_cuda_kernels_text device/cuda/cuda_compile.h ${kernel_source})
  # The host runs them too, with the same bits: no fused multiply-add.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/device/kernel.c PROPERTIES
    COMPILE_OPTIONS -ffp-contract=off OBJECT_DEPENDS ${kernel_source})
  return()
endif()

cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" SOURCES "${SOURCES}")
set(text "")
foreach(source IN LISTS SOURCES)
  file(READ ${source} part)
  string(APPEND text "${part}")
endforeach()
string(REPLACE "\\" "\\\\" text "${text}")
string(REPLACE "\"" "\\\"" text "${text}")
string(REPLACE "\n" "\\n\"\n    \"" text "${text}")
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"/* Written by cmake/WeftKernels.cmake. */
#include \"@HEADER@\"

const char @NAME@[] =
    \"@text@\";
")
