/* Numbers on the command line: strict, and clear about what is wrong. */
#include <inttypes.h>

#include "cli/message.h"
#include "cli/option_parser.h"

static bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

enum weft_cli_digits weft_cli_read_number(const char *text, uint64_t *number) {
  if (text[0] == '\0') {
    return WEFT_CLI_DIGITS_EMPTY;
  }
  if (text[0] == '-' && is_digit(text[1])) {
    return WEFT_CLI_DIGITS_NEGATIVE;
  }
  if (!is_digit(text[0])) {
    return WEFT_CLI_DIGITS_NONE;
  }
  uint64_t value = 0;
  bool overflow = false;
  for (; is_digit(*text); text++) {
    const uint64_t digit = (uint64_t)(*text - '0');
    overflow = overflow || value > (UINT64_MAX - digit) / 10;
    value = value * 10 + digit;
  }
  if (*text != '\0') {
    return WEFT_CLI_DIGITS_TRAILING;
  }
  if (overflow) {
    return WEFT_CLI_DIGITS_TOO_LARGE;
  }
  *number = value;
  return WEFT_CLI_DIGITS_OK;
}

static const char *fault_of(enum weft_cli_digits digits, uint64_t value, uint64_t minimum,
                            uint64_t maximum) {
  switch (digits) {
    case WEFT_CLI_DIGITS_EMPTY: return "is empty";
    case WEFT_CLI_DIGITS_NEGATIVE: return "is negative";
    case WEFT_CLI_DIGITS_NONE: return "is not a whole number";
    case WEFT_CLI_DIGITS_TRAILING: return "has something after its digits";
    case WEFT_CLI_DIGITS_TOO_LARGE: return "is over the limit";
    case WEFT_CLI_DIGITS_OK: break;
  }
  if (value < minimum) {
    return "is too small";
  }
  return value > maximum ? "is over the limit" : NULL;
}

int weft_cli_read_bounded(const struct weft_cli *cli, const char *name, const char *text,
                          uint64_t minimum, uint64_t maximum, uint64_t limit, uint64_t *number) {
  uint64_t value = 0;
  const enum weft_cli_digits digits = weft_cli_read_number(text, &value);
  const char *fault = fault_of(digits, value, minimum, maximum);
  if (fault == NULL) {
    *number = value;
    return WEFT_CLI_OK;
  }
  char quoted[80];
  weft_cli_quote(quoted, sizeof quoted, text);
  return weft_cli_usage(cli,
                        "numbers are written in decimal digits, without sign, unit or exponent",
                        "%s '%s' %s: expected a whole number from %" PRIu64 " to %" PRIu64, name,
                        quoted, fault, minimum, limit);
}
