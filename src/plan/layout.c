/* Which layouts there are. */
#include "plan/layout.h"

#include <inttypes.h>

#include "base/fail.h"
#include "base/memory.h"

/* Tried when v is not given. */
static const uint32_t usual_stages_per_rank[] = {1, 2, 4};

enum { LAYOUTS_MAX = 16 };

/* ---- Costs of the stages of a layout ---- */

/* One entry, not for a stage but for a rank's share: a stage is 1/v of it. */
static struct weft_stage_costs share(const struct weft_stage_costs *whole, uint32_t v) {
  struct weft_stage_costs stage = *whole;
  double *const fields[] = {&stage.f,
                            &stage.i,
                            &stage.w,
                            &stage.b,
                            &stage.activation,
                            &stage.activation_after_i,
                            &stage.unshard,
                            &stage.reduce_grad,
                            &stage.parameters,
                            &stage.gradients,
                            &stage.parameters_sharded,
                            &stage.gradients_sharded};
  for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++) {
    *fields[n] /= v;
  }
  if (stage.overlap_f_b > 0) {
    stage.overlap_f_b /= v;
  }
  return stage;
}

static enum weft_status make_costs(const struct weft_allocator *allocator,
                                   const struct weft_search_request *request, uint32_t v,
                                   struct weft_costs **out, struct weft_error *error) {
  const struct weft_costs *from = request->costs;
  const uint32_t parts = request->stages_per_rank == 0 && from->stage_count == 1 ? v : 1;
  WEFT_TRY(weft_costs_create(allocator, request->ranks * v, out, error));
  for (uint32_t s = 0; s < (*out)->stage_count; s++) {
    (*out)->stages[s] = share(weft_costs_of(from, s), parts);
  }
  (*out)->hop = from->hop;
  for (size_t n = 0; n < sizeof from->unit; n++) {
    (*out)->unit[n] = from->unit[n];
  }
  return WEFT_OK;
}

/* ---- The list ---- */

static enum weft_status add(struct weft_layouts *layouts, const struct weft_search_request *request,
                            uint32_t v, enum weft_placement_kind placement, bool whole_backward,
                            struct weft_error *error) {
  struct weft_layout *layout = &layouts->list[layouts->count];
  *layout = (struct weft_layout){.shape = {.ranks = request->ranks,
                                           .stages_per_rank = v,
                                           .microbatches = request->microbatches,
                                           .placement = placement},
                                 .whole_backward = whole_backward};
  WEFT_TRY(make_costs(layouts->allocator, request, v, &layout->costs, error));
  layouts->count++;
  return WEFT_OK;
}

static bool whole_is_cheaper(const struct weft_costs *costs) {
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    if (costs->stages[s].b < costs->stages[s].i + costs->stages[s].w) {
      return true;
    }
  }
  return false;
}

static enum weft_status add_backwards(struct weft_layouts *layouts,
                                      const struct weft_search_request *request, uint32_t v,
                                      enum weft_placement_kind placement,
                                      struct weft_error *error) {
  if (!request->whole_backward) {
    WEFT_TRY(add(layouts, request, v, placement, false, error));
  }
  if (request->whole_backward || whole_is_cheaper(request->costs)) {
    WEFT_TRY(add(layouts, request, v, placement, true, error));
  }
  return WEFT_OK;
}

static enum weft_status add_placements(struct weft_layouts *layouts,
                                       const struct weft_search_request *request, uint32_t v,
                                       struct weft_error *error) {
  if (v == 1 || request->any_placement || request->placement == WEFT_PLACEMENT_LOOP) {
    WEFT_TRY(add_backwards(layouts, request, v, WEFT_PLACEMENT_LOOP, error));
  }
  if (v % 2 == 0 && (request->any_placement || request->placement == WEFT_PLACEMENT_V)) {
    WEFT_TRY(add_backwards(layouts, request, v, WEFT_PLACEMENT_V, error));
  }
  return WEFT_OK;
}

/* The v that was given, or that the number of entries says; 0: open. */
static enum weft_status find_stages_per_rank(const struct weft_search_request *request, uint32_t *v,
                                             struct weft_error *error) {
  const uint32_t entries = request->costs->stage_count;
  *v = request->stages_per_rank;
  if (request->ranks == 0 || request->microbatches == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give each of them at least 1",
                     "%" PRIu32 " ranks and %" PRIu32 " microbatches make no pipeline",
                     request->ranks, request->microbatches);
  }
  if (entries == 1) {
    return WEFT_OK;
  }
  if (entries % request->ranks != 0 || (*v != 0 && entries != (uint64_t)*v * request->ranks)) {
    return weft_fail(
        error, WEFT_ERR_USAGE, "give one entry that serves all stages, or one for each stage",
        "the costs have %" PRIu32 " entries in stages, which is no multiple of %" PRIu32
        " ranks that was asked for",
        entries, request->ranks);
  }
  *v = entries / request->ranks;
  return WEFT_OK;
}

static enum weft_status list_all(struct weft_layouts *layouts,
                                 const struct weft_search_request *request,
                                 struct weft_error *error) {
  uint32_t v;
  WEFT_TRY(find_stages_per_rank(request, &v, error));
  if (v != 0) {
    WEFT_TRY(add_placements(layouts, request, v, error));
  }
  for (size_t n = 0; v == 0 && n < sizeof usual_stages_per_rank / sizeof(uint32_t); n++) {
    WEFT_TRY(add_placements(layouts, request, usual_stages_per_rank[n], error));
  }
  if (layouts->count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give an even number of stages per rank",
                     "a V needs two stages on each rank, and %" PRIu32 " were asked for", v);
  }
  return WEFT_OK;
}

enum weft_status weft_layouts_init(struct weft_layouts *layouts,
                                   const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   struct weft_error *error) {
  *layouts = (struct weft_layouts){.allocator = allocator, .capacity = LAYOUTS_MAX};
  layouts->list = weft_array_allocate(allocator, LAYOUTS_MAX, sizeof *layouts->list);
  if (layouts->list == NULL) {
    return weft_fail_memory(error, LAYOUTS_MAX * sizeof *layouts->list);
  }
  const enum weft_status status = list_all(layouts, request, error);
  if (status != WEFT_OK) {
    weft_layouts_finish(layouts);
  }
  return status;
}

void weft_layouts_finish(struct weft_layouts *layouts) {
  for (uint32_t n = 0; n < layouts->count; n++) {
    weft_costs_destroy(layouts->list[n].costs);
    weft_array_free(layouts->allocator, layouts->list[n].stage_parts,
                    (size_t)layouts->list[n].shape.ranks * layouts->list[n].shape.stages_per_rank,
                    sizeof(uint32_t));
  }
  weft_array_free(layouts->allocator, layouts->list, layouts->capacity, sizeof *layouts->list);
  *layouts = (struct weft_layouts){.allocator = layouts->allocator};
}
