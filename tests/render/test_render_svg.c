/* The SVG picture: one small one byte by byte, well-formed whatever goes in,
 * numbers that fit or are left out, dense ones bounded and true in their colours. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "render/palette.h"
#include "render/svg/svg_document.h"
#include "support_picture.h"
#include "support_xml.h"

static char *render(const struct drawing *drawing, struct weft_render_options options) {
  char *text = drawing_render(drawing, weft_render_svg, &options);
  xml_check(text);
  return text;
}

static char *render_standard(const struct drawing *drawing) {
  return render(drawing, weft_render_options_default());
}

/* ---- One picture ---- */

static void test_pictures(void **state) {
  (void)state;
  struct weft_render_options options = weft_render_options_default();
  struct drawing drawing;
  drawing_init_schedule(&drawing, "ZBVZeroBubble", 2, 2, 4);
  drawing.costs->hop.latency = 0.5;
  (void)strcpy(drawing.costs->unit, "ms");
  drawing_simulate(&drawing, "ZBVZeroBubble");
  options.width = 600;
  char *text = render(&drawing, options);
  drawing_expect("timeline_ZBV.svg", text);
  free(text);
  options.dark = true;
  options.colour_by = WEFT_COLOUR_BY_STAGE;
  text = render(&drawing, options);
  drawing_expect("timeline_ZBV_dark_stage.svg", text);
  free(text);
  drawing_finish(&drawing);
}

/* ---- Cells, read back ---- */

struct rect {
  double x, y, width, height;
  unsigned fill;
};

/* The next rectangle of the text; false at its end. */
static bool next_rect(const char **at, struct rect *rect) {
  const char *found = strstr(*at, "<rect");
  if (found == NULL) {
    return false;
  }
  *at = found + 1;
  assert_int_equal(
      sscanf(found, "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\" fill=\"#%x\"", &rect->x,
             &rect->y, &rect->width, &rect->height, &rect->fill),
      5);
  return true;
}

/* Only those above the axis: not the legend's. */
static unsigned count_of(const char *text, unsigned fill, double bottom) {
  unsigned count = 0;
  struct rect rect;
  for (const char *at = text; next_rect(&at, &rect);) {
    count += rect.fill == fill && rect.y + rect.height <= bottom;
  }
  return count;
}

static double height_of(const char *text) {
  double height;
  assert_int_equal(sscanf(strstr(text, " height=\""), " height=\"%lf\"", &height), 1);
  return height;
}

static void test_a_cell_per_action(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "1F1B", 4, 1, 8);
  drawing_simulate(&drawing, "x");
  char *text = render_standard(&drawing);
  const double bottom = height_of(text) - 40;
  assert_int_equal(count_of(text, weft_palette_op(WEFT_OP_F, false), bottom), 32);
  assert_int_equal(count_of(text, weft_palette_op(WEFT_OP_B, false), bottom), 32);
  assert_non_null(strstr(text, ">7</text>")); /* microbatch 7 */
  free(text);
  drawing_finish(&drawing);
}

static void test_overlaps_are_split(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n");
  drawing_simulate(&drawing, "x");
  char *text = render_standard(&drawing);
  struct rect rect, upper = {0}, lower = {0}, whole = {0};
  for (const char *at = text; next_rect(&at, &rect);) {
    if (rect.fill == weft_palette_op(WEFT_OP_F, false) && rect.height == 14) {
      upper = rect;
    } else if (rect.fill == weft_palette_op(WEFT_OP_B, false) && rect.height == 14) {
      lower = rect;
    } else if (rect.fill == weft_palette_op(WEFT_OP_F, false) && rect.height == 28) {
      whole = rect;
    }
  }
  assert_true(upper.width > 0 && upper.x == lower.x && upper.width == lower.width);
  assert_true(upper.y == whole.y && lower.y == upper.y + upper.height);
  free(text);
  drawing_finish(&drawing);
}

/* All numbers fit, or none of them is there. */
static void test_numbers_fit_or_are_left_out(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "1F1B", 2, 1, 100);
  drawing_simulate(&drawing, "x");
  struct weft_render_options options = weft_render_options_default();
  options.width = 10000;
  char *wide = render(&drawing, options);
  assert_non_null(strstr(wide, ">99</text>"));
  assert_non_null(strstr(wide, ">5</text>"));
  free(wide);
  options.width = 1000;
  char *narrow = render(&drawing, options);
  assert_null(strstr(narrow, ">99</text>"));
  assert_null(strstr(narrow, ">5</text>"));
  free(narrow);
  drawing_finish(&drawing);
}

/* All numbers have one size, and do not touch the edges of their cells. */
static void test_numbers_have_one_size(void **state) {
  (void)state;
  static const char *const names[] = {"ZBVZeroBubble", "DualPipeV", "Interleaved1F1B"};
  for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
    for (uint32_t width = 400; width <= 2400; width += 400) {
      struct drawing drawing;
      struct weft_render_options options = weft_render_options_default();
      options.width = width;
      drawing_init_schedule(&drawing, names[k], 4, 2, 12);
      drawing_simulate(&drawing, "x");
      char *text = render(&drawing, options);
      double size = 0;
      for (const char *at = text; (at = strstr(at, "<text")) != NULL; at++) {
        double x, y, own;
        assert_int_equal(sscanf(at, "<text x=\"%lf\" y=\"%lf\" font-size=\"%lf\"", &x, &y, &own),
                         3);
        const char *middle = strstr(at, "text-anchor=\"middle\"");
        const char *end = strchr(at, '>');
        const bool in_cell =
            middle != NULL && middle < end && strstr(at, "#57606a") > end; /* the axis */
        if (in_cell) {
          assert_true(size == 0 || own == size);
          size = own;
        }
      }
      assert_true(width < 1200 || size >= 6);
      free(text);
      drawing_finish(&drawing);
    }
  }
}

/* Later stages of a rank have lines at the foot of their cells: one for each stage before. */
static void test_later_stages_have_lines(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "Interleaved1F1B", 2, 3, 4);
  drawing_simulate(&drawing, "x");
  char *text = render_standard(&drawing);
  const double bottom = height_of(text) - 40;
  for (uint32_t k = 0; k < 3; k++) {
    const uint32_t colour = weft_palette_chunk(WEFT_OP_F, k, 3, false);
    assert_int_equal(count_of(text, colour, bottom), 8);
    assert_int_equal(count_of(text, weft_palette_line(colour), bottom), 8 * k);
  }
  free(text);
  struct weft_render_options options = weft_render_options_default();
  options.colour_by = WEFT_COLOUR_BY_STAGE; /* the hue says it */
  text = render(&drawing, options);
  assert_null(strstr(text, "underlined"));
  free(text);
  drawing_finish(&drawing);
}

/* The last number of the axis and the word after it stand apart. */
static void test_axis_words_do_not_touch(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  for (unsigned zeros = 0; zeros < 7; zeros++) {
    double unit = 1;
    for (unsigned i = 0; i < zeros; i++) {
      unit *= 10;
    }
    drawing.costs->stages[0] =
        (struct weft_stage_costs){.f = unit, .b = unit, .i = unit, .w = unit};
    drawing_simulate(&drawing, "x");
    char *text = render_standard(&drawing);
    char word[64];
    (void)snprintf(word, sizeof word, ">%.0f</text>", 2 * unit);
    char *last = strstr(text, word);
    assert_non_null(last);
    const char *time = strstr(last, ">time</text>");
    assert_non_null(time);
    while (strncmp(last, "<text", 5) != 0) {
      last--;
    }
    while (strncmp(time, "<text", 5) != 0) {
      time--;
    }
    double x, right;
    assert_int_equal(sscanf(last, "<text x=\"%lf\"", &x), 1);
    assert_int_equal(sscanf(time, "<text x=\"%lf\"", &right), 1);
    assert_true(right >= x + 0.556 * 11 * (zeros + 1) / 2 + 5);
    free(text);
    weft_simulation_destroy(drawing.simulation);
    drawing.simulation = NULL;
  }
  drawing_finish(&drawing);
}

/* How far to the right the words reach that begin at their x. */
static double right_of_words(const char *text) {
  double most = 0;
  for (const char *at = text; (at = strstr(at, "<text")) != NULL; at++) {
    double x, y, size;
    assert_int_equal(sscanf(at, "<text x=\"%lf\" y=\"%lf\" font-size=\"%lf\"", &x, &y, &size), 3);
    const char *words = strchr(at, '>') + 1, *start = strstr(at, "text-anchor=\"start\"");
    if (start != NULL && start < words) {
      char plain[200];
      size_t length = 0;
      for (; *words != '<' && length < sizeof plain; words++) {
        plain[length++] = *words;
        words = *words == '&' ? strchr(words, ';') : words;
      }
      const double right = x + weft_svg_text_width(plain, length, size);
      most = right > most ? right : most;
    }
  }
  return most;
}

/* Nothing is cut at the right edge, and what the times are of is said at every width. */
static void test_narrow_pictures_have_all_words(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "Interleaved1F1B", 2, 3, 64);
  drawing.costs->stages[0].activation = 123456;
  drawing.costs->of = WEFT_COSTS_OF_RANK;
  (void)strcpy(drawing.costs->unit, "minutes");
  drawing_simulate(&drawing, "x");
  static const uint32_t widths[] = {240, 300, 480, 600, 900, 1200};
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
    for (unsigned by = 0; by < 2; by++) {
      struct weft_render_options options = weft_render_options_default();
      options.width = widths[i];
      options.colour_by = by == 1 ? WEFT_COLOUR_BY_STAGE : WEFT_COLOUR_BY_OP;
      char *text = render(&drawing, options);
      assert_non_null(strstr(text, ">peak 288064</text>"));
      assert_true(right_of_words(text) <= widths[i]);
      struct rect ground = {0}, lane = {0};
      const char *at = text;
      assert_true(next_rect(&at, &ground) && next_rect(&at, &lane));
      const char *last = strstr(text, "1/3</text>"); /* "... model: a stage takes 1/3" */
      assert_non_null(last);
      while (strncmp(last, "<text", 5) != 0) {
        last--;
      }
      double x, y;
      assert_int_equal(sscanf(last, "<text x=\"%lf\" y=\"%lf\"", &x, &y), 2);
      assert_true(y < lane.y - 5); /* above the rows */
      free(text);
    }
  }
  memset(drawing.costs->unit, '\x01', sizeof drawing.costs->unit - 1); /* four letters each */
  struct weft_render_options options = weft_render_options_default();
  options.width = 200;
  char *text = render(&drawing, options);
  struct rect ground, lane;
  const char *at = text;
  assert_true(next_rect(&at, &ground) && next_rect(&at, &lane));
  assert_true(lane.width > 50); /* words never take all of the rows' room */
  free(text);
  drawing_finish(&drawing);
}

static void test_bare(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  drawing_simulate(&drawing, "a name");
  struct weft_render_options options = weft_render_options_default();
  options.bare = true;
  char *bare = render(&drawing, options), *whole = render_standard(&drawing);
  assert_non_null(strstr(bare, "<title>a name</title>")); /* for those who do not see */
  assert_null(strstr(bare, ">a name</text>"));
  assert_null(strstr(bare, "makespan"));
  assert_true(height_of(bare) < height_of(whole) - 40);
  free(bare);
  free(whole);
  drawing_finish(&drawing);
}

/* Sizes without a reciprocal, and large ones. */
static void test_odd_sizes(void **state) {
  (void)state;
  static const double sizes[] = {1e-320, 5e-324, 1e-300, 1e12};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    struct drawing drawing;
    drawing_init_schedule(&drawing, "1F1B", 2, 1, 2);
    drawing.costs->stages[0].activation = sizes[i];
    drawing_simulate(&drawing, "x");
    char *text = render_standard(&drawing);
    const double height = height_of(text);
    for (const char *at = text; (at = strchr(at, 'V')) != NULL; at++) {
      double y;
      if (sscanf(at, "V%lf", &y) == 1) {
        assert_true(y > 0 && y < height);
      }
    }
    free(text);
    free(drawing_render(&drawing, weft_render_text, NULL));
    drawing_finish(&drawing);
  }
}

/* Cells narrower than pixels are drawn together, in the mean colour of their time. */
static void test_dense_colours_are_true(void **state) {
  (void)state;
  struct weft_render_options options = weft_render_options_default();
  struct drawing drawing;
  drawing_init_schedule(&drawing, "1F1B", 4, 1, 4000);
  drawing_simulate(&drawing, "x");
  options.width = 1200;
  char *text = render(&drawing, options);
  assert_true(strlen(text) < 1000000);
  assert_non_null(strstr(text, "mixed: actions that share a pixel"));
  const uint32_t f = weft_palette_op(WEFT_OP_F, false), b = weft_palette_op(WEFT_OP_B, false);
  const double bottom = height_of(text) - 40;
  double area = 0, sums[3] = {0};
  struct rect rect;
  for (const char *at = text; next_rect(&at, &rect);) {
    const bool in_lane = rect.height == 28 && rect.width < 1000 && rect.y + rect.height <= bottom;
    for (unsigned i = 0; i < 3 && in_lane; i++) {
      sums[i] += rect.width * rect.height * (rect.fill >> 8 * i & 0xff);
    }
    area += in_lane ? rect.width * rect.height : 0;
  }
  /* F takes a third of the busy time, and there is nearly no other. */
  for (unsigned i = 0; i < 3; i++) {
    const double wanted = (f >> 8 * i & 0xff) / 3.0 + (b >> 8 * i & 0xff) * 2 / 3.0;
    assert_true(sums[i] / area > wanted - 2 && sums[i] / area < wanted + 2);
  }
  free(text);
  drawing_finish(&drawing);
}

/* ---- Colours ---- */

static void test_themes(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "Interleaved1F1B", 2, 2, 4);
  drawing_simulate(&drawing, "x");
  for (unsigned dark = 0; dark < 2; dark++) {
    for (unsigned by = 0; by < 2; by++) {
      struct weft_render_options options = weft_render_options_default();
      options.dark = dark == 1;
      options.colour_by = by == 1 ? WEFT_COLOUR_BY_STAGE : WEFT_COLOUR_BY_OP;
      char *text = render(&drawing, options);
      struct rect ground = {0};
      const char *at = text;
      assert_true(next_rect(&at, &ground));
      assert_int_equal(ground.fill, weft_palette_of(dark == 1)->background);
      assert_int_equal(strstr(text, "stage 3</text>") != NULL, by == 1);
      assert_int_equal(strstr(text, "underlined") != NULL, by == 0);
      free(text);
    }
  }
  drawing_finish(&drawing);
}

static void test_many_stages(void **state) {
  (void)state;
  struct weft_render_options options = weft_render_options_default();
  options.colour_by = WEFT_COLOUR_BY_STAGE;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "Interleaved1F1B", 4, 25, 4);
  drawing_simulate(&drawing, "x");
  char *text = render(&drawing, options);
  assert_non_null(strstr(text, "stage 98</text>")); /* every seventh */
  assert_null(strstr(text, "stage 99</text>"));
  free(text);
  drawing_finish(&drawing);
}

/* ---- Names ---- */

static void test_everything_is_escaped(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  (void)strcpy(drawing.costs->unit, "\"<&>'");
  drawing_simulate(&drawing, "</svg><script>'\"&amp;]]>\x01\x7f\n\xff\xed\xa0\x80\xef\xbf\xbf ü");
  char *text = render_standard(&drawing);
  assert_null(strstr(text, "<script"));
  assert_non_null(strstr(text,
                         "&lt;/svg&gt;&lt;script&gt;&#39;&quot;&amp;amp;]]&gt;"
                         "\\x01\\x7f\\x0a\\xff\\xed\\xa0\\x80\xef\xbf\xbd ü"));
  assert_non_null(strstr(text, "&quot;&lt;&amp;&gt;&#39;"));
  free(text);
  char name[3000];
  memset(name, '<', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  drawing.picture.name = name;
  text = render_standard(&drawing);
  assert_true(strlen(text) < 20000); /* cut */
  free(text);
  drawing_finish(&drawing);
}

/* Every byte, alone and in the middle. */
static void test_every_byte(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  drawing_simulate(&drawing, "x");
  for (unsigned byte = 1; byte < 256; byte++) {
    char name[] = {'a', (char)byte, 'b', (char)byte, (char)byte, '\0'};
    drawing.picture.name = name;
    free(render_standard(&drawing));
  }
  drawing_finish(&drawing);
}

/* ---- What is odd ---- */

static void draw_odd(const char *csv, const char *name) {
  struct drawing drawing;
  drawing_init(&drawing, csv);
  drawing.costs->stages[0].unshard = 3;
  drawing.costs->stages[0].reduce_grad = 2;
  drawing_simulate(&drawing, name);
  for (unsigned i = 0; i < 4; i++) {
    static const uint32_t widths[] = {200, 337, 1200, 100000};
    struct weft_render_options options = weft_render_options_default();
    options.width = widths[i];
    options.colour_by = i % 2 == 0 ? WEFT_COLOUR_BY_OP : WEFT_COLOUR_BY_STAGE;
    free(render(&drawing, options));
  }
  drawing.picture.costs = NULL;
  char *text = render_standard(&drawing);
  assert_null(strstr(text, "memory"));
  free(text);
  drawing_finish(&drawing);
}

static void test_odd_programs(void **state) {
  (void)state;
  draw_odd("0F0\n", NULL);
  draw_odd("\n\n0F0,0B0\n", "");
  draw_odd(",,0F0,,0B0,,\n", "x");
  draw_odd("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n", "x");
  draw_odd("(0F0;0F1)OVERLAP_F_B,(0B0;0B1)OVERLAP_F_B\n", "x");
}

static void test_no_time(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  *drawing.costs->stages = (struct weft_stage_costs){.activation = 1};
  drawing_simulate(&drawing, "x");
  free(render_standard(&drawing));
  drawing_finish(&drawing);
}

static void test_width_limits(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  drawing_simulate(&drawing, "x");
  static const uint32_t wrong[] = {1, 199, 100001, UINT32_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct weft_render_options options = weft_render_options_default();
    options.width = wrong[i];
    struct weft_text text = {.allocator = NULL};
    struct weft_error error;
    assert_int_equal(weft_render_svg(&drawing.picture, &options, &text, &error), WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "200 to 100000"));
    assert_null(text.data);
  }
  drawing_finish(&drawing);
}

/* Size is bounded by pixels; 64 ranks of 256 microbatches and 2 stages. */
static void test_large(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "Interleaved1F1B", 64, 2, 256);
  drawing.costs->hop.latency = 0.1;
  drawing_simulate(&drawing, "x");
  char *text = render_standard(&drawing);
  assert_true(strlen(text) < 20000000);
  free(text);
  drawing_finish(&drawing);
}

static void test_failing_allocator(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "DualPipeV", 2, 2, 6);
  drawing.costs->hop.latency = 0.5;
  (void)strcpy(drawing.costs->unit, "ms");
  drawing_simulate(&drawing, "a name");
  drawing_check_memory(&drawing, weft_render_svg, NULL);
  drawing_finish(&drawing);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pictures),
      cmocka_unit_test(test_a_cell_per_action),
      cmocka_unit_test(test_overlaps_are_split),
      cmocka_unit_test(test_numbers_fit_or_are_left_out),
      cmocka_unit_test(test_numbers_have_one_size),
      cmocka_unit_test(test_later_stages_have_lines),
      cmocka_unit_test(test_axis_words_do_not_touch),
      cmocka_unit_test(test_narrow_pictures_have_all_words),
      cmocka_unit_test(test_bare),
      cmocka_unit_test(test_odd_sizes),
      cmocka_unit_test(test_dense_colours_are_true),
      cmocka_unit_test(test_themes),
      cmocka_unit_test(test_many_stages),
      cmocka_unit_test(test_everything_is_escaped),
      cmocka_unit_test(test_every_byte),
      cmocka_unit_test(test_odd_programs),
      cmocka_unit_test(test_no_time),
      cmocka_unit_test(test_width_limits),
      cmocka_unit_test(test_large),
      cmocka_unit_test(test_failing_allocator),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
