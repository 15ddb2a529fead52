/* The timeline for a terminal: small pictures letter by letter, every width, and
 * everything that is odd. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_picture.h"

static struct weft_render_options width_of(uint32_t width) {
  struct weft_render_options options = weft_render_options_default();
  options.width = width;
  return options;
}

static char *render(const struct drawing *drawing, uint32_t width) {
  const struct weft_render_options options = width_of(width);
  return drawing_render(drawing, weft_render_text, &options);
}

static void expect_picture(struct drawing *drawing, const char *name, uint32_t width,
                           const char *file) {
  drawing_simulate(drawing, name);
  char *text = render(drawing, width);
  drawing_expect(file, text);
  free(text);
  drawing_finish(drawing);
}

/* ---- Pictures ---- */

static void test_pictures(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "1F1B", 4, 1, 8);
  (void)strcpy(drawing.costs->unit, "ms");
  expect_picture(&drawing, "1F1B", 120, "timeline_1F1B_120.txt");
  drawing_init_schedule(&drawing, "1F1B", 4, 1, 8);
  expect_picture(&drawing, "1F1B", 40, "timeline_1F1B_40.txt");
  drawing_init_schedule(&drawing, "ZBVZeroBubble", 4, 2, 8);
  drawing.costs->hop.latency = 0.25;
  expect_picture(&drawing, "ZBV", 100, "timeline_ZBV_100.txt");
  drawing_init_schedule(&drawing, "DualPipeV", 2, 2, 6);
  drawing.costs->stages[0].overlap_f_b = 2.5;
  expect_picture(&drawing, "DualPipeV", 110, "timeline_DualPipeV_110.txt");
  drawing_init_schedule(&drawing, "Interleaved1F1B", 4, 2, 64);
  expect_picture(&drawing, "Interleaved1F1B, narrow", 80, "timeline_Interleaved1F1B_80.txt");
}

/* A column is a slice of time, so on a whole number of columns per unit the
 * picture can be read off. 20 = 2 + 18 columns, makespan 6, F 3 columns. */
static void test_hand_made(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n1F0,1B0\n");
  drawing_simulate(&drawing, NULL);
  char *text = render(&drawing, 20);
  assert_string_equal(text,
                      "0 F0 .........B0\n"
                      "  ██████████████████\n"
                      "1 ...F0 B0    ......\n"
                      "     █████████\n"
                      "  0              5\n"
                      "F forward\n"
                      "B backward  . idle\n"
                      "▄ memory\n"
                      "makespan 6, bubble\n"
                      "50.0 %, peak memory\n"
                      "1 on rank 0\n"
                      "every rank idles 3\n"
                      "(50.0 %), mostly\n"
                      "waiting for\n"
                      "gradients\n"
                      "times are of a stage\n");
  free(text);
  drawing_finish(&drawing);
}

/* Of neighbours of one op the second has small letters, where each has columns of its own. */
static void test_neighbours_are_told_apart(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0F1,0F2,0B0,0B1,0B2\n");
  drawing_simulate(&drawing, NULL);
  char *text = render(&drawing, 20); /* 18 columns: F has two, B four */
  assert_int_equal(strncmp(text, "0 F0F1F2B0  B1  B2\n", 19), 0);
  assert_null(strstr(text, "two actions"));
  free(text);
  drawing_finish(&drawing);
  drawing_init(&drawing, "0F0,0F1,0F2,0F3,0F4,0F5,0B0,0B1,0B2,0B3,0B4,0B5\n");
  drawing_simulate(&drawing, NULL);
  text = render(&drawing, 20); /* F has one column, B two */
  assert_int_equal(strncmp(text, "0 FfFfFfB0B1B2B3B4B5\n", 21), 0);
  assert_non_null(strstr(text, "Ff two actions"));
  free(text);
  drawing_finish(&drawing);
}

static unsigned count_ranks(const char *text) {
  unsigned count = 0;
  for (const char *line = text; (line = strstr(line, "rank ")) != NULL; line++) {
    count += line == text || line[-1] == '\n';
  }
  return count;
}

/* Many ranks fit a screen; the last line of ranks is the last rank's. */
static void test_many_ranks_are_shown_in_part(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "1F1B", 64, 1, 4);
  drawing_simulate(&drawing, NULL);
  char *text = render(&drawing, 100);
  assert_int_equal(count_ranks(text), 17);
  assert_non_null(strstr(text, "\nrank 63 "));
  assert_non_null(strstr(text, "shown: every 4th of 64 ranks, and the last\n"));
  free(text);
  struct weft_render_options options = width_of(100);
  options.all_ranks = true;
  text = drawing_render(&drawing, weft_render_text, &options);
  assert_int_equal(count_ranks(text), 64);
  assert_null(strstr(text, "shown:"));
  free(text);
  drawing_finish(&drawing);
  drawing_init_schedule(&drawing, "1F1B", 32, 1, 4);
  drawing_simulate(&drawing, NULL);
  text = render(&drawing, 100);
  assert_int_equal(count_ranks(text), 32);
  free(text);
  drawing_finish(&drawing);
}

/* On a terminal the columns of an overlap have the colours of both. */
static void test_overlaps_have_both_colours(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  drawing_simulate(&drawing, NULL);
  struct weft_render_options options = width_of(26);
  options.colour = true;
  char *text = drawing_render(&drawing, weft_render_text, &options), both[128];
  (void)snprintf(both, sizeof both, "\x1b[0;%smF\x1b[0;%sm1\x1b[0;%smB\x1b[0;%sm0",
                 weft_op_info(WEFT_OP_F)->terminal_colour, weft_op_info(WEFT_OP_B)->terminal_colour,
                 weft_op_info(WEFT_OP_F)->terminal_colour,
                 weft_op_info(WEFT_OP_B)->terminal_colour);
  assert_non_null(strstr(text, both));
  free(text);
  drawing_finish(&drawing);
}

/* ---- Widths ---- */

static size_t columns_of(const char *line, size_t size) {
  size_t columns = 0;
  for (size_t i = 0; i < size; i++) {
    columns += ((unsigned char)line[i] & 0xc0) != 0x80;
  }
  return columns;
}

static void check_lines(const char *text, uint32_t width) {
  for (const char *line = text; *line != '\0';) {
    const size_t size = strcspn(line, "\n");
    if (columns_of(line, size) > width) {
      fail_msg("wider than %" PRIu32 ": %.*s", width, (int)size, line);
    }
    assert_int_equal(line[size], '\n');
    assert_true(size == 0 || line[size - 1] != ' ');
    line += size + 1;
  }
}

static void test_widths(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint32_t ranks, stages, microbatches;
  } schedules[] = {{"1F1B", 4, 1, 8},
                   {"Interleaved1F1B", 3, 2, 12},
                   {"DualPipeV", 4, 2, 10},
                   {"GPipe", 40, 1, 3},
                   {"ZBVZeroBubble", 4, 2, 120}};
  for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
    struct drawing drawing;
    drawing_init_schedule(&drawing, schedules[i].name, schedules[i].ranks, schedules[i].stages,
                          schedules[i].microbatches);
    drawing.costs->hop.latency = 1.0 / 3;
    (void)strcpy(drawing.costs->unit, "milliseconds");
    drawing_simulate(&drawing, "a name that is quite a bit wider than twenty columns are");
    for (uint32_t width = 20; width <= 300; width++) {
      char *text = render(&drawing, width);
      check_lines(text, width);
      free(text);
    }
    drawing_finish(&drawing);
  }
}

static void test_width_limits(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  drawing_simulate(&drawing, "x");
  static const uint32_t wrong[] = {1, 19, 10001, UINT32_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    const struct weft_render_options options = width_of(wrong[i]);
    struct weft_text text = {.allocator = NULL};
    struct weft_error error;
    assert_int_equal(weft_render_text(&drawing.picture, &options, &text, &error), WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "20 to 10000"));
    assert_null(text.data);
  }
  char *standard = drawing_render(&drawing, weft_render_text, NULL);
  char *eighty = render(&drawing, 80);
  assert_string_equal(standard, eighty);
  free(standard);
  free(eighty);
  drawing_finish(&drawing);
}

/* ---- Colour ---- */

/* Takes the escape sequences out. */
static void strip(char *text) {
  char *out = text;
  for (const char *in = text; *in != '\0';) {
    if (*in == '\x1b') {
      assert_int_equal(in[1], '[');
      in += strcspn(in, "m") + 1;
    } else {
      *out++ = *in++;
    }
  }
  *out = '\0';
}

/* Blanks before an escape sequence at the end of a line stay. */
static void trim(char *text) {
  char *out = text;
  for (const char *in = text; *in != '\0'; in++) {
    if (*in == '\n') {
      while (out > text && out[-1] == ' ') {
        out--;
      }
    }
    *out++ = *in;
  }
  *out = '\0';
}

static void test_colour_adds_nothing_but_colour(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "DualPipeV", 4, 2, 10);
  drawing_simulate(&drawing, "x");
  for (uint32_t width = 20; width <= 160; width += 7) {
    struct weft_render_options options = width_of(width);
    char *plain = render(&drawing, width);
    options.colour = true;
    char *coloured = drawing_render(&drawing, weft_render_text, &options);
    assert_null(strchr(plain, '\x1b'));
    assert_non_null(strstr(coloured, "\x1b[0m"));
    strip(coloured);
    trim(coloured);
    assert_string_equal(plain, coloured);
    free(plain);
    free(coloured);
  }
  drawing_finish(&drawing);
}

/* ---- Names ---- */

static void test_names_are_escaped(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  (void)strcpy(drawing.costs->unit, "\x1b[31m");
  drawing_simulate(&drawing, "a\x1b]0;b\x07\n\xff ü");
  char *text = render(&drawing, 80);
  assert_int_equal(strncmp(text, "a\\x1b]0;b\\x07\\x0a\\xff ü\n", 24), 0);
  assert_null(strchr(text, '\x1b'));
  assert_non_null(strstr(text, "\\x1b[31m"));
  free(text);
  drawing.picture.name = "a name of more than twenty columns";
  text = render(&drawing, 20);
  assert_int_equal(strncmp(text, "a name of more than…\n", 22), 0);
  free(text);
  drawing_finish(&drawing);
}

/* ---- What is odd ---- */

static void draw_odd(const char *csv) {
  struct drawing drawing;
  drawing_init(&drawing, csv);
  drawing_simulate(&drawing, "");
  for (uint32_t width = 20; width < 100; width += 13) {
    char *text = render(&drawing, width);
    check_lines(text, width);
    assert_non_null(strstr(text, "makespan"));
    free(text);
  }
  drawing_finish(&drawing);
}

static void test_odd_programs(void **state) {
  (void)state;
  draw_odd("0F0\n");
  draw_odd("\n\n0F0,0B0\n");
  draw_odd(",,0F0,,0B0,,\n");
  draw_odd("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n");
  draw_odd("(0F0;0F1)OVERLAP_F_B,(0B0;0B1)OVERLAP_F_B\n");
}

/* Times that are all zero, and no costs at all. */
static void test_no_time(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init(&drawing, "0F0,0B0\n");
  *drawing.costs->stages = (struct weft_stage_costs){.activation = 0};
  drawing_simulate(&drawing, "x");
  drawing.picture.costs = NULL;
  char *text = render(&drawing, 30);
  assert_non_null(strstr(text, "\n0 ...................\n"));
  assert_non_null(strstr(text, "makespan 0, bubble 0.0 %\nno rank is ever idle\n"));
  assert_null(strstr(text, "memory"));
  free(text);
  drawing_finish(&drawing);
}

/* Measured times begin anywhere. */
static void test_times_may_begin_anywhere(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "1F1B", 2, 1, 3);
  drawing_simulate(&drawing, "x");
  drawing.picture.costs = NULL;
  char *before = render(&drawing, 70);
  for (uint64_t i = 0; i < drawing.simulation->event_count; i++) {
    drawing.simulation->events[i].begin += INT64_C(1) << 50;
    drawing.simulation->events[i].end += INT64_C(1) << 50;
  }
  char *after = render(&drawing, 70);
  assert_string_equal(before, after);
  free(before);
  free(after);
  drawing_finish(&drawing);
}

/* ---- The summary ---- */

static void expect_words(const char *csv, double overlap, const char *words) {
  struct drawing drawing;
  drawing_init(&drawing, csv);
  drawing.costs->stages[0].overlap_f_b = overlap;
  drawing_simulate(&drawing, NULL);
  char *text = render(&drawing, 120);
  if (strstr(text, words) == NULL) {
    fail_msg("not said: %s; but:\n%s", words, text);
  }
  free(text);
  drawing_finish(&drawing);
}

static void test_summary(void **state) {
  (void)state;
  expect_words("0F0,0B0\n", -1, "makespan 3, bubble 0.0 %, peak memory 1 on rank 0\n");
  expect_words("0F0,0B0\n", -1, "no rank is ever idle\n");
  expect_words("0F0\n1F0\n", -1, "every rank idles 1 (50.0 %), mostly before its first action\n");
  expect_words("0F0,1F0,1B0,0B0\n2F0,2B0\n", -1,
               "rank 1 idles most, 6 (66.7 %), mostly after its last action\n");
}

/* ---- Memory of this process ---- */

static void test_failing_allocator(void **state) {
  (void)state;
  struct drawing drawing;
  drawing_init_schedule(&drawing, "DualPipeV", 2, 2, 6);
  (void)strcpy(drawing.costs->unit, "ms");
  drawing_simulate(&drawing, "a name");
  struct weft_render_options options = width_of(300);
  options.colour = true;
  drawing_check_memory(&drawing, weft_render_text, &options);
  drawing_finish(&drawing);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pictures),
      cmocka_unit_test(test_hand_made),
      cmocka_unit_test(test_neighbours_are_told_apart),
      cmocka_unit_test(test_many_ranks_are_shown_in_part),
      cmocka_unit_test(test_overlaps_have_both_colours),
      cmocka_unit_test(test_widths),
      cmocka_unit_test(test_width_limits),
      cmocka_unit_test(test_colour_adds_nothing_but_colour),
      cmocka_unit_test(test_names_are_escaped),
      cmocka_unit_test(test_odd_programs),
      cmocka_unit_test(test_no_time),
      cmocka_unit_test(test_times_may_begin_anywhere),
      cmocka_unit_test(test_summary),
      cmocka_unit_test(test_failing_allocator),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
