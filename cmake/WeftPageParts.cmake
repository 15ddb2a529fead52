# What the scripts that write pages share (cmake/WeftPage.cmake, cmake/WeftPlaygroundPage.cmake).

# The table of ops, from src/ir/ops.def through the C preprocessor.
function(weft_page_ops compiler result)
  execute_process(COMMAND ${compiler} -E -P -x c -I ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../src
      ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../src/render/html/page/ops.js.in
    OUTPUT_VARIABLE ops COMMAND_ERROR_IS_FATAL ANY)
  set(${result} "${ops}" PARENT_SCOPE)
endfunction()

# A text that goes into a script or style element must not end it.
function(weft_page_check text)
  if("${text}" MATCHES "</(script|style)|<!--")
    message(FATAL_ERROR "the page's script or style would end its own element: ${CMAKE_MATCH_0}")
  endif()
endfunction()

# SHA-256 in base64, as content security policies want it.
function(weft_page_hash text result)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 hex "${text}")
  set(hash "")
  foreach(at RANGE 0 60 6) # three bytes, four digits
    string(SUBSTRING "${hex}0000" ${at} 6 group)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${group} >> ${shift}) & 63")
      string(SUBSTRING "${digits}" ${digit} 1 digit)
      string(APPEND hash "${digit}")
    endforeach()
  endforeach()
  string(SUBSTRING "${hash}" 0 43 hash) # 32 bytes are 42 digits and two thirds
  set(${result} "${hash}=" PARENT_SCOPE)
endfunction()
