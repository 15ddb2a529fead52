/* Fuzzes the costs file. Beyond not crashing, what must hold:
 *   - a failing call leaves its output alone, explains itself in printable text,
 *     and names a place inside of the text;
 *   - what was read passes the check that costs made in code must pass. */
#include <string.h>

#include <weft/weft.h>

#include "support_fuzz.h"

/* Larger inputs only make it slower, not wiser. */
#define SIZE_MAX_FUZZED 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct weft_costs *costs = NULL;
  struct weft_error error = {0};
  if (size > SIZE_MAX_FUZZED) {
    return 0;
  }
  const enum weft_status status =
      weft_costs_parse(NULL, (const char *)data, size, "fuzz", &costs, &error);
  if (status != WEFT_OK) {
    fuzz_require(costs == NULL, "a failing call wrote its output");
    fuzz_require(error.status == status, "the error carries another status");
    fuzz_require(error.status == WEFT_ERR_FORMAT || error.status == WEFT_ERR_LIMIT,
                 "a status that text cannot have");
    fuzz_check_error(&error, data, size);
    return 0;
  }
  fuzz_require(weft_costs_check(costs, costs->stage_count, &error) == WEFT_OK,
               "read, but not right");
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    fuzz_require(weft_costs_of(costs, s) == &costs->stages[s], "the entry of another stage");
  }
  fuzz_require(memchr(costs->unit, '\0', sizeof costs->unit) != NULL, "a unit without an end");
  weft_costs_destroy(costs);
  return 0;
}
