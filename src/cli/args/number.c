/* Numbers on the command line: strict, and clear about what is wrong. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args/option_parser.h"
#include "cli/io/error_message.h"

static bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

const char *weft_cli_read_number(const char *text, uint64_t *number) {
  uint64_t value = 0;
  bool overflow = false;
  if (!is_digit(text[0])) {
    return text[0] == '\0'                       ? "is empty"
           : text[0] == '-' && is_digit(text[1]) ? "is negative"
                                                 : "is not a whole number";
  }
  for (; is_digit(*text); text++) {
    const uint64_t digit = (uint64_t)(*text - '0');
    overflow = overflow || value > (UINT64_MAX - digit) / 10;
    value = value * 10 + digit;
  }
  if (*text != '\0' || overflow) {
    return overflow && *text == '\0' ? "is over the limit" : "has something after its digits";
  }
  *number = value;
  return NULL;
}

int weft_cli_read_bounded(const struct weft_cli *cli, const char *name, const char *text,
                          uint64_t minimum, uint64_t maximum, uint64_t limit, uint64_t *number) {
  assert(cli != NULL);
  uint64_t value = 0;
  const char *fault = weft_cli_read_number(text, &value);
  if (fault == NULL && (value < minimum || value > maximum)) {
    fault = value < minimum ? "is too small" : "is over the limit";
  }
  if (fault == NULL) {
    *number = value;
    return WEFT_CLI_OK;
  }
  const struct weft_cli_words quoted = weft_cli_quoted(text);
  return weft_cli_usage(cli,
                        "numbers are written in decimal digits, without sign, unit or exponent",
                        "%s '%s' %s: expected a whole number from %" PRIu64 " to %" PRIu64, name,
                        quoted.text, fault, minimum, limit);
}

bool weft_cli_read_numbers(const char *text, uint32_t most, uint32_t *numbers, uint32_t room,
                           uint32_t *count) {
  assert(text != NULL && count != NULL);
  for (*count = 0; *count < room; text++) {
    char *end;
    const unsigned long number = strtoul(text, &end, 10);
    if (end == text || !is_digit(*text) || number > most) {
      return false;
    }
    numbers[(*count)++] = (uint32_t)number;
    text = end;
    if (*text != ',') {
      return *text == '\0';
    }
  }
  return false;
}

/* ---- Decimals and fractions ---- */

/* "12", "0.5" or ".5", or "5e-1" where exponents are allowed; moves *text behind it. strtod() alone
 * would also accept signs, hexadecimal numbers and infinities. */
static bool read_decimal(const char **text, bool exponents, double *number) {
  const char *begin = *text;
  char *end;
  if (!is_digit(begin[begin[0] == '.' ? 1 : 0]) ||
      (begin[0] == '0' && (begin[1] == 'x' || begin[1] == 'X'))) {
    return false;
  }
  *number = strtod(begin, &end);
  *text = end;
  return exponents || strspn(begin, "0123456789.") >= (size_t)(end - begin);
}

static const char *real_fault(const char *text, bool exponents, double minimum, double maximum,
                              double *number) {
  double value, divisor = 1;
  if (text[0] == '\0') {
    return "is empty";
  }
  if (text[0] == '-') {
    return "is negative";
  }
  if (!read_decimal(&text, exponents, &value)) {
    return "is not a number";
  }
  if (*text == '/') {
    text++;
    if (!read_decimal(&text, exponents, &divisor)) {
      return "has no number below the line";
    }
  }
  if (*text != '\0') {
    return "has something after its digits";
  }
  if (divisor <= 0) {
    return "divides by zero";
  }
  *number = value / divisor;
  if (*number < minimum) {
    return "is too small";
  }
  /* So that infinity is refused too. */
  return *number <= maximum ? NULL : "is over the limit";
}

int weft_cli_read_real(const struct weft_cli *cli, const char *name, const char *text,
                       bool exponents, double minimum, double maximum, double *number) {
  assert(cli != NULL);
  double value = 0;
  const char *fault = real_fault(text, exponents, minimum, maximum, &value);
  if (fault == NULL) {
    *number = value;
    return WEFT_CLI_OK;
  }
  const struct weft_cli_words quoted = weft_cli_quoted(text);
  return weft_cli_usage(cli,
                        exponents
                            ? "numbers are written like 2, 0.25, 3e-4 or 1/3"
                            : "numbers are written like 2, 0.25 or 1/3, without unit or exponent",
                        "%s '%s' %s: expected a number from %.15g to %.15g", name, quoted.text,
                        fault, minimum, maximum);
}
