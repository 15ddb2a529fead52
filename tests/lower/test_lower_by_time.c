/* SEND and RECV in the order of time, against the definition, instant by instant: at every instant
 * the cells that end publish what they made, rank by rank, and then ranks begin cells whose inputs are
 * made. On all schedules, on random tables of random graphs, and on tables with cells exchanged, of
 * which some cannot be executed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "ir/action.h"
#include "support_memory.h"
#include "support_random_graph.h"

enum { GRAPHS = 2000, RANKS_MAX = 8, STAGES_MAX = 64, MICROBATCHES_MAX = 16 };

struct plain_rank {
  uint64_t at;      /* record of the next cell */
  uint64_t running; /* record of the cell that it is in */
  uint32_t left;    /* units of it; 0: none */
};

struct plain {
  const struct weft_program *table;
  uint32_t rank_of[STAGES_MAX];
  bool made[2][STAGES_MAX][MICROBATCHES_MAX];
  struct plain_rank ranks[RANKS_MAX];
  struct draft rows;
};

/* ---- The definition ---- */

static uint32_t units_of(struct weft_action action) {
  switch (action.op) {
    case WEFT_OP_F:
    case WEFT_OP_I:
    case WEFT_OP_W: return 1;
    case WEFT_OP_B: return 2;
    default: return 0;
  }
}

/* Whether stage `from` makes what a forward, or a gradient, of stage `to` takes. */
static bool feeds(const struct plain *plain, bool gradient, uint32_t from, uint32_t to) {
  const struct weft_graph *graph = plain->table->graph;
  if (graph == NULL) {
    return gradient ? from == to + 1 : from + 1 == to;
  }
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    if (gradient ? edge->gradient && edge->from == to && edge->to == from
                 : edge->from == from && edge->to == to) {
      return true;
    }
  }
  return false;
}

static bool is_ready(const struct plain *plain, struct weft_action action) {
  const bool gradient = action.op == WEFT_OP_B || action.op == WEFT_OP_I;
  if (action.op != WEFT_OP_F && !gradient) {
    return true;
  }
  for (uint32_t s = 0; s < plain->table->stage_count; s++) {
    if (feeds(plain, gradient, s, action.stage) && !plain->made[gradient][s][action.microbatch]) {
      return false;
    }
  }
  return true;
}

static void publish(struct plain *plain, uint32_t rank, struct weft_action action) {
  const bool gradient = action.op == WEFT_OP_B || action.op == WEFT_OP_I;
  if (action.op != WEFT_OP_F && !gradient) {
    return;
  }
  plain->made[gradient][action.stage][action.microbatch] = true;
  for (uint32_t s = 0; s < plain->table->stage_count; s++) {
    if (feeds(plain, gradient, action.stage, s) && plain->rank_of[s] != rank) {
      const struct weft_action send = draft_transfer(gradient ? WEFT_OP_SEND_B : WEFT_OP_SEND_F,
                                                     action.stage, s, action.microbatch);
      draft_append(&plain->rows, rank, send);
      draft_append(&plain->rows, plain->rank_of[s], draft_partner(send));
    }
  }
}

/* Whether the rank began a cell. */
static bool begin_cell(struct plain *plain, uint32_t r) {
  struct plain_rank *rank = &plain->ranks[r];
  const struct weft_action *cell = &plain->table->actions[rank->at];
  if (rank->left > 0 || rank->at == plain->table->row_begin[r + 1]) {
    return false;
  }
  for (uint32_t k = 0; k < draft_records(cell); k++) {
    if (!is_ready(plain, cell[k])) {
      return false;
    }
  }
  for (uint32_t k = 0; k < draft_records(cell); k++) {
    const bool left_out = cell[k].op == WEFT_OP_REDUCE_GRAD || cell[k].op == WEFT_OP_IDLE;
    if (!left_out) { /* which some tables have, and lowering not */
      draft_append(&plain->rows, r, cell[k]);
    }
    rank->left += units_of(cell[k]);
  }
  rank->running = rank->at;
  rank->at += draft_records(cell);
  return true;
}

/* Whether every row comes to its end. */
static bool define(struct plain *plain, const struct weft_program *table) {
  assert_true(table->rank_count <= RANKS_MAX && table->stage_count <= STAGES_MAX &&
              table->microbatch_count <= MICROBATCHES_MAX);
  *plain = (struct plain){.table = table, .rows = plain->rows};
  (void)weft_placement_infer(table, plain->rank_of);
  draft_reset(&plain->rows, table->rank_count);
  for (uint32_t r = 0; r < table->rank_count; r++) {
    plain->ranks[r].at = table->row_begin[r];
  }
  for (bool busy = true; busy;) {
    busy = false;
    for (uint32_t r = 0; r < table->rank_count; r++) {
      struct plain_rank *rank = &plain->ranks[r];
      if (rank->left > 0 && --rank->left == 0) {
        const struct weft_action *cell = &table->actions[rank->running];
        for (uint32_t k = 0; k < draft_records(cell); k++) {
          publish(plain, r, cell[k]);
        }
      }
    }
    for (uint32_t r = 0; r < table->rank_count; r++) {
      while (begin_cell(plain, r)) {
      }
      busy = busy || plain->ranks[r].left > 0;
    }
  }
  for (uint32_t r = 0; r < table->rank_count; r++) {
    if (plain->ranks[r].at < table->row_begin[r + 1]) {
      return false;
    }
  }
  return true;
}

/* ---- Comparing ---- */

struct tally {
  uint32_t executed, stuck;
};

static void check(struct plain *plain, const struct weft_program *table, struct tally *tally) {
  const struct weft_lower_options options = {
      .communicate = true, .by_time = true, .unshard_window = 1};
  struct weft_program *program = NULL;
  struct weft_error error;
  const enum weft_status status = weft_lower(NULL, table, &options, &program, &error);
  if (!define(plain, table)) {
    assert_int_equal(status, WEFT_ERR_INVALID);
    assert_non_null(strstr(error.message, "cannot be executed"));
    tally->stuck++;
    return;
  }
  if (status != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  for (uint32_t r = 0; r < table->rank_count; r++) {
    const struct draft_row *row = &plain->rows.rows[r];
    assert_true(row->count == program->row_begin[r + 1] - program->row_begin[r]);
    assert_memory_equal(row->records, &program->actions[program->row_begin[r]],
                        row->count * sizeof *row->records);
  }
  weft_program_destroy(program);
  tally->executed++;
}

/* Neighbours in rows exchange places. */
static void shuffle(struct weft_program *table, struct weft_random *random) {
  for (uint32_t k = weft_random_below(random, 5); k > 0; k--) {
    const uint32_t r = weft_random_below(random, table->rank_count);
    const uint64_t begin = table->row_begin[r], length = table->row_begin[r + 1] - begin;
    const uint64_t at = length < 2 ? 0 : begin + weft_random_below(random, (uint32_t)length - 1);
    bool overlap = length < 2;
    for (uint64_t i = begin; i < begin + length; i++) {
      overlap = overlap || table->actions[i].parts > 0;
    }
    if (!overlap) {
      const struct weft_action action = table->actions[at];
      table->actions[at] = table->actions[at + 1];
      table->actions[at + 1] = action;
    }
  }
  table->known_hash = 0;
}

static void schedules(void **state) {
  (void)state;
  struct plain *plain = calloc(1, sizeof *plain);
  struct weft_random random = {.state = 31};
  struct tally tally = {0};
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    for (uint32_t trial = 0; trial < 120; trial++) {
      const struct weft_shape shape = {.ranks = 1 + trial % 5, .microbatches = 1 + trial % 13};
      struct weft_program *table = NULL;
      if (weft_generate(NULL, weft_schedule_at(k)->name, &shape, &table, NULL) == WEFT_OK &&
          table->level == WEFT_LEVEL_COMPUTE) {
        if (trial % 2 == 1) {
          shuffle(table, &random);
        }
        check(plain, table, &tally);
      }
      weft_program_destroy(table);
    }
  }
  print_message("%u tables, and %u that cannot be executed\n", tally.executed, tally.stuck);
  assert_true(tally.executed >= 300 && tally.stuck >= 20);
  draft_finish(&plain->rows);
  free(plain);
}

static void graphs(void **state) {
  (void)state;
  struct plain *plain = calloc(1, sizeof *plain);
  struct weft_random random = {.state = 32};
  struct draft draft = {.rank_count = 0};
  struct tally tally = {0};
  for (uint32_t k = 0; k < GRAPHS; k++) {
    const struct random_graph_shape shape = random_graph_shape(&random, 2 + k % 7);
    struct weft_graph *graph = random_graph(&random, &shape);
    uint32_t rank_of[STAGES_MAX];
    random_graph_table(&random, graph, 2 + k % 3, 1 + k % 4, k % 2 == 0, rank_of, &draft);
    struct weft_program *table = draft_build(&draft);
    if (k % 3 > 0) {
      shuffle(table, &random);
    }
    check(plain, table, &tally);
    weft_program_destroy(table);
    weft_graph_destroy(graph);
  }
  print_message("%u tables, and %u that cannot be executed\n", tally.executed, tally.stuck);
  assert_true(tally.executed >= GRAPHS / 2 && tally.stuck >= GRAPHS / 20);
  draft_finish(&draft);
  draft_finish(&plain->rows);
  free(plain);
}

static void memory_runs_out_anywhere(void **state) {
  (void)state;
  const struct weft_shape shape = {.ranks = 3, .microbatches = 4};
  const struct weft_lower_options options = {
      .communicate = true, .by_time = true, .unshard_window = 1};
  struct weft_program *table = NULL;
  struct weft_error error;
  assert_int_equal(weft_generate(NULL, "1F1B", &shape, &table, &error), WEFT_OK);
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t fail_at = 1; status == WEFT_ERR_MEMORY; fail_at++) {
    struct weft_program *program = NULL;
    struct test_memory memory;
    test_memory_init(&memory);
    memory.fail_at = fail_at;
    status = weft_lower(&memory.allocator, table, &options, &program, &error);
    assert_true(status == WEFT_OK || status == WEFT_ERR_MEMORY);
    weft_program_destroy(program);
    assert_int_equal(memory.blocks, 0);
  }
  weft_program_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(schedules), cmocka_unit_test(graphs),
                                     cmocka_unit_test(memory_runs_out_anywhere)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
