/* Stages that take the time the costs say. */
#include "cli/cmd/timed_stages.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "cli/scoped.h"

/* Eleven days: more than anybody waits for, and sums of such times do not overflow. */
#define TIME_NS_MAX 1e15

/* Rounded as the simulator does it, so that virtual times are the simulated ones. */
static int64_t to_time(double cost, double per_unit, double factor) {
  const int64_t time = llrint(cost * per_unit);
  return factor == 1 ? time : llrint((double)time * factor);
}

static void set_times(struct weft_cli_stages *stages, uint32_t stage,
                      const struct weft_stage_costs *costs, double per_unit, double factor) {
  const struct {
    enum weft_op op;
    double cost, factor; /* a cost below 0: it has no time of its own */
  } all[] = {{WEFT_OP_F, costs->f, factor},
             {WEFT_OP_B, costs->b, factor},
             {WEFT_OP_I, costs->i, factor},
             {WEFT_OP_W, costs->w, factor},
             {WEFT_OP_OVERLAP_F_B, costs->overlap_f_b, factor},
             {WEFT_OP_UNSHARD, costs->unshard, 1},
             {WEFT_OP_REDUCE_GRAD, costs->reduce_grad, 1}};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(all); k++) {
    stages->timed[stage].times[all[k].op] =
        all[k].cost < 0 ? -1 : to_time(all[k].cost, per_unit, all[k].factor);
    stages->longest = fmax(stages->longest, all[k].cost * per_unit * all[k].factor);
  }
  stages->overlaps = stages->overlaps || costs->overlap_f_b >= 0;
}

static bool make_room(struct weft_cli_stages *stages) {
  struct weft_arena *arena = &stages->arena;
  stages->timed = weft_arena_allocate(arena, stages->count, sizeof *stages->timed);
  stages->together = weft_arena_allocate(arena, stages->count, sizeof *stages->together);
  stages->bases = weft_arena_allocate(arena, stages->count, sizeof(struct weft_stage *));
  return arena->failed_bytes == 0;
}

void weft_cli_stages_finish(struct weft_cli_stages *stages) {
  assert(stages != NULL);
  weft_arena_finish(&stages->arena);
}

static void make_stages(struct weft_cli_stages *stages, enum weft_cli_stage_kind kind) {
  static const enum weft_cost_mode modes[] = {[WEFT_CLI_STAGE_SLEEP] = WEFT_COST_SLEEP,
                                              [WEFT_CLI_STAGE_SPIN] = WEFT_COST_SPIN,
                                              [WEFT_CLI_STAGE_NULL] = WEFT_COST_SPIN,
                                              [WEFT_CLI_STAGE_VIRTUAL] = WEFT_COST_VIRTUAL,
                                              [WEFT_CLI_STAGE_DEVICE] = WEFT_COST_DEVICE};
  for (uint32_t s = 0; s < stages->count; s++) {
    weft_cost_stage_init(&stages->timed[s], modes[kind]);
    weft_cost_stage_init(&stages->together[s], modes[kind]);
    stages->bases[s] = &stages->timed[s].stage;
    if (kind == WEFT_CLI_STAGE_NULL) {
      stages->bases[s]->ops = weft_null_stage_ops();
    }
  }
}

/* Rank by rank, because --slow is about ranks. */
static void set_all_times(struct weft_cli_stages *stages, const struct weft_program *program,
                          const struct weft_costs *costs, const struct weft_cli_time_scale *scale) {
  for (uint32_t s = 0; s < stages->count; s++) {
    set_times(stages, s, weft_costs_of(costs, s), scale->per_unit, 1);
  }
  for (uint32_t r = 0; scale->factors != NULL && r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const struct weft_action *action = &program->actions[i];
      if (action->op == WEFT_OP_F) {
        set_times(stages, action->stage, weft_costs_of(costs, action->stage), scale->per_unit,
                  scale->factors[r]);
      }
    }
  }
}

int weft_cli_stages_init(struct weft_cli_stages *stages, const struct weft_cli *cli,
                         const struct weft_program *program, const struct weft_costs *costs,
                         enum weft_cli_stage_kind kind, const struct weft_cli_time_scale *scale) {
  assert(stages != NULL && cli != NULL && program != NULL);
  *stages = (struct weft_cli_stages){.arena = {.allocator = cli->allocator},
                                     .count = program->stage_count};
  if (!make_room(stages)) {
    weft_cli_stages_finish(stages);
    return weft_cli_fail_memory(cli);
  }
  make_stages(stages, kind);
  if (kind != WEFT_CLI_STAGE_NULL) {
    set_all_times(stages, program, costs, scale);
  }
  if (kind != WEFT_CLI_STAGE_VIRTUAL && stages->longest > TIME_NS_MAX) {
    weft_cli_stages_finish(stages);
    return weft_cli_usage(cli, "--transport loopback takes no time; or give smaller times",
                          "an action would take %.0f seconds, and the limit is %.0f",
                          stages->longest / 1e9, TIME_NS_MAX / 1e9);
  }
  return WEFT_CLI_OK;
}

/* As in the simulator: the time is that of the F's stage, else the sum. */
static int64_t overlap_time(const struct weft_custom_call *call, uint16_t *stage) {
  int64_t sum = 0;
  for (uint32_t k = 0; k < call->sub_action_count; k++) {
    const struct weft_cost_stage *part = (const struct weft_cost_stage *)call->stages[k];
    const struct weft_action *action = call->actions[k];
    if (action->op == WEFT_OP_F) {
      *stage = action->stage;
      if (part->times[WEFT_OP_OVERLAP_F_B] >= 0) {
        return part->times[WEFT_OP_OVERLAP_F_B];
      }
    }
    sum += part->times[action->op];
  }
  return sum;
}

enum weft_status weft_cli_stages_overlap(void *context, const struct weft_custom_call *call,
                                         struct weft_error *error) {
  const struct weft_cli_stages *stages = context;
  uint16_t stage = call->actions[0]->stage;
  const int64_t time = overlap_time(call, &stage);
  struct weft_cost_stage *together = &stages->together[stage];
  together->times[WEFT_OP_F] = time;
  return together->stage.ops->forward(&together->stage, call->calls[0], error);
}
