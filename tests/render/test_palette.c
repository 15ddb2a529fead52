/* The colours of pictures are told apart: by any kind of colour vision, and F, B,
 * I and W by lightness alone; numbers can be read on them. Colour-blind vision is
 * simulated after Machado, Oliveira and Fernandes (2009), severity 1. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "render/palette.h"

static const enum weft_op computes[] = {WEFT_OP_F, WEFT_OP_B, WEFT_OP_I, WEFT_OP_W};
enum { COMPUTES = sizeof computes / sizeof computes[0] };

struct lab {
  double l, a, b;
};

static double linear(uint32_t byte) {
  const double value = byte / 255.0;
  return value <= 0.04045 ? value / 12.92 : pow((value + 0.055) / 1.055, 2.4);
}

static double lab_part(double value) {
  return value > 216.0 / 24389 ? cbrt(value) : (24389.0 / 27 * value + 16) / 116;
}

static struct lab lab_of(const double rgb[3]) {
  const double x = (0.4124 * rgb[0] + 0.3576 * rgb[1] + 0.1805 * rgb[2]) / 0.9505;
  const double y = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
  const double z = (0.0193 * rgb[0] + 0.1192 * rgb[1] + 0.9505 * rgb[2]) / 1.089;
  return (struct lab){116 * lab_part(y) - 16, 500 * (lab_part(x) - lab_part(y)),
                      200 * (lab_part(y) - lab_part(z))};
}

static const double visions[4][3][3] = {
    {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
    {{0.152286, 1.052583, -0.204868},
     {0.114503, 0.786281, 0.099216},
     {-0.003882, -0.048116, 1.051998}},
    {{0.367322, 0.860646, -0.227968},
     {0.280085, 0.672501, 0.047413},
     {-0.011820, 0.042940, 0.968881}},
    {{1.255528, -0.076749, -0.178779},
     {-0.078411, 0.930809, 0.147602},
     {0.004733, 0.691367, 0.303900}},
};

static struct lab seen(uint32_t colour, unsigned vision) {
  const double rgb[3] = {linear(colour >> 16 & 0xff), linear(colour >> 8 & 0xff),
                         linear(colour & 0xff)};
  double through[3];
  for (unsigned i = 0; i < 3; i++) {
    through[i] = visions[vision][i][0] * rgb[0] + visions[vision][i][1] * rgb[1] +
                 visions[vision][i][2] * rgb[2];
    through[i] = through[i] < 0 ? 0 : through[i] > 1 ? 1 : through[i];
  }
  return lab_of(through);
}

static double difference(uint32_t a, uint32_t b, unsigned vision) {
  const struct lab x = seen(a, vision), y = seen(b, vision);
  return sqrt((x.l - y.l) * (x.l - y.l) + (x.a - y.a) * (x.a - y.a) + (x.b - y.b) * (x.b - y.b));
}

static double lightness(uint32_t colour) { return seen(colour, 0).l; }

static void test_ops_are_told_apart(void **state) {
  (void)state;
  for (unsigned dark = 0; dark < 2; dark++) {
    const struct weft_palette *palette = weft_palette_of(dark == 1);
    for (unsigned i = 0; i < COMPUTES; i++) {
      const uint32_t own = weft_palette_op(computes[i], dark == 1);
      for (unsigned k = 0; k < i; k++) {
        const uint32_t other = weft_palette_op(computes[k], dark == 1);
        assert_true(fabs(lightness(own) - lightness(other)) >= 12);
        for (unsigned vision = 0; vision < 4; vision++) {
          assert_true(difference(own, other, vision) >= 20);
        }
      }
      assert_true(difference(own, weft_palette_op(WEFT_OP_IDLE, dark == 1), 0) >= 25);
      assert_true(difference(own, palette->background, 0) >= 25);
    }
  }
}

/* Paler for later stages of a rank, and never as another op is. */
static void test_chunks(void **state) {
  (void)state;
  for (unsigned i = 0; i < COMPUTES; i++) {
    const uint32_t first = weft_palette_chunk(computes[i], 0, 4, false);
    assert_int_equal(first, weft_palette_op(computes[i], false));
    assert_int_equal(first, weft_palette_chunk(computes[i], 0, 1, false));
    double before = lightness(first);
    for (uint32_t k = 1; k < 4; k++) {
      const uint32_t colour = weft_palette_chunk(computes[i], k, 4, false);
      assert_true(lightness(colour) > before);
      before = lightness(colour);
      for (unsigned j = 0; j < COMPUTES; j++) {
        if (j != i) {
          for (uint32_t other = 0; other < 4; other++) {
            assert_true(difference(colour, weft_palette_chunk(computes[j], other, 4, false), 0) >=
                        15);
          }
        }
      }
    }
  }
}

/* Without colour: the lines at the foot of a cell say which of its rank's stages it is, and
 * lightness says the op among those with as many lines. */
static void test_stages_without_colour(void **state) {
  (void)state;
  for (unsigned dark = 0; dark < 2; dark++) {
    for (uint32_t count = 2; count <= WEFT_STAGE_LINES_MAX + 1; count++) {
      for (uint32_t k = 0; k < count; k++) {
        for (unsigned i = 0; i < COMPUTES; i++) {
          const uint32_t own = weft_palette_chunk(computes[i], k, count, dark == 1);
          assert_true(fabs(lightness(weft_palette_line(own)) - lightness(own)) >= 20);
          for (unsigned j = 0; j < i; j++) {
            const uint32_t other = weft_palette_chunk(computes[j], k, count, dark == 1);
            assert_true(fabs(lightness(own) - lightness(other)) >= 8);
          }
        }
      }
    }
  }
}

static void test_stages(void **state) {
  (void)state;
  for (unsigned dark = 0; dark < 2; dark++) {
    for (uint32_t count = 1; count <= 200; count += count < 20 ? 1 : 45) {
      for (uint32_t stage = 0; stage < count; stage++) {
        const double f = lightness(weft_palette_stage(stage, count, WEFT_OP_F, dark == 1));
        const double i = lightness(weft_palette_stage(stage, count, WEFT_OP_I, dark == 1));
        const double b = lightness(weft_palette_stage(stage, count, WEFT_OP_B, dark == 1));
        const double w = lightness(weft_palette_stage(stage, count, WEFT_OP_W, dark == 1));
        assert_true(f > i + 3 && i > b + 3 && b > w + 3);
      }
    }
  }
  for (uint32_t a = 0; a < 8; a++) {
    for (uint32_t b = 0; b < a; b++) {
      assert_true(difference(weft_palette_stage(a, 8, WEFT_OP_B, false),
                             weft_palette_stage(b, 8, WEFT_OP_B, false), 0) >= 20);
    }
  }
}

static double luminance(uint32_t colour) {
  return 0.2126 * linear(colour >> 16 & 0xff) + 0.7152 * linear(colour >> 8 & 0xff) +
         0.0722 * linear(colour & 0xff);
}

/* As the Web's accessibility guidelines define it. */
static double contrast(uint32_t a, uint32_t b) {
  const double x = luminance(a), y = luminance(b);
  return x > y ? (x + 0.05) / (y + 0.05) : (y + 0.05) / (x + 0.05);
}

static void test_numbers_can_be_read(void **state) {
  (void)state;
  for (unsigned dark = 0; dark < 2; dark++) {
    const struct weft_palette *palette = weft_palette_of(dark == 1);
    assert_true(contrast(palette->ink, palette->background) >= 7);
    assert_true(contrast(palette->ink_faint, palette->background) >= 4.5);
    for (unsigned i = 0; i < COMPUTES; i++) {
      for (uint32_t k = 0; k < 4; k++) {
        const uint32_t colour = weft_palette_chunk(computes[i], k, 4, dark == 1);
        assert_true(contrast(colour, weft_palette_ink_on(colour)) >= 3);
      }
      for (uint32_t stage = 0; stage < 64; stage++) {
        const uint32_t colour = weft_palette_stage(stage, 64, computes[i], dark == 1);
        assert_true(contrast(colour, weft_palette_ink_on(colour)) >= 3);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ops_are_told_apart),
      cmocka_unit_test(test_chunks),
      cmocka_unit_test(test_stages),
      cmocka_unit_test(test_stages_without_colour),
      cmocka_unit_test(test_numbers_can_be_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
