/* The op table as data. */
#include <assert.h>

#include <weft/ir.h>

static const struct weft_op_info op_table[WEFT_OP_COUNT] = {
#define WEFT_OP(NAME, text_, KIND, microbatch, summary_, waits, legend_, letter_, terminal, \
                phrase, category, peer, light, dark, light_shade, dark_shade)               \
  [WEFT_OP_##NAME] = {.text = text_,                                                        \
                      .kind = WEFT_KIND_##KIND,                                             \
                      .has_microbatch = microbatch,                                         \
                      .summary = summary_,                                                  \
                      .waits_for = waits,                                                   \
                      .legend = legend_,                                                    \
                      .letter = letter_,                                                    \
                      .terminal_colour = terminal,                                          \
                      .trace_category = category,                                           \
                      .peer_word = peer,                                                    \
                      .colour = {light, dark},                                              \
                      .shade = {light_shade, dark_shade}},
#include "ir/ops.def"
#undef WEFT_OP
};

/* The table and enum weft_op have the same ops in the same order. */
enum table_order {
#define WEFT_OP(NAME, ...) ORDER_##NAME,
#include "ir/ops.def"
#undef WEFT_OP
  ORDER_COUNT
};
#define WEFT_OP(NAME, ...)                                 \
  _Static_assert((int)ORDER_##NAME == (int)WEFT_OP_##NAME, \
                 "ops.def and weft/ir.h differ at " #NAME);
#include "ir/ops.def"
#undef WEFT_OP
_Static_assert((int)ORDER_COUNT == (int)WEFT_OP_COUNT, "ops.def and weft/ir.h differ in number");

const struct weft_op_info *weft_op_info(enum weft_op op) {
  assert((unsigned)op < WEFT_OP_COUNT);
  return &op_table[op];
}
