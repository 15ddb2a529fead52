/* The passes, for the pass table and for weft_lower(). */
#ifndef LOWER_PASSES_H
#define LOWER_PASSES_H

#include <weft/lower.h>

#include "ir/action.h"

/* What a pass leaves out of its input: bubbles always; the REDUCE_GRADs that
 * PyTorch's GPipe and 1F1B tables carry, in the first pass of a lowering. */
#define WEFT_SKIP_BUBBLES WEFT_OP_BIT(WEFT_OP_IDLE)
#define WEFT_SKIP_TABLE (WEFT_SKIP_BUBBLES | WEFT_OP_BIT(WEFT_OP_REDUCE_GRAD))

struct weft_pass_input {
  const struct weft_allocator *allocator;
  const struct weft_program *program;
  uint32_t skip; /* set of ops */
  uint32_t window;
  bool by_time;
};

typedef enum weft_status weft_pass_function(const struct weft_pass_input *input,
                                            struct weft_program **out, struct weft_error *error);

weft_pass_function weft_pass_strip;          /* leaves out what is to be skipped, no more */
weft_pass_function weft_pass_merge_bw;       /* I directly followed by its W -> B */
weft_pass_function weft_pass_unshard;        /* UNSHARD and RESHARD around use */
weft_pass_function weft_pass_reduce_grad;    /* REDUCE_GRAD after the stage's last W or B */
weft_pass_function weft_pass_unshard_reduce; /* both, one after the other, in one scan */
weft_pass_function weft_pass_tie_grad;       /* TIE_GRAD of the first and the last stage */
weft_pass_function weft_pass_send_recv;      /* SEND and RECV between ranks */

#endif
