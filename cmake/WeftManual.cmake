# The man page and the shells' completions, written by the command itself from
# its option table, into <build>/share as they are to be installed.

set(WEFT_MANUAL "")
function(weft_write file)
  set(path ${PROJECT_BINARY_DIR}/share/${file})
  cmake_path(GET path PARENT_PATH folder)
  add_custom_command(OUTPUT ${path}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND weft_command help ${ARGN} -o ${path}
    DEPENDS weft_command COMMENT "Writing share/${file}" VERBATIM)
  set(WEFT_MANUAL ${WEFT_MANUAL} ${path} PARENT_SCOPE)
endfunction()

if(NOT WEFT_FUZZ)
  weft_write(man/man1/weft.1 --man)
  weft_write(bash-completion/completions/weft --completion bash)
  weft_write(zsh/site-functions/_weft --completion zsh)
  weft_write(fish/vendor_completions.d/weft.fish --completion fish)
  add_custom_target(weft_manual ALL DEPENDS ${WEFT_MANUAL})
endif()
