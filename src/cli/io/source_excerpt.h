/* The line of a text in which something is wrong, with a caret under the column. */
#ifndef CLI_SOURCE_EXCERPT_H
#define CLI_SOURCE_EXCERPT_H

#include <weft/base.h>

/* Appends two lines to `message`, each after a newline: the line of `text`, or a
 * window of it, with control bytes escaped, and the caret. Adds nothing when
 * there is no such place. line and column count from 1. */
void weft_cli_excerpt_add(struct weft_text *message, const char *text, size_t size, uint64_t line,
                          uint64_t column);

#endif
