/* Verify, structure: parameters. Nothing computes on a sharded stage, UNSHARD
 * and RESHARD alternate, and REDUCE_GRAD comes once, after the stage's last
 * backward. A program without UNSHARD and RESHARD is not sharded at all, one
 * without REDUCE_GRAD has no replicas. */
#include <inttypes.h>

#include "analyze/verify_context.h"
#include "base/fail.h"

struct shard_state {
  uint32_t backwards; /* B or W done */
  bool unsharded;
  bool reduced;
};

struct shard_check {
  struct weft_verify_context *context;
  struct shard_state *stages; /* [n] */
  bool is_sharded;
};

static void check_compute(const struct shard_check *check, const struct weft_visit *at,
                          struct shard_state *stage) {
  if (check->is_sharded && !stage->unsharded) {
    weft_findings_add(&check->context->findings, WEFT_RULE_SHARD_COMPUTE, at->place,
                      "computes on stage %u, which is sharded here; put %uUNSHARD before it",
                      at->action.stage, at->action.stage);
  }
  stage->backwards += at->action.op == WEFT_OP_B || at->action.op == WEFT_OP_W;
}

static void check_unshard(const struct shard_check *check, const struct weft_visit *at,
                          struct shard_state *stage) {
  if (stage->unsharded) {
    weft_findings_add(&check->context->findings, WEFT_RULE_SHARD_UNSHARD, at->place,
                      "stage %u is unsharded already", at->action.stage);
  }
  stage->unsharded = true;
}

static void check_reshard(const struct shard_check *check, const struct weft_visit *at,
                          struct shard_state *stage) {
  if (!stage->unsharded) {
    weft_findings_add(&check->context->findings, WEFT_RULE_SHARD_RESHARD, at->place,
                      "stage %u is not unsharded, so there is nothing to drop", at->action.stage);
  }
  stage->unsharded = false;
}

static void check_reduce(const struct shard_check *check, const struct weft_visit *at,
                         struct shard_state *stage) {
  const uint32_t all = check->context->microbatch_count;
  if (stage->reduced) {
    weft_findings_add(&check->context->findings, WEFT_RULE_DUPLICATE, at->place,
                      "the gradients of stage %u are reduced already", at->action.stage);
  } else if (stage->backwards < all) {
    weft_findings_add(&check->context->findings, WEFT_RULE_REDUCE_EARLY, at->place,
                      "only %" PRIu32 " of %" PRIu32
                      " backwards of stage %u are done; the rest would not be reduced",
                      stage->backwards, all, at->action.stage);
  }
  stage->reduced = true;
}

static void check_action(const struct shard_check *check, const struct weft_visit *at) {
  struct shard_state *stage = &check->stages[at->action.stage];
  switch (at->action.op) {
    case WEFT_OP_F:
    case WEFT_OP_B:
    case WEFT_OP_I:
    case WEFT_OP_W: check_compute(check, at, stage); break;
    case WEFT_OP_UNSHARD: check_unshard(check, at, stage); break;
    case WEFT_OP_RESHARD: check_reshard(check, at, stage); break;
    case WEFT_OP_REDUCE_GRAD: check_reduce(check, at, stage); break;
    default: break;
  }
}

static void check_row(const struct shard_check *check, uint32_t rank) {
  const struct weft_verify_context *context = check->context;
  const struct weft_program *program = context->program;
  struct weft_visit at = {.place = {.rank = rank}};
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; at.place.step++) {
    const uint32_t records = weft_cell_records(&program->actions[i]);
    for (uint32_t k = 0; k < records; k++) {
      at.place.action = &program->actions[i + k];
      at.action = program->actions[i + k];
      if (weft_in_range(context, at.action) && context->owner[at.action.stage] == rank) {
        check_action(check, &at);
      }
    }
    i += records;
  }
}

/* Counting the row's cells is a walk: only for what is kept. */
static struct weft_place row_end(const struct weft_verify_context *context, enum weft_rule rule,
                                 uint32_t stage) {
  const uint32_t rank = context->owner[stage];
  const bool kept = context->findings.count[rule] < context->findings.max;
  return (struct weft_place){.rank = rank,
                             .step = kept ? weft_program_row_steps(context->program, rank) : 0};
}

/* What is left at the end of all rows. */
static void check_end(const struct shard_check *check) {
  struct weft_verify_context *context = check->context;
  const bool reduces = (context->ops & WEFT_OP_BIT(WEFT_OP_REDUCE_GRAD)) != 0;
  for (uint32_t s = 0; s < context->stage_count; s++) {
    if (context->owner[s] == WEFT_RANK_NONE) {
      continue;
    }
    if (check->stages[s].unsharded) {
      weft_findings_add(
          &context->findings, WEFT_RULE_SHARD_LEFT, row_end(context, WEFT_RULE_SHARD_LEFT, s),
          "stage %" PRIu32 " is left unsharded at the end; add %" PRIu32 "RESHARD", s, s);
    }
    if (reduces && !check->stages[s].reduced && check->stages[s].backwards > 0) {
      weft_findings_add(&context->findings, WEFT_RULE_REDUCE_MISSING,
                        row_end(context, WEFT_RULE_REDUCE_MISSING, s),
                        "stage %" PRIu32
                        " has no REDUCE_GRAD while others have: its gradients "
                        "would differ between replicas",
                        s);
    }
  }
}

enum weft_status weft_verify_shards(struct weft_verify_context *context) {
  const uint32_t unshard_or_reshard = WEFT_OP_BIT(WEFT_OP_UNSHARD) | WEFT_OP_BIT(WEFT_OP_RESHARD);
  if ((context->ops & WEFT_OPS_SHARD) == 0) {
    return WEFT_OK;
  }
  struct shard_check check = {.context = context,
                              .stages = weft_array_allocate_zero(
                                  context->allocator, context->stage_count, sizeof *check.stages),
                              .is_sharded = (context->ops & unshard_or_reshard) != 0};
  if (check.stages == NULL) {
    return weft_fail_memory(context->error, context->stage_count * sizeof *check.stages);
  }
  for (uint32_t r = 0; r < context->program->rank_count; r++) {
    check_row(&check, r);
  }
  check_end(&check);
  weft_array_free(context->allocator, check.stages, context->stage_count, sizeof *check.stages);
  return WEFT_OK;
}
