/* Messages on stderr: what was found, what was expected, where, and a hint. */
#include "cli/io/error_message.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/support.h>

#include "cli/io/text_columns.h"

/* ---- The location in a text ---- */

/* What is shown of a long line round the place. */
#define EXCERPT_BEFORE 48
#define EXCERPT_AFTER 32

static bool is_inside_character(const char *at) { return ((unsigned char)*at & 0xc0) == 0x80; }

/* Appends two lines, each after a newline: that line of `data`, or a window of it, with control
 * bytes escaped, and a caret below the column. Nothing when there is no such place. */
static void add_location(struct weft_text *text, const char *data, size_t size, uint64_t line,
                         uint64_t column) {
  const char *end = data + size, *begin = data;
  if (size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0) {
    begin += 3; /* columns are counted after a byte-order mark */
  }
  for (uint64_t number = 1; number < line && begin != NULL; number++) {
    const char *newline = memchr(begin, '\n', (size_t)(end - begin));
    begin = newline != NULL ? newline + 1 : NULL;
  }
  if (begin == NULL || line == 0 || column == 0) {
    return;
  }
  const char *newline = memchr(begin, '\n', (size_t)(end - begin));
  end = newline != NULL ? newline : end;
  if (end > begin && end[-1] == '\r') {
    end--;
  }
  if (column - 1 > (uint64_t)(end - begin)) {
    return;
  }
  const char *mark = begin + (column - 1);
  const bool cut_left = mark - begin > EXCERPT_BEFORE, cut_right = end - mark > EXCERPT_AFTER;
  begin = cut_left ? mark - EXCERPT_BEFORE : begin;
  end = cut_right ? mark + EXCERPT_AFTER : end;
  while (begin < mark && is_inside_character(begin)) {
    begin++;
  }
  while (end > mark && cut_right && is_inside_character(end)) {
    end--;
  }
  weft_text_add(text, "\n    ");
  const size_t left = text->size;
  weft_text_add(text, cut_left ? "..." : "");
  weft_text_add_escaped(text, begin, (size_t)(mark - begin));
  const size_t width = weft_count_characters(text->data + left, text->size - left);
  weft_text_add_escaped(text, mark, (size_t)(end - mark));
  weft_text_addf(text, "%s\n    %*s^", cut_right ? "..." : "", (int)width, "");
}

/* ---- Quotes for code: a terminal must not obey what is quoted ---- */

/* Whether a terminal shows it as it is; tried at the end of the text. */
static bool is_shown(struct weft_text *text, const char *word) {
  const size_t begin = text->size, size = strlen(word);
  weft_text_add_escaped(text, word, size);
  const bool shown =
      !text->failed && text->size - begin == size && memcmp(text->data + begin, word, size) == 0;
  text->size = begin;
  return shown;
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
  if (word[0] == '-' && word[1] != '\0') { /* or it would be an option */
    weft_text_add(text, "./");
  }
  if (word[0] != '\0' && strspn(word, plain) == strlen(word)) {
    weft_text_add(text, word);
    return;
  }
  if (is_shown(text, word)) {
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

/* A text in a buffer of its own: it works when memory has run out, and what does not fit is cut
 * off. */
struct fixed_text {
  struct weft_text text;
  struct weft_allocator allocator;
  char buffer[4096];
};

/* Of exactly one block. */
static void *fixed_reallocate(void *context, void *pointer, size_t old_size, size_t new_size) {
  struct fixed_text *fixed = context;
  (void)pointer;
  (void)old_size;
  return new_size > 0 && new_size <= sizeof fixed->buffer ? fixed->buffer : NULL;
}

/* An empty text; it needs no finish. */
static void init_fixed(struct fixed_text *fixed) {
  fixed->allocator = (struct weft_allocator){.reallocate = fixed_reallocate, .context = fixed};
  fixed->text = (struct weft_text){.allocator = &fixed->allocator};
  weft_text_add(&fixed->text, "");
}

struct weft_cli_words weft_cli_quoted(const char *text) {
  struct weft_cli_words quoted;
  (void)weft_escape(quoted.text, sizeof quoted.text, text, strlen(text));
  return quoted;
}

struct weft_cli_words weft_cli_shell_word(const char *path) {
  struct weft_cli_words word = {"FILE"};
  struct fixed_text fixed;
  init_fixed(&fixed);
  weft_cli_add_shell_word(&fixed.text, path != NULL ? path : "-");
  if (!fixed.text.failed && fixed.text.size < sizeof word.text) {
    memcpy(word.text, fixed.text.data, fixed.text.size + 1);
  }
  return word;
}

/* ---- Messages ---- */

int weft_cli_write_all(int fd, const char *data, size_t size) {
  assert(data != NULL || size == 0);
  while (size > 0) {
    const ssize_t written = write(fd, data, size);
    if (written < 0 && errno != EINTR) {
      return errno;
    }
    if (written > 0) {
      data += written;
      size -= (size_t)written;
    }
  }
  return 0;
}

/* One write for all of it: Open MPI 5 may forward a line that comes in two parts to the standard
 * output of mpirun. A failure to write it is not reported. */
static void print_message(const struct weft_cli *cli, const char *hint, const char *format,
                          va_list arguments) {
  char sentence[2048], text[8192];
  const bool has_hint = hint != NULL && hint[0] != '\0';
  assert(cli != NULL);
  (void)vsnprintf(sentence, sizeof sentence, format, arguments);
  const int size = snprintf(text, sizeof text, "weft: %s%s%s%s\n", cli->who != NULL ? cli->who : "",
                            sentence, has_hint ? "\n  hint: " : "", has_hint ? hint : "");
  if (size >= (int)sizeof text) {
    text[sizeof text - 2] = '\n';
  }
  (void)weft_cli_write_all(cli->messages, text, strlen(text));
}

/* Every message begins with the command's name; that of `who` comes after it. */
void weft_cli_print_as(const struct weft_cli *cli, const char *who, const char *text, size_t size) {
  assert(cli != NULL);
  static const char name[] = "weft: ";
  const size_t name_size = sizeof name - 1;
  WEFT_SCOPED_TEXT named = {.allocator = cli->allocator};
  for (size_t at = 0; at < size;) {
    const char *end = memchr(text + at, '\n', size - at);
    const size_t line = end != NULL ? (size_t)(end - (text + at)) + 1 : size - at;
    const bool begins = line >= name_size && memcmp(text + at, name, name_size) == 0;
    const size_t skipped = begins ? name_size : 0;
    if (begins) {
      weft_text_addf(&named, "%s%s", name, who);
    }
    weft_text_append(&named, text + at + skipped, line - skipped);
    at += line;
  }
  (void)weft_cli_write_all(cli->messages, named.failed ? text : named.data,
                           named.failed ? size : named.size);
}

void weft_cli_print(const struct weft_cli *cli, const char *hint, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print_message(cli, hint, format, arguments);
  va_end(arguments);
}

int weft_cli_usage(const struct weft_cli *cli, const char *hint, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print_message(cli, hint, format, arguments);
  va_end(arguments);
  return WEFT_CLI_USAGE;
}

int weft_cli_fail_memory(const struct weft_cli *cli) {
  assert(cli != NULL);
  weft_cli_print(cli,
                 "a smaller schedule needs less; 'weft doctor' shows the memory of this machine",
                 "out of memory; nothing was written");
  return WEFT_CLI_INTERNAL;
}

int weft_cli_exit_status(const char *file, const struct weft_error *error) {
  switch (error->status) {
    case WEFT_OK: return WEFT_CLI_OK;
    case WEFT_ERR_USAGE: return WEFT_CLI_USAGE;
    case WEFT_ERR_FORMAT: return WEFT_CLI_MALFORMED;
    case WEFT_ERR_LIMIT: return file != NULL ? WEFT_CLI_MALFORMED : WEFT_CLI_USAGE;
    case WEFT_ERR_MEMORY: return WEFT_CLI_INTERNAL;
    case WEFT_ERR_INVALID: return WEFT_CLI_FOUND_BAD;
    case WEFT_ERR_MISSING: return WEFT_CLI_NO_INPUT;
    case WEFT_ERR_IO: return WEFT_CLI_IO;
    case WEFT_ERR_PEER:
    case WEFT_ERR_STALLED:
    case WEFT_ERR_PROTOCOL: return WEFT_CLI_PEER;
    case WEFT_ERR_UNAVAILABLE: return WEFT_CLI_UNAVAILABLE;
    case WEFT_IN_PROGRESS:
    case WEFT_ERR_STAGE:
    case WEFT_ERR_CANCELLED:
    case WEFT_ERR_INTERNAL:
    case WEFT_ERR_SYSTEM:
    case WEFT_ERR_DEVICE: return WEFT_CLI_INTERNAL;
  }
  return WEFT_CLI_INTERNAL;
}

static const char *hint_of(const struct weft_error *error) {
  if (error->hint[0] != '\0') {
    return error->hint;
  }
  switch (error->status) {
    case WEFT_ERR_USAGE:
    case WEFT_ERR_LIMIT: return "'weft help' lists the commands, 'weft doctor' the limits";
    case WEFT_ERR_FORMAT: return "'weft gen 1F1B -p 4 -m 8' shows what a table looks like";
    case WEFT_ERR_INVALID: return "'weft verify' lists everything that is wrong with it";
    default: return NULL;
  }
}

int weft_cli_fail(const struct weft_cli *cli, const char *file, const struct weft_error *error) {
  assert(cli != NULL && error != NULL);
  if (error->status == WEFT_ERR_MEMORY) {
    return weft_cli_fail_memory(cli);
  }
  weft_cli_print(cli, hint_of(error), "%s%s%s", file != NULL ? weft_cli_quoted(file).text : "",
                 file != NULL ? ": " : "", error->message);
  return weft_cli_exit_status(file, error);
}

int weft_cli_fail_schedule(const struct weft_cli *cli, const struct weft_error *error) {
  static const char more[] =
      "'weft gen --list' lists all, 'weft plan' (--placement v, --memory LIMIT) finds others";
  struct weft_error extended = *error;
  (void)snprintf(extended.hint, sizeof extended.hint, "%.*s%s%s", 160, error->hint,
                 error->hint[0] == '\0'                        ? ""
                 : error->hint[strlen(error->hint) - 1] == '?' ? " "
                                                               : "; ",
                 more);
  return weft_cli_fail(cli, NULL, &extended);
}

int weft_cli_result(const struct weft_cli *cli, const char *file, enum weft_status status,
                    const struct weft_error *error) {
  return status < 0 ? weft_cli_fail(cli, file, error) : WEFT_CLI_OK;
}

int weft_cli_fail_text(const struct weft_cli *cli, const char *file, const char *text, size_t size,
                       const struct weft_error *error) {
  assert(cli != NULL);
  if (error->line == 0 && error->status != WEFT_ERR_FORMAT) {
    return weft_cli_fail(cli, file, error);
  }
  /* The message opens with the file's name and the place already. */
  struct fixed_text location;
  init_fixed(&location);
  add_location(&location.text, text, size, error->line, error->column);
  weft_cli_print(cli, hint_of(error), "%s%s", error->message, location.text.data);
  return weft_cli_exit_status(file, error);
}
