/* Forward only, on the placement of any table. */
#include <weft/plan.h>

#include "base/fail.h"
#include "base/memory.h"
#include "ir/action.h"
#include "ir/program.h"

static enum weft_status check_placement(const struct weft_program *like, const uint32_t *rank_of,
                                        struct weft_error *error) {
  for (uint32_t s = 0; s < like->stage_count; s++) {
    if (rank_of[s] == WEFT_RANK_NONE) {
      return weft_fail(error, WEFT_ERR_INVALID, "'weft verify' shows what else is missing",
                       "no rank computes stage %u of %u", s, like->stage_count);
    }
  }
  return WEFT_OK;
}

/* Microbatch after microbatch, each through the rank's stages in order: what a
 * rank waits for in a row is then never behind what it could do. */
static void write_row(const uint32_t *rank_of, uint32_t stage_count, uint32_t microbatch_count,
                      uint32_t rank, struct weft_action *at) {
  for (uint32_t mb = 0; mb < microbatch_count; mb++) {
    for (uint32_t s = 0; s < stage_count; s++) {
      if (rank_of[s] == rank) {
        *at++ = weft_action_make(WEFT_OP_F, s, mb);
      }
    }
  }
}

static enum weft_status make_table(const struct weft_allocator *allocator,
                                   const struct weft_program *like, const uint32_t *rank_of,
                                   uint64_t *row_sizes, uint32_t microbatch_count,
                                   struct weft_program **out, struct weft_error *error) {
  for (uint32_t s = 0; s < like->stage_count; s++) {
    row_sizes[rank_of[s]] += microbatch_count;
  }
  WEFT_TRY(weft_program_allocate(allocator, like->rank_count, row_sizes, out, error));
  for (uint32_t r = 0; r < like->rank_count; r++) {
    write_row(rank_of, like->stage_count, microbatch_count, r,
              &(*out)->actions[(*out)->row_begin[r]]);
  }
  weft_program_seal(*out);
  return WEFT_OK;
}

enum weft_status weft_plan_forward(const struct weft_allocator *allocator,
                                   const struct weft_program *like, uint32_t microbatch_count,
                                   struct weft_program **out, struct weft_error *error) {
  const struct weft_lower_options lower = {
      .communicate = true, .assign_slots = true, .unshard_window = 1};
  struct weft_program *table = NULL;
  uint32_t *rank_of = weft_array_allocate(allocator, like->stage_count, sizeof *rank_of);
  uint64_t *row_sizes = weft_array_allocate_zero(allocator, like->rank_count, sizeof *row_sizes);
  enum weft_status status = WEFT_OK;
  if (rank_of == NULL || row_sizes == NULL) {
    status = weft_fail_memory(error, like->stage_count * sizeof *rank_of);
  }
  if (status == WEFT_OK) {
    (void)weft_placement_infer(like, rank_of);
    status = check_placement(like, rank_of, error);
  }
  if (status == WEFT_OK) {
    status = make_table(allocator, like, rank_of, row_sizes, microbatch_count, &table, error);
  }
  if (status == WEFT_OK) {
    status = weft_lower(allocator, table, &lower, out, error);
  }
  weft_program_destroy(table);
  weft_array_free(allocator, row_sizes, like->rank_count, sizeof *row_sizes);
  weft_array_free(allocator, rank_of, like->stage_count, sizeof *rank_of);
  return status;
}
