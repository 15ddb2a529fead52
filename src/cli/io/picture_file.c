#include "cli/io/picture_file.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include <weft/support.h>

enum weft_cli_picture weft_cli_picture_of(const char *path) {
  static const char *const endings[] = {
      [WEFT_CLI_SVG] = ".svg", [WEFT_CLI_HTML] = ".html", [WEFT_CLI_TRACE] = ".json"};
  assert(path != NULL);
  for (unsigned kind = WEFT_CLI_SVG; kind <= WEFT_CLI_TRACE; kind++) {
    const size_t size = strlen(path), ending_size = strlen(endings[kind]);
    if (size > ending_size && strcasecmp(path + size - ending_size, endings[kind]) == 0) {
      return kind;
    }
  }
  return WEFT_CLI_NO_PICTURE;
}

bool weft_cli_is_picture(const char *path) {
  const enum weft_cli_picture kind = weft_cli_picture_of(path);
  return kind == WEFT_CLI_SVG || kind == WEFT_CLI_HTML;
}

enum weft_status weft_cli_render(enum weft_cli_picture kind, const struct weft_picture *pictures,
                                 size_t count, const struct weft_render_options *options,
                                 struct weft_text *text, struct weft_error *error) {
  assert(count > 0);
  switch (kind) {
    case WEFT_CLI_SVG: return weft_render_svg(pictures, options, text, error);
    case WEFT_CLI_HTML: return weft_render_html(pictures, count, options, text, error);
    case WEFT_CLI_TRACE: return weft_render_trace(pictures, options, text, error);
    default: return weft_render_text(pictures, options, text, error);
  }
}
