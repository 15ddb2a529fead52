/* Requests to the planner. Stages stay on their ranks, with the costs that were measured; memory
 * is what the trainer really allocates. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <weft/search.h>
#include <weft/support.h>

#include "trainer/train/rank.h"

WEFT_SCOPED_TYPE(weft_costs)
WEFT_SCOPED_TYPE(weft_program)
WEFT_SCOPED_TYPE(weft_search_answer)

/* Effort of the search for the first schedule; and of those from measured times, which may take
 * as long as some steps. */
#define EFFORT_FIRST 0.1
#define EFFORT_SPLIT 0.3
#define EFFORT_MOST (1.0 / 3)
#define EFFORT_STEPS 10

/* Attempts to stay below the memory limit; each requests less. */
enum { ATTEMPTS = 4 };

/* ---- Memory ---- */

/* MiB that a stage saves of a microbatch. */
static double saved_mib(const struct weft_gpt_trainer *trainer, uint32_t s) {
  const uint32_t *first = trainer->first_layers;
  return (double)weft_gpt_saved_bytes(trainer->compute_ops, &trainer->config,
                                      trainer->sequences_max, first[s], first[s + 1] - first[s]) /
         1048576.0;
}

/* The first stage of the row that saves as much: they share memory. */
static uint32_t find_alike(const struct weft_gpt_trainer *trainer, uint32_t row, uint32_t s) {
  const uint32_t *own = &trainer->stages.list[trainer->stages.begin[row]];
  const double saved = saved_mib(trainer, s);
  while (*own != s && saved_mib(trainer, *own) != saved) {
    own++;
  }
  return *own;
}

struct in_flight {
  uint32_t now, most;
};

static void rise(struct in_flight *in_flight) {
  in_flight->now++;
  in_flight->most = in_flight->now > in_flight->most ? in_flight->now : in_flight->most;
}

/* Memory stays allocated: for what stages save, as much as those of a rank with the same size ever
 * need at once; for messages, as much as each of them ever needs. */
static double row_need(const struct weft_gpt_trainer *trainer, const struct weft_program *program,
                       uint32_t row, const struct weft_costs *costs, struct in_flight *each,
                       struct in_flight *alike) {
  double need = 0;
  for (uint64_t k = program->row_begin[row]; k < program->row_begin[row + 1]; k++) {
    const struct weft_action *action = &program->actions[k];
    if (action->op == WEFT_OP_F) {
      rise(&each[action->stage]);
      rise(&alike[find_alike(trainer, row, action->stage)]);
    } else if (action->op == WEFT_OP_B || action->op == WEFT_OP_W) {
      each[action->stage].now--;
      alike[find_alike(trainer, row, action->stage)].now--;
    }
  }
  for (uint32_t k = trainer->stages.begin[row]; k < trainer->stages.begin[row + 1]; k++) {
    const uint32_t s = trainer->stages.list[k];
    const struct weft_stage_costs *stage = weft_costs_of(costs, s);
    const double saved = saved_mib(trainer, s);
    need += alike[s].most * saved + stage->parameters + stage->gradients +
            each[s].most * (fmax(stage->activation, stage->activation_after_i) - saved);
  }
  return need;
}

static double memory_need(const struct weft_gpt_trainer *trainer,
                          const struct weft_program *program, const struct weft_costs *costs) {
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  struct in_flight *each = weft_arena_allocate(&arena, program->stage_count, sizeof *each);
  struct in_flight *alike = weft_arena_allocate(&arena, program->stage_count, sizeof *alike);
  double need = 0;
  if (each == NULL || alike == NULL) {
    return NAN;
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    need = fmax(need, row_need(trainer, program, r, costs, each, alike));
  }
  return need;
}

/* ---- The search ---- */

/* Messages progress meanwhile, and a failure on another rank ends the search. */
static bool stop(void *context) {
  struct weft_gpt_rank *rank = context;
  struct weft_error error;
  return rank->transport->ops->progress(rank->transport, &error) < 0;
}

static double choose_effort(const struct weft_gpt_trainer *trainer,
                            const struct weft_gpt_rank *rank) {
  const double given = trainer->options.plan_effort;
  const double steps =
      rank != NULL ? EFFORT_STEPS * 1e-9 * (double)rank->stats.pipeline_ns : EFFORT_FIRST;
  return given > 0 ? given : fmin(steps, EFFORT_MOST);
}

/* Without a rank, every process searches by itself and must find the same: one thread, no clock. */
static struct weft_search_request make_request(const struct weft_gpt_trainer *trainer,
                                               struct weft_gpt_rank *rank,
                                               const struct weft_costs *costs) {
  const struct weft_gpt_trainer_options *options = &trainer->options;
  struct weft_search_request request = weft_search_request_default();
  request.ranks = options->ranks;
  request.microbatches = options->training.microbatches;
  request.stages_per_rank = trainer->stage_count / options->ranks;
  request.any_placement = false;
  request.placement = request.stages_per_rank > 1 ? trainer->placement : WEFT_PLACEMENT_LOOP;
  request.costs = costs;
  request.graph = trainer->graph;
  request.rank_of = trainer->graph != NULL ? trainer->rank_of : NULL;
  request.keep_partition = true;
  request.uniform_backward = true; /* else sums of gradients would depend on the schedule */
  request.effort = choose_effort(trainer, rank);
  request.threads = rank != NULL ? 0 : 1;
  request.time_limit = rank != NULL && trainer->stall_limit > 0
                           ? (double)trainer->stall_limit * 1e-9 / (double)(2 * ATTEMPTS)
                           : 0; /* the other ranks wait */
  request.stop = rank != NULL ? stop : NULL;
  request.context = rank;
  return request;
}

static enum weft_status fail_limit(double limit, double need, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_INVALID, "give more memory, more ranks, or smaller microbatches",
                   "no schedule was found for %.9g MiB of memory on a rank: the best needs "
                   "%.9g MiB",
                   limit, need);
}

enum weft_status weft_gpt_trainer_search(const struct weft_gpt_trainer *trainer,
                                         struct weft_gpt_rank *rank, const struct weft_costs *costs,
                                         double limit, struct weft_gpt_planned *out,
                                         struct weft_error *error) {
  assert(costs != NULL && out != NULL);
  assert(costs != NULL && limit > 0);
  struct weft_search_request request = make_request(trainer, rank, costs);
  double need = 0;
  request.memory_limit = limit;
  for (uint32_t n = 0; n < ATTEMPTS; n++) {
    WEFT_SCOPED(weft_search_answer) answer = NULL;
    const enum weft_status status = weft_search(trainer->allocator, &request, &answer, error);
    if (status < 0) {
      return n > 0 && status == WEFT_ERR_INVALID ? fail_limit(limit, need, error) : status;
    }
    need = memory_need(trainer, answer->table, costs);
    if (need <= limit) {
      *out = (struct weft_gpt_planned){
          .table = answer->table, .schedule = answer->schedule, .memory = need};
      answer->table = NULL;
      return WEFT_OK;
    }
    request.memory_limit -= need - limit;
  }
  return fail_limit(limit, need, error);
}

/* ---- The split ---- */

/* The time of the best schedule for the present split, or for the best one. INFINITY: none fits. */
static enum weft_status best_split(const struct weft_gpt_trainer *trainer,
                                   const struct weft_costs *costs, bool keep, double *makespan,
                                   uint32_t *first_layers, struct weft_error *error) {
  struct weft_search_request request = make_request(trainer, NULL, costs);
  struct weft_search_answer *answer;
  const double limit = trainer->options.memory_limit;
  request.keep_partition = keep;
  request.memory_limit = limit > 0 ? limit : INFINITY;
  request.effort = EFFORT_SPLIT;
  const enum weft_status status = weft_search(trainer->allocator, &request, &answer, error);
  if (status < 0) {
    *makespan = INFINITY;
    return status == WEFT_ERR_INVALID ? WEFT_OK : status;
  }
  *makespan = answer->makespan;
  for (uint32_t s = 0; !keep && s < trainer->stage_count; s++) {
    first_layers[s + 1] = first_layers[s] + answer->stage_parts[s];
  }
  weft_search_answer_destroy(answer);
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_plan_split(const struct weft_gpt_trainer *trainer,
                                             uint32_t *first_layers, double *gain,
                                             struct weft_error *error) {
  assert(trainer != NULL && first_layers != NULL && gain != NULL);
  const uint32_t *now = trainer->first_layers;
  struct weft_costs *costs;
  double present = 0, planned = 0;
  if (trainer->config.skips || weft_gpt_head_count(&trainer->config) > 1) {
    *gain = 0;
    memcpy(first_layers, now, (trainer->stage_count + 1u) * sizeof *first_layers);
    return WEFT_OK;
  }
  WEFT_TRY(weft_gpt_profile_layer_costs(&trainer->ranks[0], &costs, error));
  first_layers[0] = 0;
  enum weft_status status = best_split(trainer, costs, true, &present, NULL, error);
  if (status == WEFT_OK) {
    status = best_split(trainer, costs, false, &planned, first_layers, error);
  }
  weft_costs_destroy(costs);
  WEFT_TRY(status);
  *gain = planned < INFINITY ? (present < INFINITY ? 1 - planned / present : 1) : 0;
  if (!(*gain >= WEFT_GPT_SPLIT_GAIN_MIN)) {
    *gain = 0;
    memcpy(first_layers, now, (trainer->stage_count + 1u) * sizeof *first_layers);
  }
  return WEFT_OK;
}

/* ---- The first schedule ---- */

/* One microbatch after the other is always a schedule: the least that a rank needs. */
static double least_need(const struct weft_gpt_trainer *trainer, const struct weft_costs *costs,
                         uint32_t *row) {
  const struct weft_gpt_ownership *stages = &trainer->stages;
  double least = 0;
  for (uint32_t r = 0; r < trainer->options.ranks; r++) {
    double need = 0;
    for (uint32_t k = stages->begin[r]; k < stages->begin[r + 1]; k++) {
      const struct weft_stage_costs *stage = weft_costs_of(costs, stages->list[k]);
      need +=
          fmax(stage->activation, stage->activation_after_i) + stage->parameters + stage->gradients;
    }
    *row = need > least ? r : *row;
    least = fmax(least, need);
  }
  return least;
}

static enum weft_status check_limit(const struct weft_gpt_trainer *trainer, double least,
                                    uint32_t row, struct weft_error *error) {
  return trainer->options.memory_limit < least
             ? weft_fail(error, WEFT_ERR_INVALID,
                         "give more memory, more ranks, or smaller microbatches",
                         "no schedule fits into %.9g MiB of memory on a rank: rank %" PRIu32
                         " needs %.9g MiB for one microbatch at a time, with weights, "
                         "gradients and moments",
                         trainer->options.memory_limit, row, least)
             : WEFT_OK;
}

/* A rank's actions for a microbatch: its stages forward, and back again. */
static struct weft_action *add_round(const struct weft_gpt_ownership *stages, uint32_t row,
                                     uint32_t microbatch, struct weft_action *at) {
  for (uint32_t k = stages->begin[row]; k < stages->begin[row + 1]; k++) {
    *at++ = (struct weft_action){
        .op = WEFT_OP_F, .stage = (uint16_t)stages->list[k], .microbatch = microbatch};
  }
  for (uint32_t k = stages->begin[row + 1]; k > stages->begin[row]; k--) {
    *at++ = (struct weft_action){
        .op = WEFT_OP_B, .stage = (uint16_t)stages->list[k - 1], .microbatch = microbatch};
  }
  return at;
}

static enum weft_status make_serial(struct weft_gpt_trainer *trainer, double need,
                                    struct weft_error *error) {
  const struct weft_gpt_ownership *stages = &trainer->stages;
  const uint32_t rows = trainer->options.ranks, m = trainer->options.training.microbatches;
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  uint64_t *sizes = weft_arena_allocate(&arena, rows, sizeof *sizes);
  struct weft_action *actions =
      weft_arena_allocate(&arena, 2 * (size_t)trainer->stage_count * m, sizeof *actions);
  WEFT_TRY(weft_arena_status(&arena, error));
  struct weft_action *at = actions;
  for (uint32_t r = 0; r < rows; r++) {
    for (uint32_t mb = 0; mb < m; mb++) {
      at = add_round(stages, r, mb, at);
    }
    sizes[r] = 2 * (uint64_t)(stages->begin[r + 1] - stages->begin[r]) * m;
  }
  trainer->first.schedule = "serial";
  trainer->first.memory = need;
  WEFT_TRY(
      weft_program_create(trainer->allocator, rows, sizes, actions, &trainer->first.table, error));
  return weft_program_set_graph(trainer->first.table, trainer->graph, error);
}

enum weft_status weft_gpt_trainer_fit(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const double limit = trainer->options.memory_limit;
  WEFT_SCOPED(weft_costs) costs = NULL;
  WEFT_SCOPED(weft_program) program = NULL;
  uint32_t row = 0;
  if (!trainer->options.tunes || limit <= 0) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_gpt_trainer_estimate_costs(trainer, &costs, error));
  const double least = least_need(trainer, costs, &row);
  WEFT_TRY(check_limit(trainer, least, row, error));
  WEFT_TRY(weft_gpt_trainer_source(trainer, trainer->options.training.microbatches, true, &program,
                                   error));
  if (memory_need(trainer, program, costs) <= limit) {
    return WEFT_OK;
  }
  const enum weft_status status =
      weft_gpt_trainer_search(trainer, NULL, costs, limit, &trainer->first, error);
  return status == WEFT_ERR_INVALID ? make_serial(trainer, least, error) : status;
}
