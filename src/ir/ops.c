/* The op table as data. */
#include <assert.h>

#include <weft/ir.h>

static const struct weft_op_info op_table[WEFT_OP_COUNT] = {
#define WEFT_OP(NAME, text_, KIND, microbatch, summary_, waits) \
  [WEFT_OP_##NAME] = {.text = text_,                            \
                      .kind = WEFT_KIND_##KIND,                 \
                      .has_microbatch = microbatch,             \
                      .summary = summary_,                      \
                      .waits_for = waits},
#include "ir/ops.def"
#undef WEFT_OP
};

const struct weft_op_info *weft_op_info(enum weft_op op) {
  assert((unsigned)op < WEFT_OP_COUNT);
  return &op_table[op];
}
