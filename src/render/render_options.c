/* The default options of pictures. */
#include <weft/render.h>

struct weft_render_options weft_render_options_default(void) {
  return (struct weft_render_options){
      .width = 0, .colour = false, .dark = false, .colour_by = WEFT_COLOUR_BY_OP};
}
