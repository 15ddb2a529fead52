# A module is a folder src/<name>. Its compile sees two kinds of headers, its
# own and those of the modules it USES: the internal ones as "ir/action.h", the
# public ones as <weft/ir.h>. For that each module has a staging folder
#
#     <build>/inc/<name>/<name>   ->  src/<name>
#     <build>/inc/<name>/weft/ir.h -> include/weft/ir.h  and so on, for each of its HEADERS
#
# so a wrong include finds no file; or, where it would find an installed Weft,
# a file that says so, from <build>/inc/forbidden. And each module is linked once, for nothing
# but the check, with the objects of the modules it USES and no undefined
# symbols allowed, so an upward call does not link.

set(WEFT_MODULES "")
set(WEFT_OBJECTS "")     # of libweft
set(WEFT_RUN_OBJECTS "") # of libweft-run

function(weft_stage name folder)
  set(stage ${PROJECT_BINARY_DIR}/inc/${name})
  file(MAKE_DIRECTORY ${stage}/weft)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${stage}/${name} SYMBOLIC)
  foreach(header IN LISTS ARGN)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/weft/${header} ${stage}/weft/${header} SYMBOLIC)
  endforeach()
endfunction()

file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/weft/*)
foreach(header IN LISTS headers)
  cmake_path(GET header FILENAME header)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/inc/forbidden/weft/${header} @ONLY CONTENT
    "#error \"this module may not include <weft/${header}>: see the law in CMakeLists.txt\"\n")
endforeach()

# A link that serves only as a check. Not under a sanitizer, whose own symbols
# are left undefined, not inside another project, and not in a cross build, whose linker finds
# libjansson below the shared libraries only where it is told.
set(WEFT_CHECK_LAYERS OFF)
if(PROJECT_IS_TOP_LEVEL AND NOT WEFT_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  set(WEFT_CHECK_LAYERS ON)
endif()

# weft_module(NAME [RUNS] HEADERS public-headers... USES modules...)
# RUNS: it belongs to libweft-run.
macro(weft_module name)
  cmake_parse_arguments(MODULE "RUNS" "" "HEADERS;USES" ${ARGN})
  weft_stage(${name} src/${name} ${MODULE_HEADERS})
  set(WEFT_INCLUDES_${name} ${PROJECT_BINARY_DIR}/inc/${name})
  set(WEFT_LAYER_${name} $<TARGET_OBJECTS:weft_${name}>)
  foreach(used IN LISTS MODULE_USES)
    list(APPEND WEFT_INCLUDES_${name} ${PROJECT_BINARY_DIR}/inc/${used})
    list(APPEND WEFT_LAYER_${name} $<TARGET_OBJECTS:weft_${used}>)
  endforeach()
  list(APPEND WEFT_INCLUDES_${name} ${PROJECT_BINARY_DIR}/inc/forbidden)

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.c)
  list(FILTER sources EXCLUDE REGEX "/driver/") # loaded at run time (cmake/WeftMpi.cmake)
  add_library(weft_${name} OBJECT ${sources})
  set_target_properties(weft_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(weft_${name} PRIVATE ${WEFT_INCLUDES_${name}})
  target_link_libraries(weft_${name} PRIVATE weft_flags)
  if(${name} IN_LIST WEFT_JSON_MODULES)
    target_link_libraries(weft_${name} PRIVATE PkgConfig::JANSSON)
  endif()
  list(APPEND WEFT_MODULES ${name})
  if(MODULE_RUNS)
    list(APPEND WEFT_RUN_OBJECTS $<TARGET_OBJECTS:weft_${name}>)
  else()
    list(APPEND WEFT_OBJECTS $<TARGET_OBJECTS:weft_${name}>)
  endif()

  if(WEFT_CHECK_LAYERS)
    add_library(weft_layer_${name} SHARED ${WEFT_LAYER_${name}})
    set_target_properties(weft_layer_${name} PROPERTIES
      LINKER_LANGUAGE C LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/layers)
    target_link_options(weft_layer_${name} PRIVATE -Wl,-z,defs)
    if("spec" IN_LIST MODULE_USES OR ${name} STREQUAL spec)
      target_link_libraries(weft_layer_${name} PRIVATE PkgConfig::JANSSON m)
    endif()
    target_link_libraries(weft_layer_${name} PRIVATE ${CMAKE_DL_LIBS})
    if(MODULE_RUNS)
      target_link_libraries(weft_layer_${name} PRIVATE Threads::Threads)
    endif()
  endif()
endmacro()

# Programs name the library that they were linked with by this: one whose interface differs has
# another. While the major version is 0, that is any other minor version (docs/install.md).
set(WEFT_SOVERSION ${PROJECT_VERSION_MAJOR})
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(WEFT_SOVERSION 0.${PROJECT_VERSION_MINOR})
endif()

# What both libraries have in common.
function(weft_library_properties name)
  foreach(target ${ARGN})
    set_target_properties(${target} PROPERTIES
      OUTPUT_NAME ${name} LINKER_LANGUAGE C
      ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
    target_include_directories(${target} INTERFACE
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    # Private: who links the static library must link this too, but no public
    # header includes its header.
    target_link_libraries(${target} PRIVATE PkgConfig::JANSSON ${CMAKE_DL_LIBS} m)
    if(WEFT_SANITIZE)
      target_link_options(${target} PUBLIC -fsanitize=${WEFT_SANITIZE})
    endif()
    get_target_property(type ${target} TYPE)
    if(type STREQUAL SHARED_LIBRARY)
      set_target_properties(${target} PROPERTIES
        VERSION ${PROJECT_VERSION} SOVERSION ${WEFT_SOVERSION})
      if(NOT WEFT_SANITIZE)
        target_link_options(${target} PRIVATE -Wl,-z,defs)
      endif()
    endif()
  endforeach()
endfunction()

# libweft: planning. libweft-run: the runtime on top of it. The shared one has
# copies of the lower modules' objects, because libweft hides all of them that
# is not public; they have no state, so two copies are as good as one.
function(weft_libraries)
  add_library(weft_static STATIC ${WEFT_OBJECTS})
  add_library(weft_shared SHARED ${WEFT_OBJECTS})
  add_library(weft::weft_static ALIAS weft_static)
  add_library(weft::weft ALIAS weft_shared)
  weft_library_properties(weft weft_static weft_shared)
  set_target_properties(weft_shared PROPERTIES EXPORT_NAME weft)

  add_library(weft_run_static STATIC ${WEFT_RUN_OBJECTS})
  add_library(weft_run_shared SHARED ${WEFT_RUN_OBJECTS} $<TARGET_OBJECTS:weft_base>
    $<TARGET_OBJECTS:weft_ir> $<TARGET_OBJECTS:weft_spec>)
  add_library(weft::weft_run_static ALIAS weft_run_static)
  add_library(weft::weft_run ALIAS weft_run_shared)
  weft_library_properties(weft-run weft_run_static weft_run_shared)
  set_target_properties(weft_run_shared PROPERTIES EXPORT_NAME weft_run)
  set(map ${PROJECT_SOURCE_DIR}/cmake/weft-run.map)
  target_link_options(weft_run_shared PRIVATE -Wl,--version-script=${map})
  set_target_properties(weft_run_shared PROPERTIES LINK_DEPENDS ${map})
  target_link_libraries(weft_run_static PUBLIC weft_static Threads::Threads ${CMAKE_DL_LIBS})
  target_link_libraries(weft_run_shared PUBLIC weft_shared Threads::Threads ${CMAKE_DL_LIBS})
endfunction()
