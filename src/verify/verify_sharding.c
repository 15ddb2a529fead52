/* Verify, structure: parameters. Nothing computes on a sharded stage, UNSHARD
 * and RESHARD alternate, and REDUCE_GRAD comes once, after the stage's last
 * backward. TIE_GRAD comes once for the first and for the last stage, between
 * their last backward and their REDUCE_GRAD, and nothing follows it that
 * others could wait for. A program without UNSHARD and RESHARD is not sharded at
 * all, one without REDUCE_GRAD has no replicas, one without TIE_GRAD shares no
 * weights. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "verify/verify_context.h"

struct shard_state {
  uint32_t backwards; /* B or W done */
  bool unsharded;
  bool reduced;
  bool tied;
};

struct shard_check {
  struct weft_verify_context *context;
  struct shard_state *stages; /* [n] */
  bool is_sharded;
};

/* May follow a TIE_GRAD. */
#define OPS_BEHIND_TIE (WEFT_OPS_SHARD & ~WEFT_OP_BIT(WEFT_OP_UNSHARD))

static void check_compute(const struct shard_check *check, const struct weft_location *at,
                          struct shard_state *stage) {
  if (check->is_sharded && !stage->unsharded) {
    weft_findings_add(&check->context->findings, WEFT_RULE_SHARD_COMPUTE, *at,
                      "computes on stage %u, which is sharded here; put %uUNSHARD before it",
                      at->action->stage, at->action->stage);
  }
  stage->backwards += at->action->op == WEFT_OP_B || at->action->op == WEFT_OP_W;
}

/* UNSHARD and RESHARD. */
static void check_change(const struct shard_check *check, const struct weft_location *at,
                         struct shard_state *stage) {
  const bool unshards = at->action->op == WEFT_OP_UNSHARD;
  if (stage->unsharded == unshards) {
    weft_findings_add(
        &check->context->findings, unshards ? WEFT_RULE_SHARD_UNSHARD : WEFT_RULE_SHARD_RESHARD,
        *at, "stage %u is %s", at->action->stage,
        unshards ? "unsharded already" : "not unsharded, so there is nothing to drop");
  }
  stage->unsharded = unshards;
}

/* A stage of a graph that no gradient comes to has none to reduce or to sum. */
static bool check_frozen(const struct shard_check *check, const struct weft_location *at) {
  if (weft_graph_has_backward(check->context->graph, at->action->stage)) {
    return false;
  }
  weft_findings_add(&check->context->findings, WEFT_RULE_COVERAGE_FROZEN, *at,
                    "stage %u is frozen: none of its edges brings it a gradient; take this out",
                    at->action->stage);
  return true;
}

static void check_reduce(const struct shard_check *check, const struct weft_location *at,
                         struct shard_state *stage) {
  const uint32_t all = check->context->microbatch_count;
  if (check_frozen(check, at)) {
    stage->reduced = true;
    return;
  }
  if (stage->reduced) {
    weft_findings_add(&check->context->findings, WEFT_RULE_DUPLICATE, *at,
                      "the gradients of stage %u are reduced already", at->action->stage);
  } else if (stage->backwards < all) {
    weft_findings_add(&check->context->findings, WEFT_RULE_REDUCE_EARLY, *at,
                      "only %" PRIu32 " of %" PRIu32
                      " backwards of stage %u are done; the rest would not be reduced",
                      stage->backwards, all, at->action->stage);
  }
  stage->reduced = true;
}

static void check_tie(const struct shard_check *check, const struct weft_location *at,
                      struct shard_state *stage) {
  struct weft_findings *findings = &check->context->findings;
  const uint32_t all = check->context->microbatch_count, last = check->context->stage_count - 1;
  if (check_frozen(check, at)) {
    return;
  }
  if (at->action->stage != 0 && at->action->stage != last) {
    weft_findings_add(findings, WEFT_RULE_TIE_STAGE, *at,
                      "stage %u shares no weights: only the first stage, 0, and the last, %" PRIu32
                      ", do",
                      at->action->stage, last);
  } else if (stage->tied) {
    weft_findings_add(findings, WEFT_RULE_DUPLICATE, *at,
                      "the gradients of stage %u are tied already", at->action->stage);
  } else if (stage->reduced) {
    weft_findings_add(findings, WEFT_RULE_TIE_REDUCED, *at,
                      "the gradients of stage %u are reduced already, without those of the stage "
                      "that shares its weights",
                      at->action->stage);
  }
  if (stage->backwards < all) {
    weft_findings_add(findings, WEFT_RULE_TIE_EARLY, *at,
                      "only %" PRIu32 " of %" PRIu32
                      " backwards of stage %u are done; the rest would not be in the sum",
                      stage->backwards, all, at->action->stage);
  }
  stage->tied = true;
}

/* A TIE_GRAD waits for another rank, and collectives run one after the other:
 * whatever needs a result of this rank must not be behind it. Once per row. */
static void check_behind_tie(const struct shard_check *check, const struct weft_location *at,
                             struct weft_action tie) {
  char text[32];
  weft_findings_add(&check->context->findings, WEFT_RULE_TIE_BLOCKS, *at,
                    "follows %s, which waits for another rank; only RESHARD, REDUCE_GRAD "
                    "and TIE_GRAD may",
                    weft_action_format(&tie, text, sizeof text));
}

static void check_action(const struct shard_check *check, const struct weft_location *at) {
  struct shard_state *stage = &check->stages[at->action->stage];
  switch (at->action->op) {
    case WEFT_OP_F:
    case WEFT_OP_B:
    case WEFT_OP_I:
    case WEFT_OP_W: check_compute(check, at, stage); break;
    case WEFT_OP_UNSHARD:
    case WEFT_OP_RESHARD: check_change(check, at, stage); break;
    case WEFT_OP_REDUCE_GRAD: check_reduce(check, at, stage); break;
    case WEFT_OP_TIE_GRAD: check_tie(check, at, stage); break;
    default: break;
  }
}

static void check_row(const struct shard_check *check, uint32_t rank) {
  const struct weft_verify_context *context = check->context;
  const struct weft_program *program = context->program;
  struct weft_location at = {.rank = rank};
  struct weft_action tie = weft_action_idle();
  bool blocks = false;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; at.step++) {
    const struct weft_action *cell = &program->actions[i];
    for (at.action = cell; at.action < cell + weft_cell_records(cell); at.action++) {
      if (weft_in_range(context, *at.action) && context->owner[at.action->stage] == rank) {
        check_action(check, &at);
      }
    }
    at.action = cell;
    if (cell->op == WEFT_OP_TIE_GRAD) {
      tie = *cell;
    } else if (tie.op != WEFT_OP_IDLE && !blocks &&
               !weft_op_in(cell->op, OPS_BEHIND_TIE | WEFT_OP_BIT(WEFT_OP_IDLE))) {
      check_behind_tie(check, &at, tie);
      blocks = true;
    }
    i += weft_cell_records(cell);
  }
}

/* Counting the row's cells is a scan: only for what is kept. */
static struct weft_location row_end(const struct weft_verify_context *context, enum weft_rule rule,
                                    uint32_t stage) {
  const uint32_t rank = context->owner[stage];
  const bool kept = context->findings.count[rule] < context->findings.max;
  return (struct weft_location){.rank = rank,
                                .step = kept ? weft_program_row_steps(context->program, rank) : 0};
}

static void check_tie_missing(const struct shard_check *check) {
  assert(check->context->stage_count > 0);
  struct weft_verify_context *context = check->context;
  const uint32_t last = context->stage_count - 1;
  const bool first_tied = check->stages[0].tied, last_tied = check->stages[last].tied;
  const uint32_t lacks = first_tied ? last : 0, other = first_tied ? 0 : last;
  if (first_tied != last_tied && context->owner[lacks] != WEFT_RANK_NONE) {
    weft_findings_add(
        &context->findings, WEFT_RULE_TIE_MISSING, row_end(context, WEFT_RULE_TIE_MISSING, lacks),
        "stage %" PRIu32 " has no TIE_GRAD while stage %" PRIu32 " has one, and waits for it",
        lacks, other);
  }
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
  if (context->stage_count > 0) {
    check_tie_missing(check);
  }
}

enum weft_status weft_verify_shards(struct weft_verify_context *context) {
  assert(context->owner != NULL);
  const uint32_t unshard_or_reshard = WEFT_OP_BIT(WEFT_OP_UNSHARD) | WEFT_OP_BIT(WEFT_OP_RESHARD);
  if ((context->ops & WEFT_OPS_SHARD) == 0) {
    return WEFT_OK;
  }
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  struct shard_check check = {
      .context = context,
      .stages = weft_arena_allocate(&arena, context->stage_count, sizeof *check.stages),
      .is_sharded = (context->ops & unshard_or_reshard) != 0};
  WEFT_TRY(weft_arena_status(&arena, context->error));
  for (uint32_t r = 0; r < context->program->rank_count; r++) {
    check_row(&check, r);
  }
  check_end(&check);
  return WEFT_OK;
}
