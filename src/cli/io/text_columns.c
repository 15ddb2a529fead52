/* Columns in text output. */
#include "cli/io/text_columns.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void weft_cli_pad(struct weft_text *text, size_t begin, size_t width) {
  assert(text != NULL);
  if (text->failed) {
    return;
  }
  const size_t now = weft_count_characters(text->data + begin, text->size - begin);
  const size_t blanks = now + 2 <= width ? width - now : 2;
  weft_text_addf(text, "%*s", (int)blanks, "");
}

void weft_cli_trim(struct weft_text *text) {
  assert(text != NULL);
  while (text->size > 0 && text->data[text->size - 1] == ' ') {
    text->size--;
  }
}

struct weft_cli_words weft_cli_amount(double amount) {
  struct weft_cli_words written;
  (void)weft_amount(written.text, sizeof written.text, amount);
  return written;
}

struct weft_cli_words weft_cli_amount_in(double amount, const char *unit) {
  struct weft_cli_words written = weft_cli_amount(amount);
  const size_t size = strlen(written.text);
  if (unit[0] != '\0') {
    (void)snprintf(written.text + size, sizeof written.text - size, " %s", unit);
  }
  return written;
}

struct weft_cli_words weft_cli_count(uint64_t count, const char *noun) {
  struct weft_cli_words written;
  const size_t size = strlen(noun);
  assert(size > 0 && size < 32);
  const bool is_hissed = noun[size - 1] == 's' || noun[size - 1] == 'h';
  (void)snprintf(written.text, sizeof written.text, "%" PRIu64 " %s%s", count, noun,
                 count == 1  ? ""
                 : is_hissed ? "es"
                             : "s");
  return written;
}

const char *weft_cli_plural(uint64_t count) { return count == 1 ? "" : "s"; }
