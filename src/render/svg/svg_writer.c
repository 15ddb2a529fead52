/* Elements and escaping of the SVG picture. */
#include <assert.h>
#include <string.h>

#include "render/svg/svg_document.h"

#define COORDINATE_MAX 1e9

/* By hand: printf() would follow the locale, and is slow for as many numbers as
 * a picture has. */
void weft_svg_coordinate(struct weft_text *text, double value) {
  assert(value == value); /* no picture has a place that is no number */
  const double bounded = value > COORDINATE_MAX     ? COORDINATE_MAX
                         : value >= -COORDINATE_MAX ? value
                                                    : -COORDINATE_MAX;
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
  assert(size > 0 && anchor != NULL && colour <= 0xffffff);
  weft_text_add(text, "<text");
  weft_svg_attribute(text, "x", x);
  weft_svg_attribute(text, "y", y);
  weft_svg_attribute(text, "font-size", size);
  weft_text_addf(text, " text-anchor=\"%s\"", anchor);
  weft_svg_fill(text, colour);
  weft_text_append(text, ">", 1);
}

void weft_svg_text_end(struct weft_text *text) { weft_text_add(text, "</text>\n"); }

/* Hundredths of the font size, from ' ' on: Helvetica's, which Arial shares. */
static const uint8_t letter_widths[] = {
    28, 28, 36, 56, 56, 89, 67, 19, 33,  33, 39, 58, 28, 33, 28, 28, 56, 56, 56, 56, 56, 56, 56, 56,
    56, 56, 28, 28, 58, 58, 58, 56, 102, 67, 67, 72, 72, 67, 61, 78, 72, 28, 50, 67, 56, 83, 72, 78,
    67, 78, 72, 67, 61, 72, 67, 94, 67,  67, 61, 28, 28, 28, 47, 56, 33, 56, 56, 50, 56, 56, 28, 56,
    56, 22, 22, 50, 22, 83, 56, 56, 56,  56, 33, 50, 28, 56, 50, 72, 50, 50, 50, 33, 26, 33, 58};

double weft_svg_text_width(const char *data, size_t size, double font_size) {
  assert((data != NULL || size == 0) && font_size > 0);
  const double wider = 1.17; /* the fonts that stand in for it are wider */
  double width = 0;
  for (size_t i = 0; i < size; i++) {
    const unsigned char byte = (unsigned char)data[i];
    const bool begins = (byte & 0xc0) != 0x80;
    const size_t letter = (size_t)(byte < ' ' ? 0 : byte - ' ');
    width += !begins ? 0 : letter < sizeof letter_widths ? letter_widths[letter] : 60;
  }
  return width / 100 * wider * font_size;
}

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
  WEFT_SCOPED_TEXT line = {.allocator = text->allocator};
  weft_add_line_text(&line, outside, width);
  text->failed |= line.failed;
  for (size_t i = 0; i < line.size && !line.failed;) {
    i += add_character(text, line.data + i, line.size - i);
  }
}

/* How much of the words the first line has: all that fit, and one in any case. */
static size_t line_size(const char *words, double width, double font_size) {
  size_t fitting = 0;
  for (size_t end = 0;; end++) {
    if (words[end] != ' ' && words[end] != '\0') {
      continue;
    }
    if (fitting > 0 && weft_svg_text_width(words, end, font_size) > width) {
      return fitting;
    }
    fitting = end;
    if (words[end] == '\0') {
      return end;
    }
  }
}

unsigned weft_svg_add_words(struct weft_text *text, double x, double y, double width, double size,
                            uint32_t colour, const char *words, bool draw) {
  assert(words != NULL && size > 0);
  WEFT_SCOPED_TEXT line = {.allocator = text->allocator};
  unsigned count = 0;
  for (size_t bytes; *words != '\0'; words += bytes + (words[bytes] == ' '), count++) {
    bytes = line_size(words, width, size);
    if (!draw) {
      continue;
    }
    const bool fits = weft_svg_text_width(words, bytes, size) <= width;
    const double letters = fits ? (double)bytes : width / (size * 0.7);
    line.size = 0;
    weft_text_append(&line, words, bytes);
    text->failed |= line.failed;
    weft_svg_text_begin(text, x, y + count * WEFT_SVG_LINE, size, "start", colour);
    weft_svg_outside(text, line.failed ? "" : line.data, letters > 1 ? (size_t)letters : 1);
    weft_svg_text_end(text);
  }
  return count;
}
