# The HTML timeline's page, src/render/html/page, as a C file of module render.
#
# Included, it adds the step to the build. Run as a script, it is that step:
#
#     cmake -D OUTPUT=timeline_page.c -D CC=cc [-D HASHES=hashes.cmake] -P cmake/WeftPage.cmake
#
# The parts become one page that allows no script and no style but its own: the
# policy in its head names them by hash. It is cut where the data goes in. Its table
# of ops is src/ir/ops.def, through the C preprocessor.

set(page_folder ${CMAKE_CURRENT_LIST_DIR}/../src/render/html/page)
set(op_table ${CMAKE_CURRENT_LIST_DIR}/../src/ir/ops.def)
set(page_functions ${CMAKE_CURRENT_LIST_DIR}/WeftPageParts.cmake)
set(page_scripts codec.js model.js words.js view.js paint.js coverage.js lanes.js margins.js draw.js panels.js
  controls.js pointer.js keyboard.js files.js print.js start.js)

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(page_source ${PROJECT_BINARY_DIR}/timeline_page.c)
  list(TRANSFORM page_scripts PREPEND ${page_folder}/ OUTPUT_VARIABLE page_parts)
  add_custom_command(OUTPUT ${page_source}
    COMMAND ${CMAKE_COMMAND} -D OUTPUT=${page_source} -D CC=${CMAKE_C_COMPILER} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${CMAKE_CURRENT_LIST_FILE} ${page_functions} ${page_folder}/timeline.html ${page_folder}/timeline.css
      ${page_folder}/ops.js.in ${op_table} ${page_parts}
    COMMENT "Writing timeline_page.c" VERBATIM)
  target_sources(weft_render PRIVATE ${page_source})
  return()
endif()

include(${page_functions})

function(c_array name text result)
  string(HEX "${text}" hex)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  set(${result} "const unsigned char ${name}[] = {\n${bytes}\n};\nconst size_t ${name}_size = sizeof ${name};\n"
    PARENT_SCOPE)
endfunction()

file(READ ${page_folder}/timeline.css style)
weft_page_ops(${CC} ops)
set(script "\n(function () {\n'use strict';\n\n${ops}")
foreach(part IN LISTS page_scripts)
  file(READ ${page_folder}/${part} text)
  string(APPEND script "\n${text}")
endforeach()
string(APPEND script "})();\n")
weft_page_check("${script}${style}")
weft_page_hash("${style}" style_hash)
weft_page_hash("${script}" script_hash)
if(HASHES) # for a page around this one
  file(WRITE ${HASHES} "set(TIMELINE_STYLE_HASH \"${style_hash}\")\nset(TIMELINE_SCRIPT_HASH \"${script_hash}\")\n")
endif()

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
