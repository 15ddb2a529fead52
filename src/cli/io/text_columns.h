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
  char text[WEFT_AMOUNT_SIZE];
};
struct weft_cli_amount weft_cli_amount(double amount);

/* "s" unless count is 1. */
const char *weft_cli_plural(uint64_t count);

#endif
