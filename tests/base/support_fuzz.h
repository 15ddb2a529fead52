/* What fuzz targets share: how they fail, and what every error of a reader must satisfy. */
#ifndef SUPPORT_FUZZ_H
#define SUPPORT_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/base.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops with a crash, which libFuzzer reports together with the input. */
void fuzz_require(bool good, const char *what);

/* Whole characters of UTF-8 that a terminal shows, and line breaks if `lines`. */
bool fuzz_is_printable(const char *text, bool lines);

/* A reader's error says why and what to do, in printable text, and points into its input; a limit
 * may have no place. */
void fuzz_check_error(const struct weft_error *error, const uint8_t *data, size_t size);

#endif
