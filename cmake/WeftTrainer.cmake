# The library of the reference trainer: trainer/, on the public headers and CBLAS. Without
# CBLAS all else is built, and `weft train` says what is missing.
option(WEFT_TRAINER "Build the reference trainer, where there is a CBLAS" ON)

if(WEFT_TRAINER)
  # OpenBLAS's own, so that the number of its threads can be set.
  pkg_check_modules(OPENBLAS QUIET IMPORTED_TARGET openblas)
  if(NOT OPENBLAS_FOUND)
    message(STATUS "no OpenBLAS (libopenblas-dev): built without the trainer")
  endif()
endif()

# Matrix products on GPUs, by a library that is loaded at run time: for the trainer and bench/.
weft_stage(cublaslt trainer/cublaslt)
weft_stage(trainer trainer)
add_library(weft_cublaslt STATIC trainer/cublaslt/cublaslt.c)
target_include_directories(weft_cublaslt PUBLIC
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/inc/cublaslt)
target_link_libraries(weft_cublaslt PRIVATE weft_flags PUBLIC Threads::Threads ${CMAKE_DL_LIBS})

set(WEFT_HAS_TRAINER OFF)
if(WEFT_TRAINER AND OPENBLAS_FOUND)
  set(WEFT_HAS_TRAINER ON)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS trainer/*.c)
  # tests/CMakeLists.txt, cmake/WeftPrograms.cmake, and the library above
  list(FILTER sources EXCLUDE REGEX "/trainer/(tests|command|bench|cublaslt)/")
  add_library(weft_gpt_objects OBJECT ${sources})
  weft_kernels_text(weft_gpt_objects weft_gpt_cuda_text trainer/cuda/gpt_kernels.h
    ${PROJECT_SOURCE_DIR}/trainer/cuda/gpt_layers.cu
    ${PROJECT_SOURCE_DIR}/trainer/cuda/gpt_optimizer.cu
    ${PROJECT_SOURCE_DIR}/trainer/cuda/gpt_attention.cu
    ${PROJECT_SOURCE_DIR}/trainer/cuda/gpt_attention_hopper.cu)
  target_include_directories(weft_gpt_objects PUBLIC
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/inc/trainer ${PROJECT_BINARY_DIR}/inc/cublaslt)
  target_link_libraries(weft_gpt_objects PRIVATE weft_flags PkgConfig::OPENBLAS PkgConfig::JANSSON)
  # Loops over floats are worth more than -O2 gives them. No -ffast-math: results are
  # compared bit for bit. But nobody looks at errno or at floating-point traps, which
  # would keep square roots from being vectors.
  target_compile_options(weft_gpt_objects PRIVATE -fno-math-errno -fno-trapping-math)
  if(NOT WEFT_SANITIZE)
    target_compile_options(weft_gpt_objects PRIVATE -O3)
  endif()
  add_library(weft_gpt STATIC $<TARGET_OBJECTS:weft_gpt_objects>)
  set_target_properties(weft_gpt PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(weft_gpt INTERFACE ${PROJECT_BINARY_DIR}/inc/trainer)
  target_link_libraries(weft_gpt PUBLIC weft_cublaslt weft_run_static weft_static
    PkgConfig::OPENBLAS PkgConfig::JANSSON Threads::Threads m)
endif()
