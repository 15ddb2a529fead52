# What `make install` lays down: headers, both libraries, the programs with their man page and
# completions, documents and examples, and the files through which pkg-config and
# find_package(Weft) find them. All of it can be moved to another prefix.

if(NOT PROJECT_IS_TOP_LEVEL OR WEFT_FUZZ)
  return()
endif()

# `make` builds what is installed, and the layer checks, but no tests.
add_custom_target(product DEPENDS weft_static weft_shared weft_run_static weft_run_shared ${WEFT_PROGRAMS} weft_manual)
foreach(name IN LISTS WEFT_MPIS)
  add_dependencies(product weft_mpi_${name})
  install(TARGETS weft_mpi_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/weft)
endforeach()
if(WEFT_CHECK_LAYERS)
  list(TRANSFORM WEFT_MODULES PREPEND weft_layer_ OUTPUT_VARIABLE layers)
  list(TRANSFORM WEFT_PROGRAMS PREPEND weft_layer_ OUTPUT_VARIABLE programs)
  add_dependencies(product ${layers} ${programs})
endif()

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Weft)

install(TARGETS weft_static weft_shared weft_run_static weft_run_shared EXPORT WeftTargets)
install(TARGETS ${WEFT_PROGRAMS})
install(DIRECTORY include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

install(EXPORT WeftTargets NAMESPACE weft:: DESTINATION ${package_dir})
configure_package_config_file(cmake/WeftConfig.cmake.in WeftConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(WeftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/WeftConfig.cmake ${PROJECT_BINARY_DIR}/WeftConfigVersion.cmake
        DESTINATION ${package_dir})

# The .pc files find their prefix from where they lie, so `cmake --install --prefix` may put
# them anywhere. They give programs a run path to the libraries, which the system's own folders
# do not need.
file(RELATIVE_PATH WEFT_PC_TO_PREFIX
  /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/weft.pc.in weft.pc @ONLY)
configure_file(cmake/weft-run.pc.in weft-run.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weft.pc ${PROJECT_BINARY_DIR}/weft-run.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(CODE "
  if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
    foreach(name weft weft-run)
      set(file \"\$ENV{DESTDIR}/usr/${pc_dir}/\${name}.pc\")
      file(READ \"\${file}\" text)
      string(REGEX REPLACE \"rpath=[^\n]*\" \"rpath=\" text \"\${text}\")
      file(WRITE \"\${file}\" \"\${text}\")
    endforeach()
  endif()")

install(DIRECTORY ${PROJECT_BINARY_DIR}/share/ DESTINATION ${CMAKE_INSTALL_DATADIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
