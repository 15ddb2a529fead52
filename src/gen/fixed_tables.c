/* The four fixed tables that PyTorch's own tests use: odd placements, a split
 * backward out of order, and hand-placed communication. */
#include "gen/generator.h"

const struct weft_generator weft_generator_v_shaped = {
    .info = {.name = "VShaped",
             .summary = "fixed: 2 ranks own stages {0,3} and {1,2}, one microbatch",
             .paper = "",
             .placement = WEFT_PLACEMENT_V,
             .stages_per_rank_min = 2,
             .stages_per_rank_max = 2,
             .stages_per_rank_default = 2,
             .trains = true,
             .fixed = true,
             .bubble = "",
             .peak_activation = "",
             .limits = "p = 2, m = 1"},
    .csv =
        "0F0,,,3F0,3B0,,,0B0\n"
        ",1F0,2F0,,,2B0,1B0,\n"};

const struct weft_generator weft_generator_unbalanced = {
    .info = {.name = "Unbalanced",
             .summary = "fixed: 2 ranks own stages {0,1,4} and {2,3}, one microbatch",
             .paper = "",
             .placement = WEFT_PLACEMENT_INFERRED,
             .stages_per_rank_min = 2,
             .stages_per_rank_max = 3,
             .stages_per_rank_default = 3,
             .trains = true,
             .fixed = true,
             .bubble = "",
             .peak_activation = "",
             .limits = "p = 2, m = 1"},
    .csv =
        "0F0,1F0,,,4F0,4B0,,,1B0,0B0\n"
        ",,2F0,3F0,,,3B0,2B0,,\n"};

const struct weft_generator weft_generator_with_w = {
    .info = {.name = "WithW",
             .summary = "fixed: 2 ranks own stages {0,2} and {1,3}, split backward",
             .paper = "",
             .placement = WEFT_PLACEMENT_LOOP,
             .stages_per_rank_min = 2,
             .stages_per_rank_max = 2,
             .stages_per_rank_default = 2,
             .splits_backward = true,
             .trains = true,
             .fixed = true,
             .bubble = "",
             .peak_activation = "",
             .limits = "p = 2, m = 2"},
    .csv =
        "0F0,0F1,2F0,2F1,,2I0,2W0,0I0,2I1,0W0,0I1,2W1,0W1\n"
        ",1F0,1F1,3F0,3I0,3F1,1I0,3I1,3W0,1I1,1W0,3W1,1W1\n"};

const struct weft_generator weft_generator_reordered_b = {
    .info = {.name = "ReorderedB",
             .summary = "fixed: 2 ranks, with communication placed by hand",
             .paper = "",
             .placement = WEFT_PLACEMENT_LOOP,
             .stages_per_rank_min = 1,
             .stages_per_rank_max = 1,
             .stages_per_rank_default = 1,
             .trains = true,
             .fixed = true,
             .bubble = "",
             .peak_activation = "",
             .limits = "p = 2, m = 2"},
    .csv =
        "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
        "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B0,1SEND_B1\n"};
