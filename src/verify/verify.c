/* weft_verify(): infers the program's shape, runs the checks from the
 * most basic to the least, and makes the report. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "ir/pairs.h"
#include "ir/program.h"
#include "verify/verify_context.h"

struct weft_verify_options weft_verify_options_default(void) {
  return (struct weft_verify_options){.model = {.capacity = 0, .channel = WEFT_CHANNEL_EDGE},
                                      .findings_max = 100};
}

struct weft_location weft_location_of(const struct weft_program *program, uint32_t rank,
                                      uint64_t record) {
  return (struct weft_location){.rank = rank,
                                .step = weft_program_step_at(program, rank, record),
                                .action = &program->actions[record]};
}

/* ---- The shape ----
 *
 * How many stages and microbatches a table is about is not written in it. The
 * largest number would do for a right table; in a wrong one a single stray
 * number would then make everything else look missing. So a number counts only
 * if it occurs about as often as the others: in a right table every microbatch
 * occurs equally often, and every stage nearly so. */

static uint64_t count_up_to(const uint32_t *counts, uint64_t size, uint32_t limit) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < size; i++) {
    found += counts[i] > 0 && counts[i] <= limit;
  }
  return found;
}

/* The smallest value that more than half of the non-zero entries do not exceed, by
 * halving the range: no copy to sort. */
static uint32_t median(const uint32_t *counts, uint64_t size) {
  uint32_t low = 0, high = 0;
  for (uint64_t i = 0; i < size; i++) {
    high = counts[i] > high ? counts[i] : high;
  }
  const uint64_t half = count_up_to(counts, size, high) / 2 + 1;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (count_up_to(counts, size, middle) >= half) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/* 1 + the largest number that occurs more than half as often as is typical, or
 * just half as often if there are enough other numbers to fill up to it: one of
 * a microbatch's two actions may be missing. At least 1. */
static uint32_t credible_count(const uint32_t *counts, uint64_t size) {
  const uint32_t usual = median(counts, size);
  uint64_t different = 0;
  for (uint64_t i = 0; i < size; i++) {
    different += counts[i] > 0;
  }
  for (uint64_t i = size; i-- > 0;) {
    const uint64_t twice = 2 * (uint64_t)counts[i];
    if (twice > usual || (twice > 0 && twice == usual && i < different)) {
      return (uint32_t)(i + 1);
    }
  }
  return 1;
}

/* How often each stage and each microbatch is computed on. Numbers from action_count on cannot
 * belong to a complete table and need no counter. */
struct compute_counts {
  uint64_t actions; /* F, B, I and W */
  uint32_t *of_stage;
  uint64_t stages; /* length of of_stage, and so on */
  uint32_t *of_microbatch;
  uint64_t microbatches;
};

static enum weft_status allocate_counts(const struct weft_verify_context *context,
                                        struct weft_arena *arena, struct compute_counts *counts) {
  const struct weft_program *program = context->program;
  const uint64_t most = program->action_count;
  counts->stages = program->stage_count < most ? program->stage_count : most;
  counts->microbatches = program->microbatch_count < most ? program->microbatch_count : most;
  counts->of_stage = weft_arena_allocate(arena, counts->stages, sizeof *counts->of_stage);
  counts->of_microbatch =
      weft_arena_allocate(arena, counts->microbatches, sizeof *counts->of_microbatch);
  return weft_arena_status(arena, context->error);
}

/* Notes which ops occur, too. */
static void count_compute(struct weft_verify_context *context, struct compute_counts *counts) {
  assert(counts->of_stage != NULL && counts->of_microbatch != NULL);
  for (uint64_t i = 0; i < context->program->action_count; i++) {
    const struct weft_action action = context->program->actions[i];
    context->ops |= WEFT_OP_BIT(action.op);
    if (!weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
      continue;
    }
    counts->actions++;
    if (action.stage < counts->stages) {
      counts->of_stage[action.stage]++;
    }
    if (action.microbatch < counts->microbatches) {
      counts->of_microbatch[action.microbatch]++;
    }
  }
}

/* Every (stage, microbatch) needs at least one action, so n × m far beyond the
 * number of actions is no shape of this table; the microbatches give way. */
static enum weft_status infer_shape(struct weft_verify_context *context,
                                    const struct weft_verify_options *options,
                                    const struct compute_counts *counts) {
  const uint32_t known = weft_graph_stage_count(context->graph);
  context->stage_count = known > 0 ? known : options->stage_count;
  context->microbatch_count = options->microbatch_count;
  if (options->stage_count != 0 && options->stage_count != context->stage_count) {
    return weft_fail(context->error, WEFT_ERR_USAGE, "leave the number of stages out",
                     "%" PRIu32 " stages are asked for, and the graph has %" PRIu32,
                     options->stage_count, known);
  }
  if (context->stage_count == 0) {
    context->stage_count = credible_count(counts->of_stage, counts->stages);
  }
  if (context->microbatch_count == 0) {
    context->microbatch_count = credible_count(counts->of_microbatch, counts->microbatches);
    const uint64_t wanted = (uint64_t)context->stage_count * context->microbatch_count;
    if (wanted > 2 * counts->actions + 64) {
      const uint64_t most = counts->actions / context->stage_count;
      context->microbatch_count = most > 0 ? (uint32_t)most : 1;
    }
  }
  return weft_pairs_check(context->program, context->stage_count, context->microbatch_count, true,
                          context->error);
}

/* The rank that computes most of each stage, by vote in one scan. */
static enum weft_status find_owners(struct weft_verify_context *context) {
  const struct weft_program *program = context->program;
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  uint64_t *lead = weft_arena_allocate(&arena, context->stage_count, sizeof *lead);
  WEFT_TRY(weft_arena_status(&arena, context->error));
  memset(context->owner, 0xff, context->stage_count * sizeof *context->owner);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const struct weft_action action = program->actions[i];
      if (!weft_op_in(action.op, WEFT_OPS_COMPUTE) || action.stage >= context->stage_count) {
        continue;
      }
      if (lead[action.stage] == 0) {
        context->owner[action.stage] = r;
      }
      lead[action.stage] =
          context->owner[action.stage] == r ? lead[action.stage] + 1 : lead[action.stage] - 1;
    }
  }
  return WEFT_OK;
}

/* ---- The checks ---- */

static bool has_all_stages(const struct weft_verify_context *context) {
  for (uint32_t s = 0; s < context->stage_count; s++) {
    if (context->owner[s] == WEFT_RANK_NONE) {
      return false;
    }
  }
  return true;
}

/* Whether the machine can step it: actions are where they belong, and channels exist. */
static bool can_step(const struct weft_verify_context *context) {
  const struct weft_findings *findings = &context->findings;
  return has_all_stages(context) &&
         !weft_findings_any(findings, WEFT_RULE_EMPTY, WEFT_RULE_PLACEMENT_RANK) &&
         findings->count[WEFT_RULE_OVERLAP_PARTS] == 0 &&
         findings->count[WEFT_RULE_DUPLICATE] == 0 &&
         findings->count[WEFT_RULE_COMM_BOUNDARY] == 0 && findings->count[WEFT_RULE_COMM_SELF] == 0;
}

/* Whether the run that decides liveness means something: every message has two
 * ends and a place in its channel, or every input of a table gets made. */
static bool can_run(const struct weft_verify_context *context) {
  const struct weft_findings *findings = &context->findings;
  if (weft_has_transfers(context)) {
    return can_step(context) && findings->count[WEFT_RULE_PAIR_SEND] == 0 &&
           findings->count[WEFT_RULE_PAIR_RECV] == 0;
  }
  return can_step(context) &&
         !weft_findings_any(findings, WEFT_RULE_COVERAGE_MIXED, WEFT_RULE_COVERAGE_BACKWARD);
}

static enum weft_status run_checks(struct weft_verify_context *context,
                                   struct weft_report *report) {
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  context->owner = weft_arena_allocate(&arena, context->stage_count, sizeof *context->owner);
  context->exists = weft_arena_allocate(
      &arena, weft_set_count(context->graph, context->stage_count, context->microbatch_count), 1);
  WEFT_TRY(weft_arena_status(&arena, context->error));
  WEFT_TRY(find_owners(context));
  weft_verify_presence(context);
  WEFT_TRY(weft_verify_order(context));
  WEFT_TRY(weft_verify_shards(context));
  bool live = can_run(context);
  report->least_capacity = context->model.capacity;
  if (live && weft_has_transfers(context)) {
    WEFT_TRY(weft_verify_channels(context));
    live = context->findings.count[WEFT_RULE_CHANNEL_ORDER] == 0;
  }
  if (live) {
    WEFT_TRY(weft_verify_liveness(context, &report->least_capacity));
  }
  report->liveness_checked = live;
  return context->trace && can_step(context) ? weft_verify_trace(context, report) : WEFT_OK;
}

static enum weft_status check_program(struct weft_verify_context *context,
                                      const struct weft_verify_options *options,
                                      struct weft_report *report) {
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  struct compute_counts counts = {0};
  WEFT_TRY(allocate_counts(context, &arena, &counts));
  count_compute(context, &counts);
  report->has_backward = weft_has_backward(context);
  if (counts.actions == 0) {
    weft_findings_add(&context->findings, WEFT_RULE_EMPTY, (struct weft_location){0},
                      "there is no F, B, I or W at all: nothing is computed");
    return WEFT_OK;
  }
  WEFT_TRY(infer_shape(context, options, &counts));
  weft_arena_finish(&arena);
  report->stage_count = context->stage_count;
  report->microbatch_count = context->microbatch_count;
  return run_checks(context, report);
}

/* The report and the arena that owns it, and all it points at. */
struct owned_report {
  struct weft_report report;
  struct weft_arena arena;
};

enum weft_status weft_verify(const struct weft_allocator *allocator,
                             const struct weft_program *program,
                             const struct weft_verify_options *options, struct weft_report **out,
                             struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(out, error);
  const struct weft_verify_options standard = weft_verify_options_default();
  assert(weft_program_is_sound(program));
  options = options != NULL ? options : &standard;
  if (weft_channel_model_info(options->model.channel) == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "one of enum weft_channel_model",
                     "channel model %d does not exist", (int)options->model.channel);
  }
  if (options->model.posted && options->model.capacity != WEFT_CAPACITY_UNLIMITED) {
    return weft_fail(error, WEFT_ERR_USAGE, "set the capacity to WEFT_CAPACITY_UNLIMITED",
                     "posted sends with a capacity of %" PRIu32
                     ": a send that waits for nothing "
                     "has no limit",
                     options->model.capacity);
  }
  struct weft_arena arena = {.allocator = allocator};
  struct owned_report *owned = weft_arena_allocate(&arena, 1, sizeof *owned);
  WEFT_TRY(weft_arena_status(&arena, error));
  owned->arena = arena;
  struct weft_verify_context context = {
      .allocator = allocator,
      .program = program,
      .graph = program->graph,
      .model = options->model,
      .trace = options->trace,
      .findings = {.arena = &owned->arena,
                   .graph = program->graph,
                   .max = options->findings_max > 0 ? options->findings_max : 1},
      .error = error};
  enum weft_status status = check_program(&context, options, &owned->report);
  if (status == WEFT_OK && context.findings.failed) {
    status = weft_fail_memory(error, sizeof(struct weft_finding));
  }
  if (status < 0) {
    weft_report_destroy(&owned->report);
    return status;
  }
  weft_findings_report(&context.findings, &owned->report);
  assert(owned->report.ok || owned->report.finding_count > 0);
  *out = &owned->report;
  return WEFT_OK;
}

void weft_report_destroy(struct weft_report *report) {
  if (report != NULL) {
    struct weft_arena arena = ((struct owned_report *)report)->arena; /* report: its first member */
    weft_arena_finish(&arena);
  }
}
