/* Fuzzes the costs file. Beyond not crashing, what must hold:
 *   - a failing call leaves its output alone, explains itself in printable text,
 *     and names a place inside of the text;
 *   - what was read passes the check that costs made in code must pass. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "base/plain_text.h"

/* Larger inputs only make it slower, not wiser. */
#define SIZE_MAX_FUZZED 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good, const char *what) {
  if (!good) {
    (void)fprintf(stderr, "fuzz_costs: %s\n", what);
    abort();
  }
}

/* Nothing that controls a terminal, and whole characters only. */
static bool is_printable(const char *text) {
  size_t length;
  for (; *text != '\0'; text += length) {
    length = weft_plain_length(text, strlen(text));
    if (length == 0) {
      return false;
    }
  }
  return true;
}

static uint64_t count_lines(const uint8_t *data, size_t size) {
  uint64_t lines = 1;
  for (size_t i = 0; i < size; i++) {
    lines += data[i] == '\n';
  }
  return lines;
}

static void check_error(const struct weft_error *error, const uint8_t *data, size_t size) {
  require(error->message[0] != '\0' && error->hint[0] != '\0', "a failing call does not say why");
  require(is_printable(error->message), "a message with bytes of the file");
  require(error->status == WEFT_ERR_FORMAT || error->status == WEFT_ERR_LIMIT,
          "a status that text cannot have");
  require(error->status == WEFT_ERR_LIMIT || error->line > 0, "no place");
  require(error->line <= count_lines(data, size), "a line that is not there");
  require(error->column <= size + 1, "a column that is not there");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct weft_costs *costs = NULL;
  struct weft_error error = {0};
  if (size > SIZE_MAX_FUZZED) {
    return 0;
  }
  const enum weft_status status =
      weft_costs_parse(NULL, (const char *)data, size, "fuzz", &costs, &error);
  if (status != WEFT_OK) {
    require(costs == NULL, "a failing call wrote its output");
    require(error.status == status, "the error carries another status");
    check_error(&error, data, size);
    return 0;
  }
  require(weft_costs_check(costs, costs->stage_count, &error) == WEFT_OK, "read, but not right");
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    require(weft_costs_of(costs, s) == &costs->stages[s], "the entry of another stage");
  }
  require(memchr(costs->unit, '\0', sizeof costs->unit) != NULL, "a unit without an end");
  weft_costs_destroy(costs);
  return 0;
}
