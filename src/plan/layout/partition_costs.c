/* Costs of the stages of a layout, as their ranks execute them. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "plan/layout/layout.h"
#include "plan/layout/partition.h"
#include "spec/costs_fields.h"

/* The costs of all stages together. A single entry is of one stage if the stages per rank are
 * given, else of all stages of a rank. */
static struct weft_stage_costs total_of(const struct weft_search_request *request) {
  const struct weft_costs *costs = request->costs;
  const uint32_t v = request->stages_per_rank > 0 ? request->stages_per_rank : 1;
  const double times = costs->stage_count == 1 ? (double)request->ranks * v : 1;
  const struct weft_cost_field *fields = weft_stage_cost_fields;
  struct weft_stage_costs total = {.f = 0};
  for (; fields->name != NULL; fields++) {
    for (uint32_t s = 0; s < costs->stage_count; s++) {
      *weft_cost_at(&total, fields) += times * weft_cost_of(&costs->stages[s], fields);
    }
  }
  return total;
}

/* Sums over parts; negative: not specified. */
static struct weft_part_costs sums_of(const struct weft_costs *costs, uint32_t begin,
                                      uint32_t end) {
  struct weft_part_costs sums;
  for (const struct weft_cost_field *field = weft_part_cost_fields; field->name != NULL; field++) {
    double *sum = weft_cost_at(&sums, field);
    *sum = field->may_be_absent ? -1 : 0;
    for (uint32_t k = begin; k < end; k++) {
      const double own = weft_cost_of(&costs->parts[k], field);
      *sum = own >= 0 ? fmax(0, *sum) + own : *sum;
    }
  }
  return sums;
}

/* ---- One stage ---- */

static void slow_down(struct weft_stage_costs *stage, const struct weft_search_request *request,
                      uint32_t rank) {
  const double factor = request->rank_factors != NULL ? request->rank_factors[rank] : 1;
  const bool is_sum = stage->b == stage->i + stage->w; /* it stays one, whatever is rounded */
  stage->f *= factor;
  stage->i *= factor;
  stage->w *= factor;
  stage->b = is_sum ? stage->i + stage->w : stage->b * factor;
  stage->overlap_f_b *= factor; /* negative: not specified */
}

/* A size of a stage, from the sum over all parts (negative: not specified), the sum over its own
 * parts, and its share of the entries. */
static double size_of(double all, double own, double total, double share) {
  if (all < 0) {
    return total * share;
  }
  return own < 0 ? 0 : own;
}

static struct weft_stage_costs stage_of(const struct weft_stage_costs *total,
                                        const struct weft_part_costs *all,
                                        const struct weft_part_costs *own, double share) {
  const double halves = total->i + total->w;
  struct weft_stage_costs stage = weft_stage_costs_default();
  stage.f = own->f;
  stage.i = own->i;
  stage.w = own->w;
  stage.b = (own->i + own->w) * (halves > 0 ? total->b / halves : 1);
  stage.activation = size_of(all->activation, own->activation, total->activation, share);
  stage.activation_after_i = all->activation >= 0 && all->activation_after_i < 0
                                 ? stage.activation
                                 : size_of(all->activation_after_i, own->activation_after_i,
                                           total->activation_after_i, share);
  stage.parameters = size_of(all->parameters, own->parameters, total->parameters, share);
  stage.gradients = size_of(all->gradients, own->gradients, total->gradients, share);
  stage.unshard = total->unshard * share;
  stage.reduce_grad = total->reduce_grad * share;
  stage.parameters_sharded = total->parameters_sharded * share;
  stage.gradients_sharded = total->gradients_sharded * share;
  return stage;
}

/* ---- All stages ---- */

static enum weft_status create(const struct weft_allocator *allocator,
                               const struct weft_search_request *request, uint32_t stage_count,
                               struct weft_costs **out, struct weft_error *error) {
  WEFT_TRY(weft_costs_create(allocator, stage_count, out, error));
  (*out)->hop = request->costs->hop;
  memcpy((*out)->unit, request->costs->unit, sizeof(*out)->unit);
  return WEFT_OK;
}

enum weft_status weft_partition_costs(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request,
                                      const struct weft_shape *shape, const uint32_t *first,
                                      struct weft_costs **out, struct weft_error *error) {
  assert(first[0] == 0 && out != NULL);
  const struct weft_costs *from = request->costs;
  const uint32_t stage_count = shape->ranks * shape->stages_per_rank;
  const struct weft_stage_costs total = total_of(request);
  const struct weft_part_costs all = sums_of(from, 0, from->part_count);
  WEFT_TRY(create(allocator, request, stage_count, out, error));
  for (uint32_t s = 0; s < stage_count; s++) {
    const struct weft_part_costs own = sums_of(from, first[s], first[s + 1]);
    const double share = all.f > 0 ? own.f / all.f : 1.0 / stage_count;
    (*out)->stages[s] = stage_of(&total, &all, &own, share);
    slow_down(&(*out)->stages[s], request, weft_shape_rank_of(shape, s));
  }
  return WEFT_OK;
}

enum weft_status weft_plan_layout_costs(const struct weft_allocator *allocator,
                                        const struct weft_search_request *request,
                                        const struct weft_plan_layout *layout,
                                        struct weft_costs **out, struct weft_error *error) {
  assert(layout->stage_count > 0 && out != NULL);
  struct weft_costs_view view;
  const struct weft_costs *from =
      weft_costs_of_stages(request->costs, request->ranks, layout->stage_count, &view);
  WEFT_TRY(create(allocator, request, layout->stage_count, out, error));
  for (uint32_t s = 0; s < layout->stage_count; s++) {
    (*out)->stages[s] = *weft_costs_of(from, s);
    slow_down(&(*out)->stages[s], request, weft_plan_layout_rank_of(layout, s));
  }
  return WEFT_OK;
}
