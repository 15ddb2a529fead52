/* The colours of pictures. */
#include "render/palette.h"

#include <assert.h>

static const struct weft_palette light_theme = {.background = 0xffffff,
                                                .ink = 0x1b1f24,
                                                .ink_faint = 0x57606a,
                                                .rule = 0xd0d7de,
                                                .memory = 0x8a949e,
                                                .highlight = 0x000000};
static const struct weft_palette dark_theme = {.background = 0x0f1318,
                                               .ink = 0xe6edf3,
                                               .ink_faint = 0x9da7b1,
                                               .rule = 0x343d47,
                                               .memory = 0x768390,
                                               .highlight = 0xffffff};

const struct weft_palette *weft_palette_of(bool dark) { return dark ? &dark_theme : &light_theme; }

uint32_t weft_palette_op(enum weft_op op, bool dark) { return weft_op_info(op)->colour[dark]; }

uint32_t weft_palette_mix(uint32_t from, uint32_t to, uint32_t share) {
  uint32_t mixed = 0;
  for (unsigned shift = 0; shift < 24; shift += 8) {
    const uint32_t a = from >> shift & 0xff;
    const uint32_t b = to >> shift & 0xff;
    mixed |= ((a * (256 - share) + b * share) >> 8) << shift;
  }
  return mixed;
}

/* Few stages have colours as unlike as can be; many lie along a ramp from purple
 * to red (after Tol's smooth rainbow), so that a stage's place in the pipeline
 * shows. */
static uint32_t stage_hue(uint32_t stage, uint32_t stage_count) {
  static const uint32_t few[] = {0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7,
                                 0x56b4e9, 0xe69f00, 0x7b4a8c, 0x8a7f00};
  static const uint32_t ramp[] = {0x6f4c9b, 0x5568b8, 0x4e79c4, 0x4d90c0, 0x549eb3, 0x60ab9e,
                                  0x77b77d, 0xa6be54, 0xd1b541, 0xe49c39, 0xe67932, 0xdf4828};
  enum { FEW = sizeof few / sizeof few[0], RAMP = sizeof ramp / sizeof ramp[0] };
  if (stage_count <= FEW) {
    return few[stage % FEW];
  }
  const uint64_t scaled =
      (uint64_t)(stage % stage_count) * (RAMP - 1) * 256 / (uint64_t)(stage_count - 1);
  const uint32_t below = (uint32_t)(scaled / 256);
  return below >= RAMP - 1
             ? ramp[RAMP - 1]
             : weft_palette_mix(ramp[below], ramp[below + 1], (uint32_t)(scaled % 256));
}

uint32_t weft_palette_stage(uint32_t stage, uint32_t stage_count, enum weft_op op, bool dark) {
  assert(stage_count > 0);
  const struct weft_op_info *info = weft_op_info(op);
  if (info->kind != WEFT_KIND_COMPUTE) {
    return info->colour[dark];
  }
  const int shade = info->shade[dark];
  return weft_palette_mix(stage_hue(stage, stage_count), shade > 0 ? 0xffffff : 0x000000,
                          (uint32_t)(shade > 0 ? shade : -shade));
}

uint32_t weft_palette_chunk(enum weft_op op, uint32_t k, uint32_t count, bool dark) {
  assert(k < count || count == 0);
  enum { PALEST = 80 };
  const uint32_t share = count > 1 && k > 0 ? (uint32_t)((uint64_t)PALEST * k / (count - 1)) : 0;
  return weft_palette_mix(weft_palette_op(op, dark), 0xffffff, share < PALEST ? share : PALEST);
}

uint32_t weft_palette_line(uint32_t colour) {
  return weft_palette_mix(colour, weft_palette_ink_on(colour), 160);
}

/* By the relative luminance, with 2 for the exponent of the curve. Black has the
 * better contrast from 0.18 on, but on strong colours white is read as well up to
 * a quarter, and looks calmer. */
uint32_t weft_palette_ink_on(uint32_t colour) {
  assert(colour <= 0xffffff);
  const uint32_t red = colour >> 16 & 0xff, green = colour >> 8 & 0xff, blue = colour & 0xff;
  const uint32_t luminance =
      (2126 * red * red + 7152 * green * green + 722 * blue * blue) / (255 * 255);
  return luminance > 2600 ? 0x000000 : 0xffffff;
}
