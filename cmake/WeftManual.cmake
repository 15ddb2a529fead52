# The man page and the shells' completions, written by the command itself from
# its option table, into <build>/share as they are to be installed. In a cross build this machine
# cannot run that command, unless CMAKE_CROSSCOMPILING_EMULATOR does: a command of the same version
# that it can run writes them, or they are left out.
set(WEFT_HOST_COMMAND "" CACHE FILEPATH
  "In a cross build: a weft of this version for this machine, which writes the man page and completions")

set(WEFT_MANUAL "")
set(writer weft_command)
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  set(writer ${WEFT_HOST_COMMAND})
endif()
if(writer AND NOT writer STREQUAL weft_command)
  execute_process(COMMAND ${writer} --version RESULT_VARIABLE result OUTPUT_VARIABLE found
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT found STREQUAL "weft ${PROJECT_VERSION}")
    message(FATAL_ERROR "WEFT_HOST_COMMAND=${writer}: expected a command that runs here and is weft ${PROJECT_VERSION}, found '${found}' (${result}); build these sources for this machine first")
  endif()
endif()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share) # it is installed, whatever is in it

function(weft_write file)
  set(path ${PROJECT_BINARY_DIR}/share/${file})
  cmake_path(GET path PARENT_PATH folder)
  add_custom_command(OUTPUT ${path}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${writer} help ${ARGN} -o ${path}
    DEPENDS ${writer} COMMENT "Writing share/${file}" VERBATIM)
  set(WEFT_MANUAL ${WEFT_MANUAL} ${path} PARENT_SCOPE)
endfunction()

if(NOT writer)
  message(STATUS "a cross build without WEFT_HOST_COMMAND: built without the man page and completions")
  add_custom_target(weft_manual)
elseif(NOT WEFT_FUZZ)
  weft_write(man/man1/weft.1 --man)
  weft_write(bash-completion/completions/weft --completion bash)
  weft_write(zsh/site-functions/_weft --completion zsh)
  weft_write(fish/vendor_completions.d/weft.fish --completion fish)
  add_custom_target(weft_manual ALL DEPENDS ${WEFT_MANUAL})
endif()
