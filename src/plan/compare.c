/* Every named schedule for a shape, and programs of the caller, simulated and ranked. Costs are of a
 * rank's share of the model by default, so that schedules with different v cut the same model into
 * more or fewer stages. */
#include <weft/compare.h>

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/lower.h>
#include <weft/support.h>

#include "ir/action.h"
#include "ir/program.h"
#include "plan/layout/layout.h"
#include "sim/event_waits.h"

WEFT_SCOPED_TYPE(weft_program)
WEFT_SCOPED_TYPE(weft_simulation)

/* ---- Which schedule wins, and why ---- */

/* Equal but for rounding; times are sums of many. */
static int order_of(double a, double b) {
  const double tolerance = 1e-9 * fmax(fabs(a), fabs(b));
  return a < b - tolerance ? -1 : a > b + tolerance ? 1 : 0;
}

static int order_of_entries(const struct weft_comparison_entry *a,
                            const struct weft_comparison_entry *b) {
  assert(a != NULL && b != NULL);
  if (a->fits != b->fits) {
    return a->fits ? -1 : 1;
  }
  const int makespan = order_of(a->makespan, b->makespan);
  if (makespan != 0) {
    return makespan;
  }
  const int memory = order_of(a->peak_memory, b->peak_memory);
  return memory != 0 ? memory
                     : order_of(a->stages_per_rank, b->stages_per_rank); /* fewer messages */
}

/* ---- The sentence ---- */

static void add_amount(struct weft_text *text, double amount) {
  char buffer[WEFT_AMOUNT_SIZE];
  weft_text_add(text, weft_amount(buffer, sizeof buffer, amount));
}

/* Its stages per rank too, where the schedule takes others. */
static void add_entry(struct weft_text *text, const struct weft_comparison_entry *entry) {
  weft_text_add_escaped(text, entry->name, strlen(entry->name));
  if (entry->info != NULL && entry->info->stages_per_rank_min < entry->info->stages_per_rank_max) {
    weft_text_add(text, " with v = ");
    add_amount(text, entry->stages_per_rank);
  }
}

/* "3 against 4" */
static void add_numbers(struct weft_text *text, double winner, double other) {
  add_amount(text, winner);
  weft_text_add(text, " against ");
  add_amount(text, other);
}

/* The gain is the sum of what a rank saves in work and in each kind of idling; the largest of these
 * is the reason. */
static void add_gain(struct weft_text *text, const struct weft_comparison_entry *winner,
                     const struct weft_comparison_entry *other) {
  unsigned best = 0;
  double saved = -INFINITY;
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    const double difference = other->idle_by_cause[cause] - winner->idle_by_cause[cause];
    if (difference > saved) {
      saved = difference;
      best = cause;
    }
  }
  if (other->busy - winner->busy > saved) {
    weft_text_add(text, ", because a rank has less to compute (");
    add_numbers(text, winner->busy, other->busy);
  } else {
    weft_text_addf(text, ", because a rank idles less %s (", weft_idle_cause_words(best));
    add_numbers(text, winner->idle_by_cause[best], other->idle_by_cause[best]);
  }
  weft_text_add(text, " on average)");
}

static void add_memory(struct weft_text *text, const struct weft_comparison_entry *winner,
                       const struct weft_comparison_entry *other) {
  const int order = order_of(winner->peak_memory, other->peak_memory);
  if (order == 0) {
    weft_text_add(text, "; both need the same memory");
    return;
  }
  weft_text_addf(text, "; it needs %s memory, ", order < 0 ? "less" : "more");
  add_numbers(text, winner->peak_memory, other->peak_memory);
}

/* The two are equally fast. */
static void add_tie(struct weft_text *text, const struct weft_comparison_entry *winner,
                    const struct weft_comparison_entry *other) {
  weft_text_add(text, " wins: as fast as ");
  add_entry(text, other);
  if (order_of(winner->peak_memory, other->peak_memory) != 0) {
    weft_text_add(text, ", with less memory, ");
    add_numbers(text, winner->peak_memory, other->peak_memory);
  } else if (order_of(winner->stages_per_rank, other->stages_per_rank) != 0) {
    weft_text_add(text, " in the same memory, with fewer stages per rank and so fewer messages");
  } else {
    weft_text_add(text, " in the same memory; the order between them means nothing");
  }
}

static void add_none(struct weft_text *text, const struct weft_comparison *comparison,
                     double memory_limit) {
  const struct weft_comparison_entry *least = &comparison->entries[0];
  for (uint32_t k = 1; k < comparison->entry_count; k++) {
    if (comparison->entries[k].peak_memory < least->peak_memory) {
      least = &comparison->entries[k];
    }
  }
  weft_text_add(text, "no schedule fits into ");
  add_amount(text, memory_limit);
  weft_text_add(text, ": the least, ");
  add_entry(text, least);
  weft_text_add(text, ", needs ");
  add_amount(text, least->peak_memory);
}

static void explain_first(struct weft_text *text, const struct weft_comparison *comparison,
                          double memory_limit) {
  assert(comparison->entry_count > 0 && comparison->fitting <= comparison->entry_count);
  const struct weft_comparison_entry *winner = &comparison->entries[0], *other = winner + 1;
  if (comparison->fitting == 0) {
    add_none(text, comparison, memory_limit);
    return;
  }
  add_entry(text, winner);
  if (comparison->fitting == 1) {
    weft_text_add(text, comparison->entry_count > 1 ? " wins: the others are over the memory limit"
                                                    : " wins: it is the only one for this shape");
    return;
  }
  if (order_of(winner->makespan, other->makespan) == 0) {
    add_tie(text, winner, other);
    return;
  }
  weft_text_add(text, " wins: ");
  add_numbers(text, winner->makespan, other->makespan);
  weft_text_add(text, " of ");
  add_entry(text, other);
  add_gain(text, winner, other);
  add_memory(text, winner, other);
}

/* ---- Entries ---- */

/* The comparison and the arena that owns its arrays. */
struct owned_comparison {
  struct weft_comparison comparison;
  struct weft_arena arena;
};

struct comparing {
  const struct weft_allocator *allocator;
  const struct weft_compare_request *request;
  struct weft_comparison *comparison;
  struct weft_arena *arena;
};

struct weft_compare_request weft_compare_request_default(void) {
  return (struct weft_compare_request){.channel = WEFT_CHANNEL_EDGE, .memory_limit = INFINITY};
}

/* ---- The shape ---- */

struct name {
  char text[200];
};

static struct name name_of(const struct weft_compare_request *request, uint32_t index) {
  struct name name;
  (void)snprintf(name.text, sizeof name.text, "program %" PRIu32, index);
  if (request->names != NULL) {
    const char *given = request->names[index];
    (void)weft_escape(name.text, sizeof name.text, given, strlen(given));
  }
  return name;
}

/* NULL: chains. */
static const struct weft_graph *graph_of(const struct weft_compare_request *request) {
  if (request->graph != NULL || request->program_count == 0 ||
      weft_graph_is_chain(request->programs[0]->graph)) {
    return request->graph;
  }
  return request->programs[0]->graph;
}

/* Another number of ranks or microbatches, or another graph, is other work, and a forward pass is
 * less. */
static enum weft_status check_program(const struct weft_compare_request *request, uint32_t index,
                                      const struct weft_shape *shape, struct weft_error *error) {
  const struct weft_program *program = request->programs[index];
  const struct name name = name_of(request, index), first = name_of(request, 0);
  const uint32_t v = request->stages_per_rank;
  if (program->rank_count != shape->ranks || program->microbatch_count != shape->microbatches) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     index == 0
                         ? "leave the ranks and microbatches out: the program has them"
                         : "schedules are comparable when they do the same work on as many ranks",
                     "%s has %" PRIu32 " ranks and %" PRIu32 " microbatches, not %" PRIu32
                     " and %" PRIu32 " as %s",
                     name.text, program->rank_count, program->microbatch_count, shape->ranks,
                     shape->microbatches, index == 0 ? "asked for" : first.text);
  }
  if (v != 0 && program->stage_count != (uint64_t)shape->ranks * v) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "leave the stages per rank out: then schedules with any number are compared",
                     "%s has %" PRIu32 " stages, which is not %" PRIu32 " ranks with %" PRIu32
                     " stages each",
                     name.text, program->stage_count, shape->ranks, v);
  }
  if (!weft_graph_equal(program->graph, graph_of(request))) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "schedules are comparable when their stages form the same graph",
                     "%s has other edges between stages than %s", name.text,
                     index == 0 ? "the graph" : first.text);
  }
  return weft_program_has(program, WEFT_OP_BIT(WEFT_OP_B) | WEFT_OP_BIT(WEFT_OP_I))
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_USAGE, "a simulation predicts its time",
                         "%s has no backward, and schedules that train are compared", name.text);
}

struct v_text {
  char text[16];
};

/* The number of stages per rank, for messages. */
static struct v_text v_text(const struct weft_shape *shape) {
  struct v_text v = {"v"};
  if (shape->stages_per_rank != 0) {
    (void)snprintf(v.text, sizeof v.text, "%" PRIu32, shape->stages_per_rank);
  }
  return v;
}

/* The stages of a graph are as many as they are: the shape follows. With programs alone v may stay
 * 0, where ranks have different numbers of stages. */
static enum weft_status fit_graph(const struct weft_compare_request *request,
                                  struct weft_shape *shape, struct weft_error *error) {
  const uint32_t stages = weft_graph_stage_count(graph_of(request)), v = shape->stages_per_rank;
  if (stages == 0) {
    return WEFT_OK;
  }
  if (shape->ranks == 0) {
    shape->ranks = v > 1 && stages % v == 0 ? stages / v : stages;
  }
  if (v == 0 && stages % shape->ranks == 0) {
    shape->stages_per_rank = stages / shape->ranks;
  } else if (request->program_count == 0 && stages != (uint64_t)shape->ranks * v) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "leave the ranks and the stages per rank out: then there are as many ranks as "
                     "stages; a plan takes any number of ranks",
                     "the graph has %" PRIu32 " stages, which is not %" PRIu32
                     " ranks with %s stages each",
                     stages, shape->ranks, v_text(shape).text);
  }
  return WEFT_OK;
}

/* Named schedules have as many stages on each rank. */
static bool is_uneven(const struct weft_shape *shape, const struct weft_graph *graph) {
  return weft_graph_stage_count(graph) > 0 && shape->stages_per_rank == 0;
}

/* Costs of each stage fit only the v that makes as many stages. */
static enum weft_status fit_costs(const struct weft_compare_request *request,
                                  struct weft_shape *shape, struct weft_error *error) {
  const uint32_t entries = request->costs->stage_count;
  if (entries == 1 || is_uneven(shape, graph_of(request))) {
    return WEFT_OK;
  }
  if (entries % shape->ranks != 0 ||
      (shape->stages_per_rank != 0 && entries != (uint64_t)shape->ranks * shape->stages_per_rank)) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "give one entry that serves all stages, or one for each stage",
                     "the costs have %" PRIu32 " entries in stages, which is not %" PRIu32
                     " ranks with %s stages each",
                     entries, shape->ranks, v_text(shape).text);
  }
  shape->stages_per_rank = entries / shape->ranks;
  return WEFT_OK;
}

enum weft_status weft_compare_shape(const struct weft_compare_request *request,
                                    struct weft_shape *out, struct weft_error *error) {
  WEFT_NEED(request, error);
  WEFT_NEED(request->costs, error);
  WEFT_NEED(out, error);
  struct weft_shape shape = {.ranks = request->ranks,
                             .stages_per_rank = request->stages_per_rank,
                             .microbatches = request->microbatches};
  if (request->program_count > 0) {
    WEFT_NEED(request->programs, error);
    const struct weft_program *first = request->programs[0];
    shape.ranks = shape.ranks == 0 ? first->rank_count : shape.ranks;
    shape.microbatches = shape.microbatches == 0 ? first->microbatch_count : shape.microbatches;
  }
  for (uint32_t k = 0; k < request->program_count; k++) {
    WEFT_TRY(check_program(request, k, &shape, error));
  }
  WEFT_TRY(fit_graph(request, &shape, error));
  if (shape.ranks == 0 || shape.microbatches == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give both, or a program that has them",
                     "a comparison needs the number of %s",
                     shape.ranks == 0 ? "ranks" : "microbatches");
  }
  WEFT_TRY(fit_costs(request, &shape, error));
  *out = shape;
  return WEFT_OK;
}

/* ---- One schedule or program ---- */

static double stages_per_rank(const struct weft_program *program) {
  return (double)program->stage_count / program->rank_count;
}

/* Puts an entry where it belongs, behind those that are as good. */
static void insert(struct weft_comparison *comparison, struct weft_comparison_entry entry) {
  uint32_t at = comparison->entry_count++;
  for (; at > 0 && order_of_entries(&entry, &comparison->entries[at - 1]) < 0; at--) {
    comparison->entries[at] = comparison->entries[at - 1];
  }
  comparison->entries[at] = entry;
  comparison->fitting += entry.fits ? 1 : 0;
}

static void record(struct comparing *comparing, const struct weft_simulation *simulation,
                   struct weft_comparison_entry entry) {
  const uint32_t p = simulation->program->rank_count;
  entry.makespan = simulation->makespan;
  entry.span = simulation->span;
  entry.bubble_ratio = simulation->bubble_ratio;
  entry.peak_activation = simulation->peak_activation;
  for (uint32_t rank = 0; rank < p; rank++) {
    const struct weft_rank_times *times = &simulation->ranks[rank];
    entry.busy += times->busy / p;
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      entry.idle_by_cause[cause] += times->idle_by_cause[cause] / p;
    }
    entry.peak_memory = fmax(entry.peak_memory, times->peak_memory);
  }
  entry.fits = weft_memory_fits(entry.peak_memory, comparing->request->memory_limit);
  insert(comparing->comparison, entry);
}

static enum weft_status run_simulation(struct comparing *comparing,
                                       const struct weft_program *program,
                                       struct weft_comparison_entry entry,
                                       struct weft_error *error) {
  const struct weft_compare_request *request = comparing->request;
  const struct weft_costs *costs = request->costs;
  WEFT_SCOPED(weft_program) lowered = NULL;
  WEFT_SCOPED(weft_simulation) simulation = NULL;
  struct weft_sim_options options = weft_sim_options_default();
  options.channel = request->channel;
  options.rank_factors =
      request->rank_factors != NULL ? request->rank_factors : costs->rank_factors;
  options.no_events = true;
  if (request->channel != WEFT_CHANNEL_EDGE && program->level == WEFT_LEVEL_COMPUTE) {
    WEFT_TRY(weft_lower_transfers(comparing->allocator, program, &lowered, error));
    program = lowered;
  }
  WEFT_TRY(weft_simulate(comparing->allocator, program, costs, &options, &simulation, error));
  entry.stages_per_rank = stages_per_rank(program);
  record(comparing, simulation, entry);
  return WEFT_OK;
}

/* The name goes before the message. */
static enum weft_status simulate(struct comparing *comparing, const struct weft_program *program,
                                 struct weft_comparison_entry entry, struct weft_error *error) {
  struct weft_error found;
  const enum weft_status status = run_simulation(comparing, program, entry, &found);
  if (status == WEFT_OK) {
    return WEFT_OK;
  }
  char name[200];
  (void)weft_escape(name, sizeof name, entry.name, strlen(entry.name));
  return weft_fail(error, status, found.hint, "%s: %s", name, found.message);
}

static enum weft_status leave_out(struct comparing *comparing,
                                  const struct weft_schedule_info *info, uint32_t v,
                                  const char *why, struct weft_error *error) {
  struct weft_comparison *comparison = comparing->comparison;
  const char *copy = weft_arena_copy_text(comparing->arena, why, strlen(why));
  comparison->omissions[comparison->omission_count++] =
      (struct weft_comparison_omission){.info = info, .stages_per_rank = v, .why = copy};
  return weft_arena_status(comparing->arena, error);
}

static enum weft_status try_schedule(struct comparing *comparing,
                                     const struct weft_schedule_info *info, uint32_t v,
                                     struct weft_error *error) {
  struct weft_shape shape = comparing->comparison->shape;
  WEFT_SCOPED(weft_program) table = NULL;
  struct weft_error refused;
  shape.stages_per_rank = v;
  shape.graph = comparing->comparison->graph;
  const enum weft_status made =
      weft_generate(comparing->allocator, info->name, &shape, &table, &refused);
  if (made == WEFT_ERR_USAGE || made == WEFT_ERR_LIMIT) {
    return leave_out(comparing, info, v, refused.message, error);
  }
  if (made != WEFT_OK) {
    return weft_fail(error, made, refused.hint, "%s", refused.message);
  }
  const struct weft_comparison_entry entry = {
      .name = info->name, .info = info, .table = comparing->request->keep_tables ? table : NULL};
  WEFT_TRY(simulate(comparing, table, entry, error));
  table = comparing->request->keep_tables ? NULL : table;
  return WEFT_OK;
}

/* ---- All of them ---- */

/* Whether v is usual, or one of the first `end` programs has it. */
static bool is_tried(const struct weft_compare_request *request, uint32_t v, uint32_t end) {
  bool found = false;
  for (size_t k = 0; k < WEFT_USUAL_STAGES; k++) {
    found = found || v == weft_usual_stages_per_rank[k];
  }
  for (uint32_t k = 0; k < end; k++) {
    found = found || v == stages_per_rank(request->programs[k]);
  }
  return found;
}

/* Not where the recipe has another v in any case. */
static enum weft_status try_open(struct comparing *comparing, const struct weft_schedule_info *info,
                                 uint32_t v, struct weft_error *error) {
  return v < info->stages_per_rank_min || v > info->stages_per_rank_max
             ? WEFT_OK
             : try_schedule(comparing, info, v, error);
}

static enum weft_status try_values(struct comparing *comparing,
                                   const struct weft_schedule_info *info,
                                   struct weft_error *error) {
  const struct weft_compare_request *request = comparing->request;
  const uint32_t fixed = comparing->comparison->shape.stages_per_rank;
  if (fixed != 0) {
    return try_schedule(comparing, info, fixed, error);
  }
  for (size_t k = 0; k < WEFT_USUAL_STAGES; k++) {
    WEFT_TRY(try_open(comparing, info, weft_usual_stages_per_rank[k], error));
  }
  for (uint32_t k = 0; k < request->program_count; k++) {
    const struct weft_program *program = request->programs[k];
    const uint32_t v = program->stage_count / program->rank_count;
    if (program->stage_count % program->rank_count == 0 && !is_tried(request, v, k)) {
      WEFT_TRY(try_open(comparing, info, v, error));
    }
  }
  return WEFT_OK;
}

static enum weft_status try_all(struct comparing *comparing, struct weft_error *error) {
  const struct weft_compare_request *request = comparing->request;
  struct weft_comparison *comparison = comparing->comparison;
  for (uint32_t k = 0; k < request->program_count; k++) {
    const struct name known = name_of(request, k);
    const char *name = request->names != NULL ? request->names[k] : known.text;
    const char *copy = weft_arena_copy_text(comparing->arena, name, strlen(name));
    WEFT_TRY(weft_arena_status(comparing->arena, error));
    WEFT_TRY(simulate(comparing, request->programs[k],
                      (struct weft_comparison_entry){.name = copy, .program = k}, error));
  }
  for (size_t k = 0; k < weft_schedule_count() && !is_uneven(&comparison->shape, comparison->graph);
       k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (info->trains && !info->fixed) {
      WEFT_TRY(try_values(comparing, info, error));
    }
  }
  if (comparison->entry_count == 0) {
    const struct weft_comparison_omission *first = &comparison->omissions[0];
    assert(comparison->omission_count > 0);
    return weft_fail(error, WEFT_ERR_USAGE,
                     "choose another shape; the list of schedules has their limits",
                     "no schedule has this shape; %s: %s", first->info->name, first->why);
  }
  return WEFT_OK;
}

static enum weft_status explain(struct comparing *comparing, struct weft_error *error) {
  WEFT_SCOPED_TEXT text = {.allocator = comparing->allocator};
  explain_first(&text, comparing->comparison, comparing->request->memory_limit);
  WEFT_TRY(weft_text_status(&text, error));
  comparing->comparison->why = weft_arena_copy_text(comparing->arena, text.data, text.size);
  return weft_arena_status(comparing->arena, error);
}

static enum weft_status check_factors(const struct weft_compare_request *request, uint32_t ranks,
                                      struct weft_error *error) {
  const struct weft_costs *costs = request->costs;
  return request->rank_factors != NULL || costs->rank_factors == NULL || costs->rank_count == ranks
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_USAGE, "give one factor for each rank",
                         "the costs have rank_factors of %" PRIu32 " ranks, but there are %" PRIu32
                         " ranks",
                         costs->rank_count, ranks);
}

static enum weft_status compare(struct comparing *comparing, struct weft_error *error) {
  const struct weft_compare_request *request = comparing->request;
  struct weft_comparison *comparison = comparing->comparison;
  WEFT_TRY(weft_compare_shape(request, &comparison->shape, error));
  WEFT_TRY(check_factors(request, comparison->shape.ranks, error));
  comparison->graph = weft_graph_hold(graph_of(request));
  const size_t values = WEFT_USUAL_STAGES + request->program_count;
  const size_t most = request->program_count + weft_schedule_count() * values;
  comparison->entries = weft_arena_allocate(comparing->arena, most, sizeof *comparison->entries);
  comparison->omissions =
      weft_arena_allocate(comparing->arena, most, sizeof *comparison->omissions);
  WEFT_TRY(weft_arena_status(comparing->arena, error));
  WEFT_TRY(try_all(comparing, error));
  return explain(comparing, error);
}

enum weft_status weft_compare(const struct weft_allocator *allocator,
                              const struct weft_compare_request *request,
                              struct weft_comparison **out, struct weft_error *error) {
  WEFT_NEED(request, error);
  WEFT_NEED(out, error);
  struct owned_comparison *owned = weft_array_allocate_zero(allocator, 1, sizeof *owned);
  if (owned == NULL) {
    return weft_fail_memory(error, sizeof *owned);
  }
  owned->arena.allocator = allocator;
  struct comparing comparing = {.allocator = allocator,
                                .request = request,
                                .comparison = &owned->comparison,
                                .arena = &owned->arena};
  const enum weft_status status = compare(&comparing, error);
  if (status != WEFT_OK) {
    weft_comparison_destroy(&owned->comparison);
    return status;
  }
  *out = &owned->comparison;
  return WEFT_OK;
}

void weft_comparison_destroy(struct weft_comparison *comparison) {
  if (comparison == NULL) {
    return;
  }
  struct owned_comparison *owned = (struct owned_comparison *)comparison; /* its first member */
  struct weft_arena arena = owned->arena;
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    weft_program_destroy(comparison->entries[k].table);
  }
  weft_graph_destroy(comparison->graph);
  weft_array_free(arena.allocator, owned, 1, sizeof *owned);
  weft_arena_finish(&arena);
}
