/* A simulation of a program whose ranks have one transfer at a time; see transfer_chain.h. It has
 * no queue of events: ends are sums and maxima of ends before them, in whatever order they are
 * found. */
#include "run/transfer_chain.h"

#include <math.h>

#include "ir/action.h"

struct rank {
  uint64_t compute, transfer; /* records: the next of each */
  double compute_end, transfer_end;
};

struct chain {
  const struct weft_program *program;
  const uint32_t *rank_of;
  bool chained; /* else compute takes its inputs when they are made */
  struct rank *ranks;
  double *made;    /* [gradient][stage][microbatch]: the output of that stage; < 0: not yet */
  double *arrived; /* likewise: its input */
  double *offered; /* [op][stage][microbatch]: a SEND or RECV has begun; likewise */
};

static uint64_t index_of(const struct chain *chain, uint32_t table, uint32_t stage, uint32_t mb) {
  const struct weft_program *program = chain->program;
  return ((uint64_t)table * program->stage_count + stage) * program->microbatch_count + mb;
}

static double *input_of(const struct chain *chain, bool gradient, uint32_t stage, uint32_t mb) {
  return &chain->arrived[index_of(chain, gradient, stage, mb)];
}

static double *output_of(const struct chain *chain, bool gradient, uint32_t stage, uint32_t mb) {
  return &chain->made[index_of(chain, gradient, stage, mb)];
}

static double *offer_of(const struct chain *chain, struct weft_action transfer) {
  const uint32_t table = transfer.op == WEFT_OP_SEND_F   ? 0
                         : transfer.op == WEFT_OP_RECV_F ? 1
                         : transfer.op == WEFT_OP_SEND_B ? 2
                                                         : 3;
  return &chain->offered[index_of(chain, table, transfer.stage, transfer.microbatch)];
}

static double cost_of(struct weft_action action) {
  return action.op == WEFT_OP_B ? 2 : weft_op_in(action.op, WEFT_OPS_COMPUTE) ? 1 : 0;
}

/* When all inputs of a cell are there; < 0: they are not. */
static double inputs_of(const struct chain *chain, uint64_t at, uint64_t next) {
  double last = 0;
  for (uint64_t i = at; i < next; i++) {
    const struct weft_action action = chain->program->actions[i];
    if (weft_action_input_count(NULL, action, chain->program->stage_count) > 0) {
      const double made = *input_of(chain, action.op != WEFT_OP_F, action.stage, action.microbatch);
      if (made < 0) {
        return -1;
      }
      last = fmax(last, made);
    }
  }
  return last;
}

/* Compute, as far as its inputs are there; whether there was any. */
static bool compute(const struct chain *chain, uint32_t r) {
  const struct weft_program *program = chain->program;
  struct rank *rank = &chain->ranks[r];
  bool moved = false;
  while (rank->compute < program->row_begin[r + 1]) {
    const uint64_t at = rank->compute, next = at + weft_cell_records(&program->actions[at]);
    const double begin = inputs_of(chain, at, next);
    if (begin < 0) {
      break;
    }
    double cost = 0;
    for (uint64_t i = at; i < next; i++) {
      cost += cost_of(program->actions[i]);
    }
    rank->compute_end = cost > 0 ? fmax(rank->compute_end, begin) + cost : rank->compute_end;
    for (uint64_t i = at; i < next; i++) {
      const struct weft_action action = program->actions[i];
      const bool gradient = action.op != WEFT_OP_F;
      if (weft_action_output_count(NULL, action, program->stage_count) == 0) {
        continue;
      }
      const uint32_t consumer = weft_action_output_at(NULL, action, 0);
      *output_of(chain, gradient, action.stage, action.microbatch) = rank->compute_end;
      if (!chain->chained || chain->rank_of[consumer] == r) {
        *input_of(chain, gradient, consumer, action.microbatch) = rank->compute_end;
      }
    }
    rank->compute = next;
    moved = true;
  }
  return moved;
}

/* When a transfer can begin, after those before it; < 0: what it sends is not made. */
static double begin_of(const struct chain *chain, struct weft_action transfer, double before) {
  if (weft_op_in(transfer.op, WEFT_OPS_RECV)) {
    return before;
  }
  const double made =
      *output_of(chain, transfer.op == WEFT_OP_SEND_B, transfer.stage, transfer.microbatch);
  return made < 0 ? made : fmax(made, before);
}

/* Transfers, as far as their other ends have begun; whether there was any. */
static bool transfer(const struct chain *chain, uint32_t r) {
  const struct weft_program *program = chain->program;
  struct rank *rank = &chain->ranks[r];
  bool moved = false;
  while (rank->transfer < program->row_begin[r + 1]) {
    const struct weft_action action = program->actions[rank->transfer];
    struct weft_action partner;
    if (weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
      double *mine = offer_of(chain, action);
      const bool is_new = *mine < 0;
      *mine = begin_of(chain, action, rank->transfer_end);
      moved = moved || (is_new && *mine >= 0);
      if (*mine < 0 || !weft_action_partner(action, program->stage_count, &partner) ||
          *offer_of(chain, partner) < 0) {
        break;
      }
      rank->transfer_end = fmax(*mine, *offer_of(chain, partner));
      if (weft_op_in(action.op, WEFT_OPS_RECV)) {
        *input_of(chain, action.op == WEFT_OP_RECV_B, action.stage, action.microbatch) =
            rank->transfer_end;
      }
    }
    rank->transfer += weft_cell_records(&program->actions[rank->transfer]);
    moved = true;
  }
  return moved;
}

/* How long all rows take; infinite: they do not end. */
static double run(struct chain *chain) {
  const struct weft_program *program = chain->program;
  const uint64_t items = (uint64_t)program->stage_count * program->microbatch_count;
  bool moved = true;
  double end = 0;
  for (uint64_t k = 0; k < 4 * items; k++) {
    chain->offered[k] = -1;
    chain->made[k % (2 * items)] = chain->arrived[k % (2 * items)] = -1;
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    chain->ranks[r] = (struct rank){program->row_begin[r], program->row_begin[r], 0, 0};
  }
  while (moved) {
    moved = false;
    for (uint32_t r = 0; r < program->rank_count; r++) {
      moved = compute(chain, r) || moved;
      moved = (chain->chained && transfer(chain, r)) || moved;
    }
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const struct rank *rank = &chain->ranks[r];
    const uint64_t last = program->row_begin[r + 1];
    if (rank->compute < last || (chain->chained && rank->transfer < last)) {
      return INFINITY;
    }
    end = fmax(end, fmax(rank->compute_end, rank->transfer_end));
  }
  return end;
}

enum weft_status weft_transfer_chain_check(const struct weft_allocator *allocator,
                                           const struct weft_program *program,
                                           const uint32_t *rank_of, double *slowdown,
                                           struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  const uint64_t items = (uint64_t)program->stage_count * program->microbatch_count;
  struct chain chain = {.program = program, .rank_of = rank_of};
  chain.ranks = weft_arena_allocate(&arena, program->rank_count, sizeof *chain.ranks);
  chain.made = weft_arena_allocate(&arena, 2 * items, sizeof *chain.made);
  chain.offered = weft_arena_allocate(&arena, 4 * items, sizeof *chain.offered);
  chain.arrived = weft_arena_allocate(&arena, 2 * items, sizeof *chain.arrived);
  WEFT_TRY(weft_arena_status(&arena, error));
  const double free_end = run(&chain);
  chain.chained = true;
  const double end = run(&chain);
  *slowdown = isinf(end) || free_end <= 0 ? end : end / free_end;
  return WEFT_OK;
}
