/* The progress line. A command works without it, so failures to write it are ignored. */
#include "cli/io/progress_line.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include <weft/support.h>

#define CLEAR_LINE "\r\x1b[K"
#define RENEW_NS UINT64_C(100000000)

static void show_bytes(const struct weft_cli_progress_line *line, const char *data, size_t size) {
  (void)!write(line->cli->messages, data, size);
}

bool weft_cli_progress_line_is_wanted(const struct weft_cli *cli) {
  return cli->messages_terminal && cli->colour;
}

bool weft_cli_progress_line_is_due(const struct weft_cli_progress_line *line) {
  return (uint64_t)weft_clock_ns() - line->said_ns >= RENEW_NS;
}

void weft_cli_progress_line_update(struct weft_cli_progress_line *line,
                                   const struct weft_text *text) {
  assert(line != NULL && text != NULL);
  if (text->failed) {
    return;
  }
  /* A line that wraps could not be cleared. */
  const uint32_t columns = line->cli->columns;
  const size_t size = columns > 0 && text->size > columns - 1 ? columns - 1 : text->size;
  show_bytes(line, CLEAR_LINE, strlen(CLEAR_LINE));
  show_bytes(line, text->data, size);
  line->is_open = true;
  line->said_ns = (uint64_t)weft_clock_ns();
}

void weft_cli_progress_line_clear(struct weft_cli_progress_line *line) {
  assert(line != NULL);
  if (line->is_open) {
    show_bytes(line, CLEAR_LINE, strlen(CLEAR_LINE));
    line->is_open = false;
  }
}
