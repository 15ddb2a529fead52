/* The colours of pictures, shared by SVG and HTML, so that an op looks the same
 * everywhere. After Okabe and Ito: distinct with any kind of colour vision,
 * and F, B, I and W also by lightness alone, as a grey printer leaves them, on the first
 * stages of ranks, on the second ones, and so on (tests/render/test_palette.c measures it). */
#ifndef RENDER_PALETTE_H
#define RENDER_PALETTE_H

#include <weft/ir.h>

/* Colours are 0xRRGGBB; write them as "#%06" PRIx32. */
struct weft_palette {
  uint32_t background;
  uint32_t ink;       /* text */
  uint32_t ink_faint; /* axis numbers, units, legends */
  uint32_t rule;      /* grid and axis lines */
  uint32_t memory;    /* the memory strip */
  uint32_t highlight; /* what was chosen, and the critical path */
};

/* Static storage. */
const struct weft_palette *weft_palette_of(bool dark);

/* The colour of an op; of IDLE, that of the empty lane of a rank. */
uint32_t weft_palette_op(enum weft_op op, bool dark);

/* The colour of an op of a stage when pictures are coloured by stage: the hue is
 * the stage's, the lightness the op's. */
uint32_t weft_palette_stage(uint32_t stage, uint32_t stage_count, enum weft_op op, bool dark);

/* The colour of an op for the k-th of `count` stages of its rank: paler for later
 * ones, and still the op's. */
uint32_t weft_palette_chunk(enum weft_op op, uint32_t k, uint32_t count, bool dark);

/* `share` of 256 parts of `to`, the rest of `from`. */
uint32_t weft_palette_mix(uint32_t from, uint32_t to, uint32_t share);

/* The lines at the foot of a cell that say which of its rank's stages it is, so that it shows
 * without colour: one for each stage of the rank before it, at most WEFT_STAGE_LINES_MAX. */
enum { WEFT_STAGE_LINES_MAX = 3 };
uint32_t weft_palette_line(uint32_t colour);

/* Black or white: what can be read on this colour. */
uint32_t weft_palette_ink_on(uint32_t colour);

#endif
