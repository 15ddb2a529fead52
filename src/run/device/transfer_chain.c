/* A simulation of a program whose ranks have one transfer at a time; see transfer_chain.h. It has
 * no queue of events: ends are sums and maxima of ends before them, in whatever order they are
 * found. */
#include "run/device/transfer_chain.h"

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
  double *arrived; /* [channel][microbatch]: a message has; likewise */
  double *offered; /* [receives][channel][microbatch]: a SEND or RECV has begun; likewise */
};

static double *output_of(const struct chain *chain, bool gradient, uint32_t stage, uint32_t mb) {
  const uint64_t row = (uint64_t)gradient * chain->program->stage_count + stage;
  return &chain->made[row * chain->program->microbatch_count + mb];
}

static double *message_of(const struct chain *chain, double *table, uint32_t channel, uint32_t mb) {
  return &table[(uint64_t)channel * chain->program->microbatch_count + mb];
}

static double *offer_of(const struct chain *chain, bool receives, uint32_t channel, uint32_t mb) {
  const uint32_t channels = weft_channel_count(chain->program->graph, chain->program->stage_count);
  return message_of(chain, chain->offered, receives * channels + channel, mb);
}

static double cost_of(struct weft_action action) {
  return action.op == WEFT_OP_B ? 2 : weft_op_in(action.op, WEFT_OPS_COMPUTE) ? 1 : 0;
}

/* When the inputs of an action are there; < 0: they are not. Those that the rank makes itself need no
 * transfer. */
static double inputs_of(const struct chain *chain, uint32_t r, struct weft_action action) {
  const struct weft_program *program = chain->program;
  const uint32_t count = weft_action_input_count(program->graph, action, program->stage_count);
  double last = 0;
  for (uint32_t k = 0; k < count; k++) {
    const uint32_t from = weft_action_input_at(program->graph, action, k);
    const double there =
        chain->chained && chain->rank_of[from] != r
            ? *message_of(chain, chain->arrived,
                          weft_action_input_channel(program->graph, action, k), action.microbatch)
            : *output_of(chain, action.op != WEFT_OP_F, from, action.microbatch);
    if (there < 0) {
      return there;
    }
    last = fmax(last, there);
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
    double begin = 0, cost = 0;
    for (uint64_t i = at; i < next && begin >= 0; i++) {
      const double there = inputs_of(chain, r, program->actions[i]);
      begin = there < 0 ? there : fmax(begin, there);
      cost += cost_of(program->actions[i]);
    }
    if (begin < 0) {
      break;
    }
    rank->compute_end = cost > 0 ? fmax(rank->compute_end, begin) + cost : rank->compute_end;
    for (uint64_t i = at; i < next; i++) {
      const struct weft_action action = program->actions[i];
      if (weft_op_in(action.op, WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT)) {
        *output_of(chain, action.op != WEFT_OP_F, action.stage, action.microbatch) =
            rank->compute_end;
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
    if (weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
      const bool receives = weft_op_in(action.op, WEFT_OPS_RECV);
      const uint32_t channel = weft_channel_of(program, action), mb = action.microbatch;
      if (channel == WEFT_EDGE_NONE) {
        break;
      }
      double *mine = offer_of(chain, receives, channel, mb);
      const double theirs = *offer_of(chain, !receives, channel, mb);
      const bool is_new = *mine < 0;
      *mine = begin_of(chain, action, rank->transfer_end);
      moved = moved || (is_new && *mine >= 0);
      if (*mine < 0 || theirs < 0) {
        break;
      }
      rank->transfer_end = fmax(*mine, theirs);
      if (receives) {
        *message_of(chain, chain->arrived, channel, mb) = rank->transfer_end;
      }
    }
    rank->transfer += weft_cell_records(&program->actions[rank->transfer]);
    moved = true;
  }
  return moved;
}

static void forget(double *times, uint64_t count) {
  for (uint64_t k = 0; k < count; k++) {
    times[k] = -1;
  }
}

/* How long all rows take; infinite: they do not end. */
static double run(struct chain *chain) {
  const struct weft_program *program = chain->program;
  const uint64_t channels = weft_channel_count(program->graph, program->stage_count);
  bool moved = true;
  double end = 0;
  forget(chain->made, 2 * (uint64_t)program->stage_count * program->microbatch_count);
  forget(chain->arrived, channels * program->microbatch_count);
  forget(chain->offered, 2 * channels * program->microbatch_count);
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
  const uint64_t microbatches = program->microbatch_count;
  const uint64_t channels = weft_channel_count(program->graph, program->stage_count);
  struct chain chain = {.program = program, .rank_of = rank_of};
  chain.ranks = weft_arena_allocate(&arena, program->rank_count, sizeof *chain.ranks);
  chain.made = weft_arena_allocate(&arena, 2 * program->stage_count * microbatches, sizeof(double));
  chain.arrived = weft_arena_allocate(&arena, channels * microbatches, sizeof(double));
  chain.offered = weft_arena_allocate(&arena, 2 * channels * microbatches, sizeof(double));
  WEFT_TRY(weft_arena_status(&arena, error));
  const double free_end = run(&chain);
  chain.chained = true;
  const double end = run(&chain);
  *slowdown = isinf(end) || free_end <= 0 ? end : end / free_end;
  return WEFT_OK;
}
