/* Costs in memory: made, looked up, checked. Reading them from JSON is in
 * costs_json.c. */
#include <weft/costs.h>

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "base/plain_text.h"
#include "spec/costs_fields.h"

#define HINT_RANGE "times and sizes are numbers from 0 to 1e12; choose another unit for larger ones"

const struct weft_cost_field weft_stage_cost_fields[] = {
    {"f", offsetof(struct weft_stage_costs, f), false},
    {"i", offsetof(struct weft_stage_costs, i), false},
    {"w", offsetof(struct weft_stage_costs, w), false},
    {"b", offsetof(struct weft_stage_costs, b), false},
    {"overlap_f_b", offsetof(struct weft_stage_costs, overlap_f_b), true},
    {"activation", offsetof(struct weft_stage_costs, activation), false},
    {"activation_after_i", offsetof(struct weft_stage_costs, activation_after_i), false},
    {"unshard", offsetof(struct weft_stage_costs, unshard), false},
    {"reduce_grad", offsetof(struct weft_stage_costs, reduce_grad), false},
    {"parameters", offsetof(struct weft_stage_costs, parameters), false},
    {"gradients", offsetof(struct weft_stage_costs, gradients), false},
    {"parameters_sharded", offsetof(struct weft_stage_costs, parameters_sharded), false},
    {"gradients_sharded", offsetof(struct weft_stage_costs, gradients_sharded), false},
    {NULL, 0, false},
};

const struct weft_cost_field weft_hop_cost_fields[] = {
    {"latency", offsetof(struct weft_hop_costs, latency), false},
    {"bytes", offsetof(struct weft_hop_costs, bytes), false},
    {"bytes_per_unit", offsetof(struct weft_hop_costs, bytes_per_unit), false},
    {NULL, 0, false},
};

const struct weft_cost_field weft_all_reduce_cost_fields[] = {
    {"latency", offsetof(struct weft_all_reduce_costs, latency), false},
    {"size_per_unit", offsetof(struct weft_all_reduce_costs, size_per_unit), false},
    {NULL, 0, false},
};

const struct weft_cost_field weft_part_cost_fields[] = {
    {"f", offsetof(struct weft_part_costs, f), false},
    {"i", offsetof(struct weft_part_costs, i), false},
    {"w", offsetof(struct weft_part_costs, w), false},
    {"activation", offsetof(struct weft_part_costs, activation), true},
    {"activation_after_i", offsetof(struct weft_part_costs, activation_after_i), true},
    {"parameters", offsetof(struct weft_part_costs, parameters), true},
    {"gradients", offsetof(struct weft_part_costs, gradients), true},
    {NULL, 0, false},
};

struct weft_stage_costs weft_stage_costs_default(void) {
  return (struct weft_stage_costs){
      .f = 1, .i = 1, .w = 1, .b = 2, .overlap_f_b = -1, .activation = 1, .activation_after_i = 1};
}

double weft_stage_time(const struct weft_stage_costs *stage, enum weft_op op) {
  switch (op) {
    case WEFT_OP_F: return stage->f;
    case WEFT_OP_B: return stage->b;
    case WEFT_OP_I: return stage->i;
    case WEFT_OP_W: return stage->w;
    case WEFT_OP_UNSHARD: return stage->unshard;
    case WEFT_OP_REDUCE_GRAD: return stage->reduce_grad;
    default: return 0;
  }
}

double weft_costs_unit_ns(const struct weft_costs *costs) {
  static const struct {
    const char *name;
    double ns;
  } units[] = {
      /* the last two: with the micro sign, and with a mu */
      {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}, {"\xc2\xb5s", 1e3}, {"\xce\xbcs", 1e3}};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(units); k++) {
    if (strcmp(costs->unit, units[k].name) == 0) {
      return units[k].ns;
    }
  }
  return 1e6;
}

struct weft_stage_costs weft_stage_costs_divide(const struct weft_stage_costs *costs, double by) {
  struct weft_stage_costs divided = *costs;
  assert(by > 0);
  for (const struct weft_cost_field *field = weft_stage_cost_fields; field->name != NULL; field++) {
    double *number = weft_cost_at(&divided, field);
    *number = *number > 0 ? *number / by : *number;
  }
  return divided;
}

/* ---- Shares of ranks ---- */

/* Whether an entry is of a rank's share that several stages divide. */
static bool is_divided(const struct weft_costs *costs, uint32_t rank_count, uint32_t stage_count) {
  return costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK && stage_count > rank_count &&
         rank_count > 0;
}

const struct weft_costs *weft_costs_of_stages(const struct weft_costs *costs, uint32_t rank_count,
                                              uint32_t stage_count, struct weft_costs_view *view) {
  assert(costs != NULL && view != NULL);
  if (!is_divided(costs, rank_count, stage_count)) {
    return costs;
  }
  view->costs = *costs;
  view->entry = weft_stage_costs_divide(&costs->stages[0], (double)stage_count / rank_count);
  view->costs.stages = &view->entry;
  view->costs.of = WEFT_COSTS_OF_STAGE;
  return &view->costs;
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
  while (b != 0) {
    const uint32_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

char *weft_costs_describe(const struct weft_costs *costs, uint32_t rank_count, uint32_t stage_count,
                          char *buffer, size_t size) {
  assert(costs != NULL && buffer != NULL && size >= 4);
  int wanted;
  if (is_divided(costs, rank_count, stage_count)) {
    const uint32_t divisor = common_divisor(rank_count, stage_count);
    wanted =
        snprintf(buffer, size,
                 "times are of a rank's share of the model: a stage takes %" PRIu32 "/%" PRIu32,
                 rank_count / divisor, stage_count / divisor);
  } else if (costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK) {
    wanted = snprintf(buffer, size, "times are of a rank's share of the model, one stage");
  } else {
    wanted =
        snprintf(buffer, size, "times are of %s stage", costs->stage_count == 1 ? "a" : "each");
  }
  weft_mark_cut(buffer, size, wanted);
  return buffer;
}

/* NaN compares false with everything. */
bool weft_cost_is_sane(double number) { return number >= 0 && number <= WEFT_COST_MAX; }

bool weft_rank_factor_is_sane(double number) { return number >= 1e-6 && number <= 1e6; }

bool weft_microbatch_size_is_sane(double number) {
  return number >= 1 && number <= WEFT_MICROBATCHES_MAX && number == floor(number);
}

double weft_hop_transfer(const struct weft_hop_costs *hop, double bytes) {
  return hop->bytes_per_unit > 0 ? (bytes >= 0 ? bytes : hop->bytes) / hop->bytes_per_unit : 0;
}

enum weft_status weft_costs_create(const struct weft_allocator *allocator, uint32_t stage_count,
                                   struct weft_costs **out, struct weft_error *error) {
  WEFT_NEED(out, error);
  if (stage_count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give one entry for all stages, or one per stage",
                     "costs of 0 stages: expected at least one entry");
  }
  if (stage_count > WEFT_STAGES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "give one entry for all stages, or one per stage",
                     "costs of %" PRIu32 " stages; the limit is %" PRIu32, stage_count,
                     WEFT_STAGES_MAX);
  }
  struct weft_costs *costs = weft_array_allocate_zero(allocator, 1, sizeof *costs);
  if (costs == NULL) {
    return weft_fail_memory(error, sizeof *costs);
  }
  costs->allocator = allocator;
  costs->stages = weft_array_allocate(allocator, stage_count, sizeof costs->stages[0]);
  if (costs->stages == NULL) {
    weft_costs_destroy(costs);
    return weft_fail_memory(error, stage_count * sizeof costs->stages[0]);
  }
  costs->stage_count = stage_count;
  for (uint32_t s = 0; s < stage_count; s++) {
    costs->stages[s] = weft_stage_costs_default();
  }
  *out = costs;
  return WEFT_OK;
}

enum weft_status weft_costs_add_parts(struct weft_costs *costs, uint32_t part_count,
                                      struct weft_error *error) {
  WEFT_NEED(costs, error);
  if (part_count == 0 || costs->part_count > 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give all parts of the model at once",
                     "%" PRIu32 " parts for costs that have %" PRIu32, part_count,
                     costs->part_count);
  }
  if (part_count > WEFT_STAGES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "give parts that are larger",
                     "costs of %" PRIu32 " parts; the limit is %" PRIu32, part_count,
                     WEFT_STAGES_MAX);
  }
  costs->parts = weft_array_allocate(costs->allocator, part_count, sizeof costs->parts[0]);
  if (costs->parts == NULL) {
    return weft_fail_memory(error, part_count * sizeof costs->parts[0]);
  }
  costs->part_count = part_count;
  for (uint32_t p = 0; p < part_count; p++) {
    costs->parts[p] = (struct weft_part_costs){
        .activation = -1, .activation_after_i = -1, .parameters = -1, .gradients = -1};
  }
  return WEFT_OK;
}

void weft_costs_destroy(struct weft_costs *costs) {
  if (costs == NULL) {
    return;
  }
  weft_array_free(costs->allocator, costs->parts, costs->part_count, sizeof costs->parts[0]);
  weft_array_free(costs->allocator, costs->rank_factors, costs->rank_count,
                  sizeof costs->rank_factors[0]);
  weft_array_free(costs->allocator, costs->stages, costs->stage_count, sizeof costs->stages[0]);
  weft_array_free(costs->allocator, costs, 1, sizeof *costs);
}

const struct weft_stage_costs *weft_costs_of(const struct weft_costs *costs, uint32_t stage) {
  assert(costs->stage_count == 1 || stage < costs->stage_count);
  return &costs->stages[costs->stage_count == 1 ? 0 : stage];
}

/* ---- Checks ---- */

static bool is_good(const struct weft_cost_field *field, double number) {
  return weft_cost_is_sane(number) || (field->may_be_absent && number < 0 && isfinite(number));
}

/* "stages[3].f is ..." where a field is bad; "hop.bytes is ..." where `index` is NOT_LISTED. */
#define NOT_LISTED UINT32_MAX
static enum weft_status check_numbers(const char *object, uint32_t index,
                                      const struct weft_cost_field *fields, const void *numbers,
                                      struct weft_error *error) {
  char at[16] = "";
  while (fields->name != NULL && is_good(fields, weft_cost_of(numbers, fields))) {
    fields++;
  }
  if (fields->name == NULL) {
    return WEFT_OK;
  }
  if (index != NOT_LISTED) {
    (void)snprintf(at, sizeof at, "[%" PRIu32 "]", index);
  }
  return weft_fail(error, WEFT_ERR_USAGE, HINT_RANGE,
                   "%s%s.%s is %g: expected a number from 0 to %g", object, at, fields->name,
                   weft_cost_of(numbers, fields), WEFT_COST_MAX);
}

enum weft_status weft_costs_check(const struct weft_costs *costs, uint32_t stage_count,
                                  struct weft_error *error) {
  WEFT_NEED(costs, error);
  if (costs->stage_count != 1 && costs->stage_count != stage_count) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "give one entry that serves all stages, or one for each stage",
                     "the costs have %" PRIu32 " entries in stages, the program has %" PRIu32
                     " stage%s: expected 1 or %" PRIu32,
                     costs->stage_count, stage_count, stage_count == 1 ? "" : "s", stage_count);
  }
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    WEFT_TRY(check_numbers("stages", s, weft_stage_cost_fields, &costs->stages[s], error));
  }
  for (uint32_t p = 0; p < costs->part_count; p++) {
    WEFT_TRY(check_numbers("parts", p, weft_part_cost_fields, &costs->parts[p], error));
  }
  WEFT_TRY(check_numbers("all_reduce", NOT_LISTED, weft_all_reduce_cost_fields, &costs->all_reduce,
                         error));
  if (costs->microbatch_size != 0 && !weft_microbatch_size_is_sane(costs->microbatch_size)) {
    return weft_fail(error, WEFT_ERR_USAGE, "leave it 0 for microbatches of one sample",
                     "microbatch_size is %g: expected a whole number from 1 to %u",
                     costs->microbatch_size, (unsigned)WEFT_MICROBATCHES_MAX);
  }
  for (uint32_t r = 0; costs->rank_factors != NULL && r < costs->rank_count; r++) {
    if (!weft_rank_factor_is_sane(costs->rank_factors[r])) {
      return weft_fail(error, WEFT_ERR_USAGE, "1 is as fast as the other costs say",
                       "rank_factors[%" PRIu32 "] is %g: expected a number from 1e-6 to 1e6", r,
                       costs->rank_factors[r]);
    }
  }
  WEFT_TRY(check_numbers("hop", NOT_LISTED, weft_hop_cost_fields, &costs->hop, error));
  const double transfer = weft_hop_transfer(&costs->hop, -1);
  if (!weft_cost_is_sane(transfer)) {
    return weft_fail(error, WEFT_ERR_USAGE, HINT_RANGE,
                     "hop.bytes / hop.bytes_per_unit is %g: expected a number from 0 to %g",
                     transfer, WEFT_COST_MAX);
  }
  return WEFT_OK;
}
