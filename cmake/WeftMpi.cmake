# The drivers of the mpi transport: src/comm/mpi/driver, compiled once against each MPI that
# is found, into <build>/lib/weft-mpi-<name>.so. libweft-run loads them and links no MPI.
# Without any, everything else is built, and asking for mpi says what to install.
option(WEFT_MPI "Build drivers for the MPIs that are there" ON)

include(CheckCSourceCompiles)

# weft_find_mpi(NAME MACRO): sets WEFT_MPI_<NAME>_FOUND, _INCLUDES and _LIBRARIES.
# By its own compiler wrapper, or by the one that is simply called mpicc.
function(weft_find_mpi name macro)
  set(WEFT_MPI_${name}_FOUND OFF PARENT_SCOPE)
  find_program(WEFT_MPICC_${name} NAMES mpicc.${name} mpicc)
  if(NOT WEFT_MPICC_${name})
    return()
  endif()
  execute_process(COMMAND ${WEFT_MPICC_${name}} -show
    OUTPUT_VARIABLE line RESULT_VARIABLE result ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(words UNIX_COMMAND "${line}")
  set(includes ${words})
  list(FILTER includes INCLUDE REGEX "^-I")
  list(TRANSFORM includes REPLACE "^-I" "")
  set(libraries ${words})
  list(FILTER libraries INCLUDE REGEX "^-(L|l|Wl,-rpath)")

  set(CMAKE_REQUIRED_INCLUDES ${includes})
  set(CMAKE_REQUIRED_LIBRARIES ${libraries})
  set(CMAKE_REQUIRED_QUIET ON)
  check_c_source_compiles("#include <mpi.h>
    #ifndef ${macro}
    #error another MPI
    #endif
    int main(void) { return MPI_Finalize(); }" WEFT_MPI_${name}_WORKS)
  if(result EQUAL 0 AND WEFT_MPI_${name}_WORKS)
    set(WEFT_MPI_${name}_FOUND ON PARENT_SCOPE)
    set(WEFT_MPI_${name}_INCLUDES ${includes} PARENT_SCOPE)
    set(WEFT_MPI_${name}_LIBRARIES ${libraries} PARENT_SCOPE)
  endif()
endfunction()

# The driver sees what module comm sees, and mpi.h, which nothing else includes. Linked into it
# are base, device and three files of comm.
function(weft_mpi_driver name)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/mpi/driver/*.c
    ${PROJECT_SOURCE_DIR}/src/comm/channel_ends.c ${PROJECT_SOURCE_DIR}/src/comm/core_yield.c
    ${PROJECT_SOURCE_DIR}/src/comm/group_plan.c)
  set(target weft_mpi_${name})
  add_library(${target} MODULE ${sources} $<TARGET_OBJECTS:weft_base>
    $<TARGET_OBJECTS:weft_device>)
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME weft-mpi-${name} POSITION_INDEPENDENT_CODE ON
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  target_include_directories(${target} PRIVATE ${WEFT_INCLUDES_mpi})
  target_include_directories(${target} SYSTEM PRIVATE ${WEFT_MPI_${name}_INCLUDES})
  target_compile_definitions(${target} PRIVATE WEFT_MPI_IMPLEMENTATION="${name}")
  target_link_libraries(${target} PRIVATE weft_flags Threads::Threads ${WEFT_MPI_${name}_LIBRARIES})
  if(NOT WEFT_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()

# Where an installed program finds them.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/comm/mpi/mpi_loader.c PROPERTIES
  COMPILE_DEFINITIONS WEFT_LIBDIR="${CMAKE_INSTALL_LIBDIR}")

set(WEFT_MPIS "") # those that are there
set(WEFT_INCLUDES_mpi ${WEFT_INCLUDES_comm})
if(WEFT_MPI AND NOT WEFT_FUZZ)
  weft_find_mpi(openmpi OPEN_MPI)
  weft_find_mpi(mpich MPICH_VERSION)
  foreach(name openmpi mpich)
    if(WEFT_MPI_${name}_FOUND)
      weft_mpi_driver(${name})
      list(APPEND WEFT_MPIS ${name})
    endif()
  endforeach()
  if(NOT WEFT_MPIS)
    message(STATUS "no MPI (libopenmpi-dev openmpi-bin, or libmpich-dev mpich): built without its transport")
  endif()
endif()

# Who links libweft-run has the drivers built, and finds them: the shared library beside itself,
# a program with the static one on its run path. Weft's own programs look beside themselves.
function(weft_mpi_for_users)
  foreach(name IN LISTS WEFT_MPIS)
    add_dependencies(weft_run_static weft_mpi_${name})
    add_dependencies(weft_run_shared weft_mpi_${name})
  endforeach()
  target_link_options(weft_run_static INTERFACE
    $<INSTALL_INTERFACE:-Wl,-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}/weft>)
  if(NOT PROJECT_IS_TOP_LEVEL)
    target_link_options(weft_run_static INTERFACE
      $<BUILD_INTERFACE:-Wl,-rpath,${PROJECT_BINARY_DIR}/lib>)
  endif()
endfunction()
