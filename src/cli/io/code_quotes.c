/* Quotes for code. A terminal must not obey what is quoted, so that control bytes are escaped. */
#include "cli/io/code_quotes.h"

#include <string.h>

#include <weft/support.h>

/* Bytes of the character at `at` if a terminal shows it as it is, else 0. */
static size_t shown_length(const char *at) {
  for (size_t length = 1; length <= 4 && at[length - 1] != '\0'; length++) {
    char escaped[24];
    (void)weft_escape(escaped, sizeof escaped, at, length);
    if (strlen(escaped) == length && memcmp(escaped, at, length) == 0) {
      return length;
    }
  }
  return 0;
}

static bool is_shown(const char *word) {
  while (*word != '\0') {
    const size_t length = shown_length(word);
    if (length == 0) {
      return false;
    }
    word += length;
  }
  return true;
}

/* A quote ends the quoted part, stands for itself, and begins another one. */
static void add_quoted(struct weft_text *text, const char *word) {
  weft_text_add(text, "'");
  for (const char *end; (end = strchr(word, '\'')) != NULL; word = end + 1) {
    weft_text_append(text, word, (size_t)(end - word));
    weft_text_add(text, "'\\''");
  }
  weft_text_add(text, word);
  weft_text_add(text, "'");
}

void weft_cli_add_shell_word(struct weft_text *text, const char *word) {
  static const char plain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  if (word[0] != '\0' && strspn(word, plain) == strlen(word)) {
    weft_text_add(text, word);
    return;
  }
  if (is_shown(word)) {
    add_quoted(text, word);
    return;
  }
  weft_text_add(text, "$'");
  for (; *word != '\0'; word++) {
    const unsigned char byte = (unsigned char)*word;
    if (byte < 0x20 || byte > 0x7e) {
      weft_text_addf(text, "\\x%02x", byte);
    } else {
      weft_text_addf(text, "%s%c", byte == '\'' || byte == '\\' ? "\\" : "", byte);
    }
  }
  weft_text_add(text, "'");
}
