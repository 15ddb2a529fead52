/* Pass send_recv: puts SEND and RECV between the ranks.
 *
 * The order is PyTorch's: go round the ranks in ascending order, again and
 * again; a rank takes its next action when its input is there, at most one per
 * round; the SEND goes behind the action that made the data, and the RECV at
 * once to the end of the receiver's row so far. On every pair of ranks sends
 * and receives are therefore in the same order on both sides, and the program
 * completes even when every send blocks until its receive.
 *
 * A RECV is placed the moment its data is made, so "the input is there" is the
 * same as "the producing action has been taken", whether on this rank or
 * another: a bit per stage, microbatch and direction. Ranks that cannot go on
 * leave the round until something arrives for them; so the cost is that of the
 * actions, not of rounds times ranks. Joining again behind the present rank
 * means this round, before it the next: the same order as asking every rank.
 *
 * In a round a result may pass through many ranks, so rounds are not times. With by_time the machine
 * (ir/machine.h) says when each result is made, and results are published in that order: SEND and
 * RECV are placed when a cell ends, before the cells that begin then. Here, too, both get their places
 * at once, so the program completes with blocking sends. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include <weft/support.h>

#include "base/bits.h"
#include "ir/pairs.h"
#include "ir/program.h"
#include "ir/timed_machine.h"
#include "lower/passes.h"

/* A rank on its way through its row. */
struct row {
  const struct weft_action *next;
  const struct weft_action *end;
  struct weft_action *out;
};

/* The results of one kind that a stage makes, how many stages take them, and the rank of those:
 * WEFT_RANK_NONE where they stay on the rank or no rank does, of several the last one. */
struct results {
  uint64_t count;
  uint32_t takers;
  uint32_t to;
};

/* Where a stage lives, and what it makes. */
struct stage {
  uint32_t rank;
  struct results activations;
  struct results gradients;
};

struct transfer_pass {
  const struct weft_pass_input *input;
  const struct weft_graph *graph; /* NULL: a chain */
  uint32_t stage_count;
  uint32_t microbatch_count;
  uint64_t stage_words;      /* words per stage in the bit maps */
  struct stage *stages;      /* [stage] */
  uint64_t *activation_made; /* bit [stage][microbatch]: F taken */
  uint64_t *gradient_made;   /* bit [stage][microbatch]: B or I taken */
  struct row *rows;          /* [rank] */
  uint64_t *row_sizes;       /* [rank] */
  struct weft_bits running;  /* ranks worth asking */
  uint64_t transfers;
  uint32_t split_stage; /* a stage that two ranks compute, or stage_count */
};

/* Reads off the placement, and counts what stays of each row and what each
 * stage makes. */
static void read_rows(struct transfer_pass *pass) {
  const struct weft_program *program = pass->input->program;
  for (uint32_t s = 0; s < pass->stage_count; s++) {
    pass->stages[s].rank = WEFT_RANK_NONE;
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    uint64_t kept = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const struct weft_action action = program->actions[i];
      kept += !weft_op_in(action.op, pass->input->skip);
      if (!weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
        continue;
      }
      struct stage *stage = &pass->stages[action.stage];
      stage->activations.count += action.op == WEFT_OP_F;
      stage->gradients.count += weft_op_in(action.op, WEFT_OPS_GRADIENT);
      if (stage->rank != r) {
        pass->split_stage = stage->rank == WEFT_RANK_NONE ? pass->split_stage : action.stage;
        stage->rank = r;
      }
    }
    pass->row_sizes[r] = kept;
  }
}

static enum weft_status check_one_rank_per_stage(const struct transfer_pass *pass,
                                                 struct weft_error *error) {
  assert(pass->split_stage <= pass->stage_count);
  if (pass->split_stage == pass->stage_count) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_INVALID,
                   "verify the table to see the actions that are misplaced",
                   "stage %" PRIu32 " is computed by more than one rank (rank %" PRIu32
                   " is one of them); a stage lives on one rank",
                   pass->split_stage, pass->stages[pass->split_stage].rank);
}

/* The other rank that the result of a stage goes to for a consumer, or WEFT_RANK_NONE. */
static inline uint32_t rank_to(const struct transfer_pass *pass, uint32_t stage,
                               uint32_t consumer) {
  assert(stage < pass->stage_count && consumer < pass->stage_count);
  const uint32_t from = pass->stages[stage].rank;
  const uint32_t to = pass->stages[consumer].rank;
  return from == WEFT_RANK_NONE || from == to ? WEFT_RANK_NONE : to;
}

/* Finds who takes an op's results. A transfer is one more action here and one more there, which
 * makes the sizes of the rows to come exact. */
static void link_stage(struct transfer_pass *pass, enum weft_op op, uint32_t stage,
                       struct results *results) {
  const struct weft_action action = weft_action_make(op, stage, 0);
  results->takers = weft_action_output_count(pass->graph, action, pass->stage_count);
  results->to = WEFT_RANK_NONE;
  for (uint32_t k = 0; k < results->takers; k++) {
    const uint32_t to = rank_to(pass, stage, weft_action_output_at(pass->graph, action, k));
    if (to != WEFT_RANK_NONE) {
      results->to = to;
      pass->row_sizes[pass->stages[stage].rank] += results->count;
      pass->row_sizes[to] += results->count;
      pass->transfers += results->count;
    }
  }
}

static inline uint64_t *made_word(const struct transfer_pass *pass, struct weft_action action,
                                  uint32_t stage) {
  uint64_t *map = action.op == WEFT_OP_F ? pass->activation_made : pass->gradient_made;
  return &map[stage * pass->stage_words + (action.microbatch >> 6)];
}

static inline bool is_made(const void *context, struct weft_action action, uint32_t producer) {
  const struct transfer_pass *pass = context;
  return ((*made_word(pass, action, producer) >> (action.microbatch & 63)) & 1) != 0;
}

WEFT_GRAPH_INLINE bool is_ready(const struct transfer_pass *pass, const struct weft_graph *graph,
                                struct weft_action action) {
  return weft_action_inputs_all(graph, action, pass->stage_count, is_made, pass);
}

/* Sends what an action made to a stage of another rank, and wakes that rank, which may have waited
 * for it. */
WEFT_GRAPH_INLINE void send_to(struct transfer_pass *pass, const struct weft_graph *graph,
                               struct row *from, struct weft_action action, uint32_t consumer,
                               uint32_t rank) {
  assert(rank < pass->input->program->rank_count && consumer < pass->stage_count);
  struct row *to = &pass->rows[rank];
  const bool forward = action.op == WEFT_OP_F;
  *from->out++ = weft_action_transfer_in(graph, forward ? WEFT_OP_SEND_F : WEFT_OP_SEND_B,
                                         action.stage, consumer, action.microbatch);
  *to->out++ = weft_action_transfer_in(graph, forward ? WEFT_OP_RECV_F : WEFT_OP_RECV_B, consumer,
                                       action.stage, action.microbatch);
  if (to->next < to->end) {
    weft_bits_insert(&pass->running, rank);
  }
}

/* Marks what an action made, and sends it where it is needed on another rank: over all edges,
 * ascending. */
WEFT_GRAPH_INLINE void publish(struct transfer_pass *pass, const struct weft_graph *graph,
                               struct row *from, struct weft_action action) {
  if (!weft_op_in(action.op, WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT)) {
    return;
  }
  *made_word(pass, action, action.stage) |= UINT64_C(1) << (action.microbatch & 63);
  const struct stage *stage = &pass->stages[action.stage];
  const struct results *results = action.op == WEFT_OP_F ? &stage->activations : &stage->gradients;
  if (results->to == WEFT_RANK_NONE) {
    return;
  }
  if (results->takers == 1) {
    send_to(pass, graph, from, action, weft_action_output_at(graph, action, 0), results->to);
    return;
  }
  for (uint32_t k = 0; k < results->takers; k++) {
    const uint32_t consumer = weft_action_output_at(graph, action, k);
    const uint32_t rank = rank_to(pass, action.stage, consumer);
    if (rank != WEFT_RANK_NONE) {
      send_to(pass, graph, from, action, consumer, rank);
    }
  }
}

enum { PREFETCH_RECORDS = 32 };

/* No other cell of a table has parts: it has no transfers, so none skips stages. */
WEFT_GRAPH_INLINE bool take_overlap(struct transfer_pass *pass, const struct weft_graph *graph,
                                    struct row *row) {
  const struct weft_action *cell = row->next;
  for (uint32_t k = 1; k <= cell->parts; k++) {
    if (!is_ready(pass, graph, cell[k])) {
      return false;
    }
  }
  row->next = cell + weft_cell_records(cell);
  for (uint32_t k = 0; k <= cell->parts; k++) {
    *row->out++ = cell[k];
  }
  for (uint32_t k = 1; k <= cell->parts; k++) {
    publish(pass, graph, row, cell[k]);
  }
  return true;
}

/* Takes the rank's next cell if it is ready; false if the rank has to wait. */
WEFT_GRAPH_INLINE bool take_cell(struct transfer_pass *pass, const struct weft_graph *graph,
                                 struct row *row) {
  const struct weft_action *cell = row->next;
  /* Two streams per rank are more than the hardware follows by itself. */
  __builtin_prefetch(cell + PREFETCH_RECORDS);
  __builtin_prefetch(row->out + PREFETCH_RECORDS, 1);
  if (cell->parts > 0) {
    return take_overlap(pass, graph, row);
  }
  if (!is_ready(pass, graph, *cell)) {
    return false;
  }
  *row->out++ = *cell;
  row->next = cell + 1;
  publish(pass, graph, row, *cell);
  return true;
}

static void skip_cells(const struct transfer_pass *pass, struct row *row) {
  while (row->next < row->end && weft_op_in(row->next->op, pass->input->skip)) {
    row->next++;
  }
}

/* One round after the other, until no rank is running. */
WEFT_GRAPH_INLINE void go_round(struct transfer_pass *pass, const struct weft_graph *graph) {
  for (;;) {
    uint32_t rank = weft_bits_next(&pass->running, 0);
    if (rank == WEFT_BITS_NONE) {
      return;
    }
    for (; rank != WEFT_BITS_NONE; rank = weft_bits_next(&pass->running, rank + 1)) {
      struct row *row = &pass->rows[rank];
      const bool taken = take_cell(pass, graph, row);
      skip_cells(pass, row);
      if (!taken || row->next == row->end) {
        weft_bits_remove(&pass->running, rank);
      }
    }
  }
}

/* ---- By time ---- */

/* A cell begins, or an action has made what another one needs. */
struct moment {
  int64_t time;
  bool begins;
  uint32_t rank;
  uint32_t record;
};

/* In order of time, results before begins, then of ranks and rows. */
static int compare_moments(const void *a, const void *b) {
  const struct moment *x = a, *y = b;
  return x->time != y->time       ? (x->time > y->time) - (x->time < y->time)
         : x->begins != y->begins ? (int)x->begins - (int)y->begins
                                  : (x->record > y->record) - (x->record < y->record);
}

/* When a cell begins, on a rank that is free from `begin` on; messages take no time. */
static int64_t find_begin(const struct transfer_pass *pass,
                          const struct weft_timed_machine *machine, const struct weft_action *cell,
                          int64_t begin) {
  for (uint32_t part = 0; part <= cell->parts; part++) {
    const uint32_t count = weft_action_input_count(pass->graph, cell[part], pass->stage_count);
    for (uint32_t k = 0; k < count; k++) {
      const int64_t made_at = *weft_timed_input(machine, cell[part], k, false);
      begin = made_at > begin ? made_at : begin;
    }
  }
  return begin;
}

static uint64_t list_moments(const struct transfer_pass *pass,
                             const struct weft_timed_machine *machine, struct moment *moments) {
  const struct weft_program *program = pass->input->program;
  uint64_t count = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    int64_t time = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1];) {
      const struct weft_action *cell = &program->actions[i];
      if (!weft_op_in(cell->op, pass->input->skip)) {
        time = find_begin(pass, machine, cell, time);
        moments[count++] = (struct moment){time, true, r, (uint32_t)i};
        time += weft_cell_work(cell);
      }
      for (const uint64_t end = i + weft_cell_records(cell); i < end; i++) {
        if (weft_action_output_count(pass->graph, program->actions[i], pass->stage_count) > 0) {
          moments[count++] = (struct moment){time, false, r, (uint32_t)i};
        }
      }
    }
  }
  return count;
}

static void place_by_time(struct transfer_pass *pass, const struct moment *moments,
                          uint64_t count) {
  for (uint64_t k = 0; k < count; k++) {
    const struct weft_action *cell = &pass->input->program->actions[moments[k].record];
    struct row *row = &pass->rows[moments[k].rank];
    if (!moments[k].begins) {
      publish(pass, pass->graph, row, *cell);
      continue;
    }
    row->next = cell + weft_cell_records(cell);
    assert(row->next <= row->end);
    for (; cell < row->next; cell++) {
      *row->out++ = *cell;
    }
    skip_cells(pass, row);
  }
}

/* Of a table that cannot be executed: where its ranks are, and what they have made. */
static void record_stuck(struct transfer_pass *pass, const struct weft_timed_machine *machine) {
  const struct weft_program *program = pass->input->program;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < machine->ranks[r].at; i++) {
      const struct weft_action action = program->actions[i];
      if (weft_op_in(action.op, WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT)) {
        *made_word(pass, action, action.stage) |= UINT64_C(1) << (action.microbatch & 63);
      }
    }
    pass->rows[r].next = program->actions + machine->ranks[r].at;
  }
}

static enum weft_status go_by_time(struct transfer_pass *pass, struct weft_error *error) {
  const struct weft_program *program = pass->input->program;
  WEFT_SCOPED_ARENA arena = {.allocator = pass->input->allocator};
  uint32_t *rank_of = weft_arena_allocate(&arena, pass->stage_count, sizeof *rank_of);
  struct moment *moments = weft_arena_allocate(&arena, 2 * program->action_count, sizeof *moments);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t s = 0; s < pass->stage_count; s++) {
    rank_of[s] = pass->stages[s].rank;
  }
  const struct weft_placed_program placed = {.program = program,
                                             .stage_count = pass->stage_count,
                                             .microbatch_count = pass->microbatch_count,
                                             .rank_of = rank_of};
  struct weft_timed_machine machine;
  enum weft_status status = weft_timed_init(
      &machine,
      &(struct weft_timed_options){
          .allocator = pass->input->allocator, .placed = &placed, .timing = &weft_unit_timing},
      error);
  if (status == WEFT_OK) {
    (void)weft_timed_run(&machine, NULL); /* it allocates nothing where no waits are kept */
    if (weft_timed_end(&machine) < 0) {
      record_stuck(pass, &machine);
    } else {
      const uint64_t count = list_moments(pass, &machine, moments);
      qsort(moments, count, sizeof *moments, compare_moments);
      place_by_time(pass, moments, count);
    }
  }
  weft_timed_finish(&machine);
  return status;
}

/* ---- A table that cannot be executed ---- */

static void add_wait(const struct transfer_pass *pass, struct weft_action action, uint32_t producer,
                     struct weft_text *text) {
  const uint32_t rank = pass->stages[producer].rank;
  if (rank == WEFT_RANK_NONE) {
    weft_text_addf(text, " %s of stage %" PRIu32 ", which no rank computes",
                   action.op == WEFT_OP_F ? "F" : "B or I", producer);
  } else if (action.op == WEFT_OP_F) {
    weft_text_addf(text, " %" PRIu32 "F%" PRIu32 " of rank %" PRIu32, producer, action.microbatch,
                   rank);
  } else {
    weft_text_addf(text, " %" PRIu32 "B%" PRIu32 " or %" PRIu32 "I%" PRIu32 " of rank %" PRIu32,
                   producer, action.microbatch, producer, action.microbatch, rank);
  }
}

static void add_waits(const struct transfer_pass *pass, struct weft_action action,
                      struct weft_text *text) {
  const uint32_t count = weft_action_input_count(pass->graph, action, pass->stage_count);
  bool first = true;
  for (uint32_t k = 0; k < count; k++) {
    const uint32_t producer = weft_action_input_at(pass->graph, action, k);
    if (!is_made(pass, action, producer)) {
      weft_text_add(text, first ? "" : ",");
      add_wait(pass, action, producer, text);
      first = false;
    }
  }
}

static enum weft_status fail_stuck(const struct transfer_pass *pass, struct weft_error *error) {
  enum { NAMED_MAX = 4 };
  const struct weft_program *program = pass->input->program;
  WEFT_SCOPED_TEXT waits = {.allocator = pass->input->allocator};
  uint32_t stuck = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const struct row *row = &pass->rows[r];
    if (row->next == row->end || ++stuck > NAMED_MAX) {
      continue;
    }
    char cell[64];
    weft_text_addf(&waits, "; rank %" PRIu32 ": %s waits for", r,
                   weft_action_format(row->next, cell, sizeof cell));
    for (uint32_t k = 0; k <= row->next->parts; k++) {
      add_waits(pass, row->next[k], &waits);
    }
  }
  WEFT_TRY(weft_text_status(&waits, error));
  return weft_fail(
      error, WEFT_ERR_INVALID, "verify the table to see the cycle",
      "the table cannot be executed: %" PRIu32 " of %" PRIu32 " ranks never get on%.400s%s", stuck,
      program->rank_count, waits.data != NULL ? waits.data : "", stuck > NAMED_MAX ? "; ..." : "");
}

static bool is_stuck(const struct transfer_pass *pass) {
  for (uint32_t r = 0; r < pass->input->program->rank_count; r++) {
    if (pass->rows[r].next < pass->rows[r].end) {
      return true;
    }
  }
  return false;
}

/* ---- Setting up ---- */

static void start_rows(struct transfer_pass *pass, struct weft_program *to) {
  const struct weft_program *from = pass->input->program;
  for (uint32_t r = 0; r < from->rank_count; r++) {
    struct row *row = &pass->rows[r];
    *row = (struct row){.next = from->actions + from->row_begin[r],
                        .end = from->actions + from->row_begin[r + 1],
                        .out = to->actions + to->row_begin[r]};
    skip_cells(pass, row);
    if (row->next < row->end) {
      weft_bits_insert(&pass->running, r);
    }
  }
}

static enum weft_status lower_rows(struct transfer_pass *pass, struct weft_program **out,
                                   struct weft_error *error) {
  struct weft_program *lowered;
  read_rows(pass);
  WEFT_TRY(check_one_rank_per_stage(pass, error));
  for (uint32_t s = 0; s < pass->stage_count; s++) {
    struct stage *stage = &pass->stages[s];
    link_stage(pass, WEFT_OP_F, s, &stage->activations);
    link_stage(pass, WEFT_OP_B, s, &stage->gradients);
  }
  WEFT_TRY(weft_program_allocate(pass->input->allocator, pass->input->program->rank_count,
                                 pass->row_sizes, &lowered, error));
  start_rows(pass, lowered);
  enum weft_status status = WEFT_OK;
  if (pass->input->by_time) {
    status = go_by_time(pass, error);
  } else {
    WEFT_TWICE(graph, pass->graph, go_round(pass, graph));
  }
  if (status != WEFT_OK || is_stuck(pass)) {
    weft_program_destroy(lowered);
    return status != WEFT_OK ? status : fail_stuck(pass, error);
  }
  weft_program_seal_like(lowered, pass->input->program,
                         pass->transfers > 0 ? WEFT_LEVEL_COMMS : pass->input->program->level);
  *out = lowered;
  return WEFT_OK;
}

enum weft_status weft_pass_send_recv(const struct weft_pass_input *input, struct weft_program **out,
                                     struct weft_error *error) {
  assert(input->program != NULL && out != NULL);
  const struct weft_program *program = input->program;
  assert(weft_program_is_sound(program));
  const uint32_t n = program->stage_count, p = program->rank_count;
  size_t pairs;
  WEFT_TRY(weft_pairs_count(program, &pairs, NULL, error)); /* guards the bit maps */
  const uint64_t stage_words = (program->microbatch_count + 63u) / 64u;
  WEFT_SCOPED_ARENA arena = {.allocator = input->allocator};
  struct transfer_pass pass = {
      .input = input,
      .graph = program->graph,
      .stage_count = n,
      .microbatch_count = program->microbatch_count,
      .stage_words = stage_words,
      .split_stage = n,
      .stages = weft_arena_allocate(&arena, n, sizeof *pass.stages),
      .activation_made = weft_arena_allocate(&arena, n * stage_words, sizeof(uint64_t)),
      .gradient_made = weft_arena_allocate(&arena, n * stage_words, sizeof(uint64_t)),
      .rows = weft_arena_allocate(&arena, p, sizeof *pass.rows),
      .row_sizes = weft_arena_allocate(&arena, p, sizeof *pass.row_sizes)};
  (void)weft_bits_init(&pass.running, &arena, p);
  WEFT_TRY(weft_arena_status(&arena, error));
  return lower_rows(&pass, out, error);
}
