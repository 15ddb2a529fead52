/* The four fixed tables that PyTorch's own tests use: odd placements, a split
 * backward out of order, and hand-placed communication. */
#include "gen/generator.h"

#define FIXED_TABLE(id, name_, summary_, placement_, stages, splits, limits_, csv_) \
  const struct weft_generator weft_generator_##id = {                               \
      .info = {.name = name_,                                                       \
               .summary = summary_,                                                 \
               .paper = "",                                                         \
               .placement = WEFT_PLACEMENT_##placement_,                            \
               stages,                                                              \
               .splits_backward = splits,                                           \
               .trains = true,                                                      \
               .fixed = true,                                                       \
               .bubble = "",                                                        \
               .peak_activation = "",                                               \
               .limits = limits_},                                                  \
      .csv = csv_}

FIXED_TABLE(v_shaped, "VShaped", "fixed: 2 ranks own stages {0,3} and {1,2}, one microbatch", V,
            WEFT_STAGES_PER_RANK(2, 2, 2), false, "p = 2, m = 1",
            "0F0,,,3F0,3B0,,,0B0\n"
            ",1F0,2F0,,,2B0,1B0,\n");

FIXED_TABLE(unbalanced, "Unbalanced", "fixed: 2 ranks own stages {0,1,4} and {2,3}, one microbatch",
            INFERRED, WEFT_STAGES_PER_RANK(2, 3, 3), false, "p = 2, m = 1",
            "0F0,1F0,,,4F0,4B0,,,1B0,0B0\n"
            ",,2F0,3F0,,,3B0,2B0,,\n");

FIXED_TABLE(with_w, "WithW", "fixed: 2 ranks own stages {0,2} and {1,3}, split backward", LOOP,
            WEFT_STAGES_PER_RANK(2, 2, 2), true, "p = 2, m = 2",
            "0F0,0F1,2F0,2F1,,2I0,2W0,0I0,2I1,0W0,0I1,2W1,0W1\n"
            ",1F0,1F1,3F0,3I0,3F1,1I0,3I1,3W0,1I1,1W0,3W1,1W1\n");

FIXED_TABLE(reordered_b, "ReorderedB", "fixed: 2 ranks, with communication placed by hand", LOOP,
            WEFT_STAGES_PER_RANK(1, 1, 1), false, "p = 2, m = 2",
            "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
            "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B0,1SEND_B1\n");
