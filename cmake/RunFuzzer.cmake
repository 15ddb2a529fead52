# Runs FUZZER for SECONDS on a scratch copy of CORPUS, so that what it finds on
# the way does not end up in the repository. A crashing input is left in SCRATCH.
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH}/corpus)
if(IS_DIRECTORY ${CORPUS})
  file(GLOB seeds ${CORPUS}/*)
  file(COPY ${seeds} DESTINATION ${SCRATCH}/corpus)
else()
  message(FATAL_ERROR "no corpus: ${CORPUS}")
endif()
execute_process(
  COMMAND ${FUZZER} -max_total_time=${SECONDS} -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
    -artifact_prefix=${SCRATCH}/ ${SCRATCH}/corpus
  WORKING_DIRECTORY ${SCRATCH}
  OUTPUT_FILE ${SCRATCH}/log ERROR_FILE ${SCRATCH}/log
  RESULT_VARIABLE result)
file(STRINGS ${SCRATCH}/log log)
list(LENGTH log lines)
if(lines GREATER 60)
  math(EXPR skip "${lines} - 60")
  list(SUBLIST log ${skip} -1 log)
endif()
list(JOIN log "\n" text)
message(STATUS "${text}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${FUZZER} failed (${result}); the input is in ${SCRATCH}")
endif()
