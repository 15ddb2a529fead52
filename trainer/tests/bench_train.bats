#!/usr/bin/env bats
# weft bench train
# shellcheck disable=SC2154
load ../../tests/setup/cli_setup

@test "bench train measures five schedules on one rank and on two" {
  if [[ ! -e $WEFT_BUILD_DIR/libweft_gpt.a ]]; then
    weft bench train
    fails 69 "built without the trainer" "OpenBLAS"
    return
  fi
  "$WEFT" bench train --json --repeats 1 --layers 4 --dim 64 >b.json
  jq -e '.schema == "weft-bench-train/1" and .checked and .processors > 0 and .steps_measured == 2
         and .tokens_per_step == 2048 and .last_loss < .first_loss' b.json >/dev/null
  jq -e '(.schedules | length) == 5 and (.schedules | all(.one_rank_step_ms > 0 and .two_rank_step_ms > 0
         and .predicted_step_ms_from_costs_alone > 0 and .predicted_step_ms_from_costs_together > 0
         and .speed_up > 0))' b.json >/dev/null
  # 6 operations per weight and token, and attention: 7 products, of tiles on and below the
  # diagonal, each group of 16 rows as far as it sees (trainer/tests/test_gpt_flops.c).
  jq -e '.products.flop_per_step == 6 * 2048 * (4 * 12 * 4096 + 16384)
         + 4 * 16 * 8 * 7 * 2 * 8 * 4096 * (1 + 2 * 10 / 16)' b.json >/dev/null
  jq -e '.products.share_of_bare > 0 and .memory.trainer_bytes < .memory.allocated_peak_bytes' b.json >/dev/null
}
