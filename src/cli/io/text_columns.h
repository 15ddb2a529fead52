/* Columns in text output. */
#ifndef CLI_TEXT_COLUMNS_H
#define CLI_TEXT_COLUMNS_H

#include <weft/support.h>

#include "cli/cli.h"

/* Blanks until the text added since offset `begin` takes `width` columns, and at
 * least two of them. */
void weft_cli_pad(struct weft_text *text, size_t begin, size_t width);

/* Cuts the blanks at the end of the last line. */
void weft_cli_trim(struct weft_text *text);

/* weft_amount() */
struct weft_cli_words weft_cli_amount(double amount);

/* "1 rank", "8 ranks", "2 microbatches". */
struct weft_cli_words weft_cli_count(uint64_t count, const char *noun);

/* An amount with its unit, "12.5 ms", or without where that is "". */
struct weft_cli_words weft_cli_amount_in(double amount, const char *unit);

/* "s" unless count is 1. */
const char *weft_cli_plural(uint64_t count);

#endif
