/* The line of a text in which something is wrong, with a caret under the column. */
#include "cli/io/source_excerpt.h"

#include <assert.h>
#include <string.h>

#include "cli/io/text_columns.h"

/* The part of a line that is worth showing: all, or a window round `column`. */
struct excerpt {
  const char *begin;
  const char *end;
  const char *mark;
  bool cut_left;
  bool cut_right;
};

#define EXCERPT_BEFORE 48
#define EXCERPT_AFTER 32

static bool is_inside_character(const char *at) { return ((unsigned char)*at & 0xc0) == 0x80; }

static bool find_excerpt(const char *text, size_t size, uint64_t line_number, uint64_t column,
                         struct excerpt *excerpt) {
  const char *end = text + size;
  const char *line = text;
  if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
    line += 3; /* columns are counted after a byte-order mark */
  }
  for (uint64_t number = 1; number < line_number; number++) {
    const char *newline = memchr(line, '\n', (size_t)(end - line));
    if (newline == NULL) {
      return false;
    }
    line = newline + 1;
  }
  const char *line_end = memchr(line, '\n', (size_t)(end - line));
  line_end = line_end != NULL ? line_end : end;
  if (line_end > line && line_end[-1] == '\r') {
    line_end--;
  }
  if (column == 0 || column - 1 > (uint64_t)(line_end - line)) {
    return false;
  }
  const char *mark = line + (column - 1);
  excerpt->mark = mark;
  excerpt->cut_left = mark - line > EXCERPT_BEFORE;
  excerpt->cut_right = line_end - mark > EXCERPT_AFTER;
  excerpt->begin = excerpt->cut_left ? mark - EXCERPT_BEFORE : line;
  excerpt->end = excerpt->cut_right ? mark + EXCERPT_AFTER : line_end;
  while (excerpt->begin < mark && is_inside_character(excerpt->begin)) {
    excerpt->begin++;
  }
  while (excerpt->end > mark && excerpt->cut_right && is_inside_character(excerpt->end)) {
    excerpt->end--;
  }
  return true;
}

static void add_excerpt(struct weft_text *text, const struct excerpt *excerpt) {
  weft_text_add(text, "\n    ");
  const size_t begin = text->size;
  weft_text_add(text, excerpt->cut_left ? "..." : "");
  weft_text_add_escaped(text, excerpt->begin, (size_t)(excerpt->mark - excerpt->begin));
  const size_t width = weft_cli_width(text->data + begin, text->size - begin);
  weft_text_add_escaped(text, excerpt->mark, (size_t)(excerpt->end - excerpt->mark));
  weft_text_add(text, excerpt->cut_right ? "..." : "");
  weft_text_addf(text, "\n    %*s^", (int)width, "");
}

void weft_cli_excerpt_add(struct weft_text *message, const char *text, size_t size, uint64_t line,
                          uint64_t column) {
  assert(message != NULL);
  struct excerpt excerpt;
  if (line > 0 && find_excerpt(text, size, line, column, &excerpt)) {
    add_excerpt(message, &excerpt);
  }
}
