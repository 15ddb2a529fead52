/* The colours of pictures. */
#include "render/palette.h"

/* From light to dark I, F, B, W: the halves of a backward lie on both sides of
 * the whole one, and no two of the four are near in lightness. */
static const struct weft_palette light = {
    .ops = {[WEFT_OP_IDLE] = 0xf1f3f5,
            [WEFT_OP_F] = 0x56b4e9,
            [WEFT_OP_B] = 0xd55e00,
            [WEFT_OP_I] = 0xf5d04e,
            [WEFT_OP_W] = 0x00634a,
            [WEFT_OP_SEND_F] = 0x0072b2,
            [WEFT_OP_RECV_F] = 0x0072b2,
            [WEFT_OP_SEND_B] = 0x9c4300,
            [WEFT_OP_RECV_B] = 0x9c4300,
            [WEFT_OP_UNSHARD] = 0xcc79a7,
            [WEFT_OP_RESHARD] = 0xe3b8d0,
            [WEFT_OP_REDUCE_GRAD] = 0x7b4a8c,
            [WEFT_OP_OVERLAP_F_B] = 0x8a949e,
            [WEFT_OP_TIE_GRAD] = 0x4d3a63},
    .background = 0xffffff,
    .ink = 0x1b1f24,
    .ink_faint = 0x57606a,
    .rule = 0xd0d7de,
    .memory = 0x8a949e,
    .highlight = 0x000000,
};

static const struct weft_palette dark_theme = {
    .ops = {[WEFT_OP_IDLE] = 0x1e242b,
            [WEFT_OP_F] = 0x56b4e9,
            [WEFT_OP_B] = 0xd9651a,
            [WEFT_OP_I] = 0xf5d04e,
            [WEFT_OP_W] = 0x0d7057,
            [WEFT_OP_SEND_F] = 0x7cc7f2,
            [WEFT_OP_RECV_F] = 0x7cc7f2,
            [WEFT_OP_SEND_B] = 0xf09a5e,
            [WEFT_OP_RECV_B] = 0xf09a5e,
            [WEFT_OP_UNSHARD] = 0xcc79a7,
            [WEFT_OP_RESHARD] = 0x8f5876,
            [WEFT_OP_REDUCE_GRAD] = 0xa784b8,
            [WEFT_OP_OVERLAP_F_B] = 0x768390,
            [WEFT_OP_TIE_GRAD] = 0xc9b3d6},
    .background = 0x0f1318,
    .ink = 0xe6edf3,
    .ink_faint = 0x9da7b1,
    .rule = 0x343d47,
    .memory = 0x768390,
    .highlight = 0xffffff,
};

const struct weft_palette *weft_palette_of(bool dark) { return dark ? &dark_theme : &light; }

/* `share` of 256 parts of `to`, the rest of `from`. */
static uint32_t mix(uint32_t from, uint32_t to, uint32_t share) {
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
  return below >= RAMP - 1 ? ramp[RAMP - 1]
                           : mix(ramp[below], ramp[below + 1], (uint32_t)(scaled % 256));
}

uint32_t weft_palette_stage(uint32_t stage, uint32_t stage_count, enum weft_op op, bool dark) {
  const uint32_t hue = stage_hue(stage, stage_count);
  switch (op) {
    case WEFT_OP_F: return mix(hue, 0xffffff, dark ? 100 : 128);
    case WEFT_OP_I: return mix(hue, 0xffffff, dark ? 40 : 56);
    case WEFT_OP_B: return hue;
    case WEFT_OP_W: return mix(hue, 0x000000, dark ? 72 : 96);
    default: return weft_palette_of(dark)->ops[op];
  }
}

uint32_t weft_palette_chunk(enum weft_op op, uint32_t k, uint32_t count, bool dark) {
  enum { PALEST = 104 };
  const uint32_t share = count > 1 && k > 0 ? (uint32_t)((uint64_t)PALEST * k / (count - 1)) : 0;
  return mix(weft_palette_of(dark)->ops[op], 0xffffff, share < PALEST ? share : PALEST);
}

/* By the relative luminance, with 2 for the exponent of the curve. Black has the
 * better contrast from 0.18 on, but on strong colours white is read as well up to
 * a quarter, and looks calmer. */
uint32_t weft_palette_ink_on(uint32_t colour) {
  const uint32_t red = colour >> 16 & 0xff, green = colour >> 8 & 0xff, blue = colour & 0xff;
  const uint32_t luminance =
      (2126 * red * red + 7152 * green * green + 722 * blue * blue) / (255 * 255);
  return luminance > 2600 ? 0x000000 : 0xffffff;
}
