/* Files with pictures of timelines and charts: what a file is for, by its name's ending. */
#ifndef CLI_PICTURE_FILE_H
#define CLI_PICTURE_FILE_H

#include <weft/render.h>

enum weft_cli_picture {
  WEFT_CLI_NO_PICTURE,
  WEFT_CLI_SVG,  /* x.svg */
  WEFT_CLI_HTML, /* x.html: a page */
  WEFT_CLI_TRACE /* x.json: a Chrome trace, where a command draws timelines */
};

enum weft_cli_picture weft_cli_picture_of(const char *path);
/* Whether it is a picture to look at: not a trace. */
bool weft_cli_is_picture(const char *path);

/* Draws timelines: all of them on a page, else the first; as text where it is no picture. */
enum weft_status weft_cli_render(enum weft_cli_picture kind, const struct weft_picture *pictures,
                                 size_t count, const struct weft_render_options *options,
                                 struct weft_text *text, struct weft_error *error);

#endif
