/* Columns in text output. */
#ifndef CLI_TEXT_COLUMNS_H
#define CLI_TEXT_COLUMNS_H

#include <weft/support.h>

/* Columns that UTF-8 text takes on a screen. */
size_t weft_cli_width(const char *data, size_t size);

/* Blanks until the text added since offset `begin` takes `width` columns, and at
 * least two of them. */
void weft_cli_pad(struct weft_text *text, size_t begin, size_t width);

/* Cuts the blanks at the end of the last line. */
void weft_cli_trim(struct weft_text *text);

/* weft_amount(), as an argument of printf. */
struct weft_cli_amount {
  char text[WEFT_AMOUNT_SIZE + 16]; /* with a unit */
};
struct weft_cli_amount weft_cli_amount(double amount);

/* "1 rank", "8 ranks", "2 microbatches", as an argument of printf. */
struct weft_cli_count {
  char text[64];
};
struct weft_cli_count weft_cli_count(uint64_t count, const char *noun);

/* An amount with its unit, "12.5 ms", or without where that is "". */
struct weft_cli_amount weft_cli_amount_in(double amount, const char *unit);

/* "s" unless count is 1. */
const char *weft_cli_plural(uint64_t count);

#endif
