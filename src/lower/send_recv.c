/* Pass send_recv: puts SEND and RECV between the ranks.
 *
 * The order is PyTorch's: go round the ranks in ascending order, again and
 * again; a rank takes its next action when its input is there, at most one per
 * round; the SEND goes behind the action that made the data, and the RECV at
 * once to the end of the receiver's row so far. On every pair of ranks sends
 * and receives therefore stand in the same order on both sides, and the program
 * completes even when every send blocks until its receive.
 *
 * A RECV is placed the moment its data is made, so "the input is there" is the
 * same as "the producing action has been taken", whether on this rank or
 * another: a bit per stage, microbatch and direction. Ranks that cannot go on
 * leave the round until something arrives for them; so the cost is that of the
 * actions, not of rounds times ranks. Joining again behind the present rank
 * means this round, before it the next: the same order as asking every rank. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/fail.h"
#include "base/memory.h"
#include "ir/program.h"
#include "lower/passes.h"

/* A rank on its way through its row. */
struct walker {
  const struct weft_action *next;
  const struct weft_action *end;
  struct weft_action *out;
};

/* How many results of each kind a stage makes. */
struct stage_results {
  uint64_t activations;
  uint64_t gradients;
};

struct transfer_pass {
  const struct weft_pass_input *input;
  uint32_t stage_count;
  uint32_t microbatch_count;
  uint64_t stage_words;     /* words per stage in the bit maps */
  uint32_t *rank_of;        /* [stage] */
  struct stage_results *results; /* [stage] */
  uint64_t *activation_made; /* bit [stage][microbatch]: F taken */
  uint64_t *gradient_made;   /* bit [stage][microbatch]: B or I taken */
  struct walker *walkers;   /* [rank] */
  uint64_t *row_sizes;      /* [rank] */
  struct weft_bits running; /* ranks worth asking */
  uint64_t transfers;
  uint32_t split_stage;     /* a stage that two ranks compute, or stage_count */
};

/* Where an action's result goes. */
static inline bool crosses(const struct transfer_pass *pass, struct weft_action action, uint32_t rank,
                    uint32_t *consumer, uint32_t *consumer_rank) {
  if (!weft_action_output(action, pass->stage_count, consumer)) {
    return false;
  }
  *consumer_rank = pass->rank_of[*consumer];
  return *consumer_rank != rank && *consumer_rank != WEFT_RANK_NONE;
}

/* Exact sizes of the rows to come: the actions that stay, one more for each
 * result that leaves the rank and one more for each that arrives. How many
 * results a stage makes is counted in the walk that reads off the placement. */
static void read_rows(struct transfer_pass *pass) {
  const struct weft_program *program = pass->input->program;
  for (uint32_t s = 0; s < pass->stage_count; s++) {
    pass->rank_of[s] = WEFT_RANK_NONE;
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    uint64_t kept = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const struct weft_action action = program->actions[i];
      kept += !weft_op_in(action.op, pass->input->skip);
      if (weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
        struct stage_results *results = &pass->results[action.stage];
        results->activations += action.op == WEFT_OP_F;
        results->gradients += weft_op_in(action.op, WEFT_OPS_GRADIENT);
        if (pass->rank_of[action.stage] != r) {
          pass->split_stage =
              pass->rank_of[action.stage] == WEFT_RANK_NONE ? pass->split_stage : action.stage;
          pass->rank_of[action.stage] = r;
        }
      }
    }
    pass->row_sizes[r] = kept;
  }
}

static enum weft_status check_one_rank_per_stage(const struct transfer_pass *pass,
                                                 struct weft_error *error) {
  if (pass->split_stage == pass->stage_count) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_INVALID, "'weft verify' lists the actions that are misplaced",
                   "stage %" PRIu32 " is computed by more than one rank (rank %" PRIu32
                   " is one of them); a stage lives on one rank",
                   pass->split_stage, pass->rank_of[pass->split_stage]);
}

static void add_transfers(struct transfer_pass *pass, uint64_t count, uint32_t from, uint32_t to) {
  pass->row_sizes[from] += count;
  pass->row_sizes[to] += count;
  pass->transfers += count;
}

static void count_transfers(struct transfer_pass *pass) {
  for (uint32_t s = 0; s < pass->stage_count; s++) {
    const uint32_t rank = pass->rank_of[s];
    uint32_t consumer, consumer_rank;
    if (rank == WEFT_RANK_NONE) {
      continue;
    }
    if (crosses(pass, weft_action_make(WEFT_OP_F, s, 0), rank, &consumer, &consumer_rank)) {
      add_transfers(pass, pass->results[s].activations, rank, consumer_rank);
    }
    if (crosses(pass, weft_action_make(WEFT_OP_B, s, 0), rank, &consumer, &consumer_rank)) {
      add_transfers(pass, pass->results[s].gradients, rank, consumer_rank);
    }
  }
}

static inline uint64_t *made_word(const struct transfer_pass *pass, struct weft_action action,
                           uint32_t stage) {
  uint64_t *map = action.op == WEFT_OP_F ? pass->activation_made : pass->gradient_made;
  return &map[stage * pass->stage_words + (action.microbatch >> 6)];
}

static inline bool is_ready(const struct transfer_pass *pass, struct weft_action action) {
  uint32_t producer;
  if (!weft_action_input(action, pass->stage_count, &producer)) {
    return true;
  }
  return (*made_word(pass, action, producer) >> (action.microbatch & 63)) & 1;
}

static bool is_cell_ready(const struct transfer_pass *pass, const struct weft_action *cell) {
  bool ready = is_ready(pass, cell[0]);
  for (uint32_t k = 1; k <= cell->parts; k++) {
    ready = ready && is_ready(pass, cell[k]);
  }
  return ready;
}

/* Marks what an action made; sends it if it is needed elsewhere, and wakes
 * the rank that may have waited for it. */
static inline void publish(struct transfer_pass *pass, uint32_t rank, struct weft_action action) {
  uint32_t consumer, consumer_rank;
  if (!weft_op_in(action.op, WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT)) {
    return;
  }
  *made_word(pass, action, action.stage) |= UINT64_C(1) << (action.microbatch & 63);
  if (!crosses(pass, action, rank, &consumer, &consumer_rank)) {
    return;
  }
  const bool forward = action.op == WEFT_OP_F;
  struct walker *to = &pass->walkers[consumer_rank];
  *pass->walkers[rank].out++ = weft_action_make(forward ? WEFT_OP_SEND_F : WEFT_OP_SEND_B,
                                                action.stage, action.microbatch);
  *to->out++ = weft_action_make(forward ? WEFT_OP_RECV_F : WEFT_OP_RECV_B, consumer,
                                action.microbatch);
  if (to->next < to->end) {
    weft_bits_insert(&pass->running, consumer_rank);
  }
}

enum { PREFETCH_RECORDS = 32 };

/* Takes rank's next cell if it is ready; false if the rank has to wait. */
static bool take_cell(struct transfer_pass *pass, uint32_t rank) {
  struct walker *walker = &pass->walkers[rank];
  const struct weft_action *cell = walker->next;
  /* Two streams per rank are more than the hardware follows by itself. */
  __builtin_prefetch(cell + PREFETCH_RECORDS);
  __builtin_prefetch(walker->out + PREFETCH_RECORDS, 1);
  if (!is_cell_ready(pass, cell)) {
    return false;
  }
  *walker->out++ = cell[0];
  if (cell->parts == 0) {
    walker->next = cell + 1;
    publish(pass, rank, cell[0]);
    return true;
  }
  walker->next = cell + weft_cell_records(cell);
  for (uint32_t k = 1; k <= cell->parts; k++) {
    *walker->out++ = cell[k];
  }
  for (uint32_t k = 1; k <= cell->parts; k++) {
    publish(pass, rank, cell[k]);
  }
  return true;
}

static void skip_cells(const struct transfer_pass *pass, struct walker *walker) {
  while (walker->next < walker->end && weft_op_in(walker->next->op, pass->input->skip)) {
    walker->next++;
  }
}

/* One round after the other, until nobody is running. */
static void go_round(struct transfer_pass *pass) {
  for (;;) {
    uint32_t rank = weft_bits_next(&pass->running, 0);
    if (rank == WEFT_BITS_NONE) {
      return;
    }
    for (; rank != WEFT_BITS_NONE; rank = weft_bits_next(&pass->running, rank + 1)) {
      struct walker *walker = &pass->walkers[rank];
      const bool taken = take_cell(pass, rank);
      skip_cells(pass, walker);
      if (!taken || walker->next == walker->end) {
        weft_bits_remove(&pass->running, rank);
      }
    }
  }
}

/* ---- A table that cannot be executed ---- */

static void add_wait(const struct transfer_pass *pass, struct weft_action action, char *buffer,
                     size_t size, size_t *used) {
  uint32_t producer;
  if (is_ready(pass, action) || !weft_action_input(action, pass->stage_count, &producer)) {
    return;
  }
  const uint32_t rank = pass->rank_of[producer];
  int added;
  if (rank == WEFT_RANK_NONE) {
    added = snprintf(buffer + *used, size - *used, " %s of stage %" PRIu32 ", which no rank computes",
                     action.op == WEFT_OP_F ? "F" : "B or I", producer);
  } else {
    added = snprintf(buffer + *used, size - *used, " %" PRIu32 "%s%" PRIu32 " of rank %" PRIu32,
                     producer, action.op == WEFT_OP_F ? "F" : "B or I ", action.microbatch, rank);
  }
  *used += added > 0 ? (size_t)added : 0;
  *used = *used < size ? *used : size - 1;
}

static enum weft_status fail_stuck(const struct transfer_pass *pass, struct weft_error *error) {
  enum { NAMED_MAX = 4 };
  const struct weft_program *program = pass->input->program;
  char waits[400] = "";
  size_t used = 0;
  uint32_t stuck = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const struct walker *walker = &pass->walkers[r];
    if (walker->next == walker->end) {
      continue;
    }
    if (stuck++ < NAMED_MAX) {
      char cell[64];
      const int added = snprintf(waits + used, sizeof waits - used, "; rank %" PRIu32 ": %s waits for",
                                 r, weft_action_format(walker->next, cell, sizeof cell));
      used += added > 0 ? (size_t)added : 0;
      used = used < sizeof waits ? used : sizeof waits - 1;
      for (uint32_t k = 0; k <= walker->next->parts; k++) {
        add_wait(pass, walker->next[k], waits, sizeof waits, &used);
      }
    }
  }
  return weft_fail(error, WEFT_ERR_INVALID, "'weft verify' shows the circle in the grid",
                   "the table cannot be executed: %" PRIu32 " of %" PRIu32
                   " ranks never get on%s%s",
                   stuck, program->rank_count, waits, stuck > NAMED_MAX ? "; ..." : "");
}

static bool is_stuck(const struct transfer_pass *pass) {
  for (uint32_t r = 0; r < pass->input->program->rank_count; r++) {
    if (pass->walkers[r].next < pass->walkers[r].end) {
      return true;
    }
  }
  return false;
}

/* ---- Setting up ---- */

static void start_walkers(struct transfer_pass *pass, struct weft_program *to) {
  const struct weft_program *from = pass->input->program;
  for (uint32_t r = 0; r < from->rank_count; r++) {
    struct walker *walker = &pass->walkers[r];
    *walker = (struct walker){.next = from->actions + from->row_begin[r],
                              .end = from->actions + from->row_begin[r + 1],
                              .out = to->actions + to->row_begin[r]};
    skip_cells(pass, walker);
    if (walker->next < walker->end) {
      weft_bits_insert(&pass->running, r);
    }
  }
}

/* A table that names far more (stage, microbatch) pairs than it has actions
 * is no schedule, and its bit maps would be out of proportion. */
static enum weft_status check_density(const struct weft_program *program,
                                      struct weft_error *error) {
  const uint64_t pairs = (uint64_t)program->stage_count * program->microbatch_count;
  if (pairs <= 64 * program->action_count + 65536) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_INVALID, "'weft verify' tells which numbers are out of range",
                   "%" PRIu32 " stages x %" PRIu32 " microbatches are named by only %" PRIu64
                   " actions: this is no complete table",
                   program->stage_count, program->microbatch_count, program->action_count);
}

static enum weft_status run(struct transfer_pass *pass, struct weft_program **out,
                            struct weft_error *error) {
  struct weft_program *lowered;
  read_rows(pass);
  WEFT_TRY(check_one_rank_per_stage(pass, error));
  count_transfers(pass);
  WEFT_TRY(weft_program_allocate(pass->input->allocator, pass->input->program->rank_count,
                                 pass->row_sizes, &lowered, error));
  start_walkers(pass, lowered);
  go_round(pass);
  if (is_stuck(pass)) {
    weft_program_destroy(lowered);
    return fail_stuck(pass, error);
  }
  weft_program_seal_like(lowered, pass->input->program,
                         pass->transfers > 0 ? WEFT_LEVEL_COMMS : pass->input->program->level);
  *out = lowered;
  return WEFT_OK;
}

enum weft_status weft_pass_send_recv(const struct weft_pass_input *input, struct weft_program **out,
                                     struct weft_error *error) {
  const struct weft_program *program = input->program;
  const uint32_t n = program->stage_count, p = program->rank_count;
  WEFT_TRY(check_density(program, error));
  const uint64_t stage_words = (program->microbatch_count + 63u) / 64u;
  struct transfer_pass pass = {
      .input = input,
      .stage_count = n,
      .microbatch_count = program->microbatch_count,
      .stage_words = stage_words,
      .split_stage = n,
      .rank_of = weft_array_allocate(input->allocator, n, sizeof(uint32_t)),
      .results = weft_array_allocate_zero(input->allocator, n, sizeof(struct stage_results)),
      .activation_made = weft_array_allocate_zero(input->allocator, n * stage_words, 8),
      .gradient_made = weft_array_allocate_zero(input->allocator, n * stage_words, 8),
      .walkers = weft_array_allocate(input->allocator, p, sizeof(struct walker)),
      .row_sizes = weft_array_allocate_zero(input->allocator, p, sizeof(uint64_t))};
  enum weft_status status;
  if (weft_bits_init(&pass.running, input->allocator, p) && pass.rank_of != NULL &&
      pass.results != NULL && pass.activation_made != NULL && pass.gradient_made != NULL && pass.walkers != NULL &&
      pass.row_sizes != NULL) {
    status = run(&pass, out, error);
  } else {
    status = weft_fail_memory(error, n * stage_words * 8);
  }
  weft_array_free(input->allocator, pass.rank_of, n, sizeof(uint32_t));
  weft_array_free(input->allocator, pass.results, n, sizeof(struct stage_results));
  weft_array_free(input->allocator, pass.activation_made, n * stage_words, 8);
  weft_array_free(input->allocator, pass.gradient_made, n * stage_words, 8);
  weft_array_free(input->allocator, pass.walkers, p, sizeof(struct walker));
  weft_array_free(input->allocator, pass.row_sizes, p, sizeof(uint64_t));
  weft_bits_finish(&pass.running);
  return status;
}
