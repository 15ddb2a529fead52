# The playground's one HTML file, from playground/page, the WebAssembly module and the parts of the
# timeline's page that its worker shares:
#
#     cmake -D MODULE=weft.wasm.gz -D HASHES=hashes.cmake -D CC=clang -D OUTPUT=playground.html
#           -P cmake/WeftPlaygroundPage.cmake
#
# HASHES is what cmake/WeftPage.cmake wrote about the timeline's page, which is shown in a frame: the
# policy of the outer page holds there too. Nothing may be loaded from anywhere.
cmake_minimum_required(VERSION 3.25)
set(root ${CMAKE_CURRENT_LIST_DIR}/..)
set(page ${root}/playground/page)
set(timeline ${root}/src/render/html/page)
include(${CMAKE_CURRENT_LIST_DIR}/WeftPageParts.cmake)
include(${HASHES})

# Files one after the other, as one script.
function(join_files result)
  set(text "")
  foreach(file IN LISTS ARGN)
    file(READ ${file} part)
    string(APPEND text "\n${part}")
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

weft_page_ops(${CC} ops)
join_files(worker ${page}/wasi.js ${timeline}/codec.js ${timeline}/model.js ${page}/worker.js)
set(worker "'use strict';\n${ops}${worker}")
join_files(script ${page}/dom.js ${page}/engine.js ${page}/state.js ${page}/timeline.js
  ${page}/explore.js ${page}/stepper.js ${page}/check.js ${page}/lessons.js ${page}/share.js
  ${page}/start.js)
set(script "\n(function () {\n'use strict';\n${script}})();\n")
file(READ ${page}/playground.css style)
weft_page_check("${script}${style}${worker}")

weft_page_hash("${style}" STYLE_HASH)
weft_page_hash("${script}" SCRIPT_HASH)
execute_process(COMMAND base64 -w 0 ${MODULE} OUTPUT_VARIABLE module COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS ${root}/include/weft/base.h version REGEX "^#define WEFT_VERSION \"")
string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" version "${version}")

file(READ ${page}/playground.html html)
foreach(name STYLE_HASH SCRIPT_HASH TIMELINE_STYLE_HASH TIMELINE_SCRIPT_HASH)
  string(REPLACE "@${name}@" "${${name}}" html "${html}")
endforeach()
string(REPLACE "@VERSION@" "${version}" html "${html}")
string(REPLACE "@STYLE@" "${style}" html "${html}")
string(REPLACE "@WORKER@" "${worker}" html "${html}")
string(REPLACE "@SCRIPT@" "${script}" html "${html}")
string(REPLACE "@MODULE@" "${module}" html "${html}")
file(WRITE ${OUTPUT} "${html}")

file(SIZE ${OUTPUT} size)
if(size GREATER_EQUAL 1000000)
  message(FATAL_ERROR "the playground has ${size} bytes; it is to be smaller than 1 MB")
endif()
