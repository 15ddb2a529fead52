# The HTML timeline's page, src/render/html/page, as a C file of module render.
#
# Included, it adds the step to the build. Run as a script, it is that step:
#
#     cmake -D OUTPUT=timeline_page.c -D CC=cc -P cmake/WeftPage.cmake
#
# The parts become one page that allows no script and no style but its own: the
# policy in its head names them by hash. It is cut where the data goes in. Its table
# of ops is src/ir/ops.def, through the C preprocessor.

set(page_folder ${CMAKE_CURRENT_LIST_DIR}/../src/render/html/page)
set(op_table ${CMAKE_CURRENT_LIST_DIR}/../src/ir/ops.def)
set(page_scripts codec.js model.js words.js view.js paint.js coverage.js lanes.js margins.js draw.js panels.js
  controls.js pointer.js keyboard.js files.js start.js)

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(page_source ${PROJECT_BINARY_DIR}/timeline_page.c)
  list(TRANSFORM page_scripts PREPEND ${page_folder}/ OUTPUT_VARIABLE page_parts)
  add_custom_command(OUTPUT ${page_source}
    COMMAND ${CMAKE_COMMAND} -D OUTPUT=${page_source} -D CC=${CMAKE_C_COMPILER} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${CMAKE_CURRENT_LIST_FILE} ${page_folder}/timeline.html ${page_folder}/timeline.css
      ${page_folder}/ops.js.in ${op_table} ${page_parts}
    COMMENT "Writing timeline_page.c" VERBATIM)
  target_sources(weft_render PRIVATE ${page_source})
  return()
endif()

# Base64 of 64 hex digits, as content security policies want their hashes.
function(base64_of_hash hex result)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  set(text "")
  foreach(at RANGE 0 60 6) # three bytes, four digits
    string(SUBSTRING "${hex}0000" ${at} 6 group)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${group} >> ${shift}) & 63")
      string(SUBSTRING "${digits}" ${digit} 1 digit)
      string(APPEND text "${digit}")
    endforeach()
  endforeach()
  string(SUBSTRING "${text}" 0 43 text) # 32 bytes are 42 digits and two thirds
  set(${result} "${text}=" PARENT_SCOPE)
endfunction()

function(c_array name text result)
  string(HEX "${text}" hex)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  set(${result} "const unsigned char ${name}[] = {\n${bytes}\n};\nconst size_t ${name}_size = sizeof ${name};\n"
    PARENT_SCOPE)
endfunction()

file(READ ${page_folder}/timeline.css style)
execute_process(COMMAND ${CC} -E -P -x c -I ${CMAKE_CURRENT_LIST_DIR}/../src ${page_folder}/ops.js.in
  OUTPUT_VARIABLE ops COMMAND_ERROR_IS_FATAL ANY)
set(script "\n(function () {\n'use strict';\n\n${ops}")
foreach(part IN LISTS page_scripts)
  file(READ ${page_folder}/${part} text)
  string(APPEND script "\n${text}")
endforeach()
string(APPEND script "})();\n")
if("${script}${style}" MATCHES "</(script|style)|<!--")
  message(FATAL_ERROR "the page's script or style would end its own element: ${CMAKE_MATCH_0}")
endif()

string(SHA256 style_hash "${style}")
string(SHA256 script_hash "${script}")
base64_of_hash(${style_hash} style_hash)
base64_of_hash(${script_hash} script_hash)

file(READ ${page_folder}/timeline.html html)
string(REPLACE "@STYLE_HASH@" "${style_hash}" html "${html}")
string(REPLACE "@SCRIPT_HASH@" "${script_hash}" html "${html}")
string(REPLACE "@STYLE@" "${style}" html "${html}")
string(REPLACE "@SCRIPT@" "${script}" html "${html}")
string(FIND "${html}" "@DATA@" cut)
string(SUBSTRING "${html}" 0 ${cut} head)
math(EXPR cut "${cut} + 6")
string(SUBSTRING "${html}" ${cut} -1 tail)

c_array(weft_timeline_page_head "${head}" head)
c_array(weft_timeline_page_tail "${tail}" tail)
file(WRITE ${OUTPUT} "/* Made from src/render/html/page by cmake/WeftPage.cmake. */\n#include \"render/html/timeline_page.h\"\n\n${head}\n${tail}")
