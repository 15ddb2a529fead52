/* Elements and escaping of the SVG picture. */
#include <assert.h>
#include <string.h>

#include "render/svg/svg_document.h"

#define COORDINATE_MAX 1e9

/* By hand: printf() would follow the locale, and is slow for as many numbers as
 * a picture has. */
void weft_svg_coordinate(struct weft_text *text, double value) {
  const double bounded = value > COORDINATE_MAX    ? COORDINATE_MAX
                         : value < -COORDINATE_MAX ? -COORDINATE_MAX
                                                   : value;
  const int64_t hundredths = (int64_t)(bounded * 100 + (bounded < 0 ? -0.5 : 0.5));
  const uint64_t size = (uint64_t)(hundredths < 0 ? -hundredths : hundredths);
  weft_text_append(text, "-", hundredths < 0);
  weft_text_add_number(text, size / 100);
  if (size % 100 != 0) {
    const char digits[] = {'.', (char)('0' + size / 10 % 10), (char)('0' + size % 10)};
    weft_text_append(text, digits, size % 10 != 0 ? 3 : 2);
  }
}

void weft_svg_attribute(struct weft_text *text, const char *name, double value) {
  weft_text_append(text, " ", 1);
  weft_text_add(text, name);
  weft_text_append(text, "=\"", 2);
  weft_svg_coordinate(text, value);
  weft_text_append(text, "\"", 1);
}

void weft_svg_fill(struct weft_text *text, uint32_t colour) {
  assert(colour <= 0xffffff);
  static const char digits[] = "0123456789abcdef";
  char fill[] = " fill=\"#000000\"";
  for (unsigned i = 0; i < 6; i++) {
    fill[8 + i] = digits[colour >> (20 - 4 * i) & 0xf];
  }
  weft_text_append(text, fill, sizeof fill - 1);
}

void weft_svg_rect(struct weft_text *text, double x, double y, double width, double height,
                   uint32_t colour) {
  assert(colour <= 0xffffff);
  weft_text_add(text, "<rect");
  weft_svg_attribute(text, "x", x);
  weft_svg_attribute(text, "y", y);
  weft_svg_attribute(text, "width", width);
  weft_svg_attribute(text, "height", height);
  weft_svg_fill(text, colour);
  weft_text_add(text, "/>\n");
}

void weft_svg_text_begin(struct weft_text *text, double x, double y, double size,
                         const char *anchor, uint32_t colour) {
  weft_text_add(text, "<text");
  weft_svg_attribute(text, "x", x);
  weft_svg_attribute(text, "y", y);
  weft_svg_attribute(text, "font-size", size);
  weft_text_addf(text, " text-anchor=\"%s\"", anchor);
  weft_svg_fill(text, colour);
  weft_text_append(text, ">", 1);
}

void weft_svg_text_end(struct weft_text *text) { weft_text_add(text, "</text>\n"); }

/* U+FFFE and U+FFFF are UTF-8, but no characters of XML. */
static bool is_noncharacter(const char *data, size_t size) {
  return size >= 3 && memcmp(data, "\xef\xbf", 2) == 0 &&
         ((unsigned char)data[2] == 0xbe || (unsigned char)data[2] == 0xbf);
}

static size_t add_character(struct weft_text *text, const char *data, size_t size) {
  switch (*data) {
    case '&': weft_text_add(text, "&amp;"); return 1;
    case '<': weft_text_add(text, "&lt;"); return 1;
    case '>': weft_text_add(text, "&gt;"); return 1;
    case '"': weft_text_add(text, "&quot;"); return 1;
    case '\'': weft_text_add(text, "&#39;"); return 1;
    default: break;
  }
  if (is_noncharacter(data, size)) {
    weft_text_add(text, "\xef\xbf\xbd"); /* U+FFFD, the replacement */
    return 3;
  }
  weft_text_append(text, data, 1);
  return 1;
}

void weft_svg_outside(struct weft_text *text, const char *outside, size_t width) {
  struct weft_text line = {.allocator = text->allocator};
  weft_add_line_text(&line, outside, width);
  text->failed |= line.failed;
  for (size_t i = 0; i < line.size && !line.failed;) {
    i += add_character(text, line.data + i, line.size - i);
  }
  weft_text_finish(&line);
}
