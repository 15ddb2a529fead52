/* Editable programs for tests (support_draft.h). Memory comes from the C
 * library and running out of it ends the test. */
#include "support_draft.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weft_action draft_action(enum weft_op op, uint32_t stage, uint32_t microbatch) {
  return (struct weft_action){
      .op = (uint8_t)op, .parts = 0, .stage = (uint16_t)stage, .microbatch = microbatch};
}

static bool goes_up(struct weft_action transfer) {
  return transfer.op == WEFT_OP_SEND_F || transfer.op == WEFT_OP_RECV_B;
}

struct weft_action draft_transfer(enum weft_op op, uint32_t stage, uint32_t other,
                                  uint32_t microbatch) {
  struct weft_action action = draft_action(op, stage, microbatch);
  assert(goes_up(action) ? other > stage : other < stage);
  action.skip = (uint8_t)(goes_up(action) ? other - stage - 1 : stage - other - 1);
  return action;
}

uint32_t draft_other(struct weft_action transfer) {
  return goes_up(transfer) ? transfer.stage + 1u + transfer.skip
                           : transfer.stage - 1u - transfer.skip;
}

struct weft_action draft_partner(struct weft_action transfer) {
  static const uint8_t partners[WEFT_OP_COUNT] = {[WEFT_OP_SEND_F] = WEFT_OP_RECV_F,
                                                  [WEFT_OP_RECV_F] = WEFT_OP_SEND_F,
                                                  [WEFT_OP_SEND_B] = WEFT_OP_RECV_B,
                                                  [WEFT_OP_RECV_B] = WEFT_OP_SEND_B};
  return draft_transfer((enum weft_op)partners[transfer.op], draft_other(transfer), transfer.stage,
                        transfer.microbatch);
}

void draft_set_graph(struct draft *draft, const struct weft_graph *graph) {
  struct weft_graph *old = draft->graph;
  draft->graph = weft_graph_hold(graph);
  weft_graph_destroy(old);
}

void draft_reset(struct draft *draft, uint32_t rank_count) {
  assert(rank_count <= DRAFT_RANKS_MAX);
  draft->rank_count = rank_count;
  draft_set_graph(draft, NULL);
  for (uint32_t rank = 0; rank < DRAFT_RANKS_MAX; rank++) {
    draft->rows[rank].count = 0;
  }
}

void draft_finish(struct draft *draft) {
  for (uint32_t rank = 0; rank < DRAFT_RANKS_MAX; rank++) {
    free(draft->rows[rank].records);
  }
  weft_graph_destroy(draft->graph);
  memset(draft, 0, sizeof *draft);
}

static void row_reserve(struct draft_row *row, size_t count) {
  if (row->count + count <= row->capacity) {
    return;
  }
  row->capacity = (row->count + count) * 2 + 16;
  row->records = realloc(row->records, row->capacity * sizeof *row->records);
  assert(row->records != NULL);
}

void draft_insert(struct draft *draft, uint32_t rank, size_t index,
                  const struct weft_action *records, size_t count) {
  struct draft_row *row = &draft->rows[rank];
  assert(rank < draft->rank_count && index <= row->count);
  if (count == 0) { /* `records` may be NULL */
    return;
  }
  row_reserve(row, count);
  memmove(row->records + index + count, row->records + index,
          (row->count - index) * sizeof *records);
  memcpy(row->records + index, records, count * sizeof *records);
  row->count += count;
}

void draft_append(struct draft *draft, uint32_t rank, struct weft_action action) {
  struct draft_row *row = &draft->rows[rank];
  assert(rank < draft->rank_count);
  row_reserve(row, 1);
  row->records[row->count++] = action;
}

void draft_remove(struct draft *draft, uint32_t rank, size_t index, size_t count) {
  struct draft_row *row = &draft->rows[rank];
  assert(rank < draft->rank_count && index + count <= row->count);
  memmove(row->records + index, row->records + index + count,
          (row->count - index - count) * sizeof *row->records);
  row->count -= count;
}

void draft_move(struct draft *draft, uint32_t rank, size_t from, size_t count, size_t to) {
  struct weft_action taken[256];
  assert(count <= sizeof taken / sizeof taken[0]);
  assert(to <= from || to >= from + count);
  memcpy(taken, draft->rows[rank].records + from, count * sizeof taken[0]);
  draft_remove(draft, rank, from, count);
  draft_insert(draft, rank, to > from ? to - count : to, taken, count);
}

void draft_copy(struct draft *draft, const struct weft_program *program) {
  draft_reset(draft, program->rank_count);
  draft_set_graph(draft, program->graph);
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    const uint64_t begin = program->row_begin[rank];
    draft_insert(draft, rank, 0, program->actions + begin,
                 (size_t)(program->row_begin[rank + 1] - begin));
  }
}

struct weft_program *draft_build(const struct draft *draft) {
  uint64_t sizes[DRAFT_RANKS_MAX];
  size_t total = 0;
  for (uint32_t rank = 0; rank < draft->rank_count; rank++) {
    sizes[rank] = draft->rows[rank].count;
    total += draft->rows[rank].count;
  }
  struct weft_action *actions = malloc((total + 1) * sizeof *actions);
  assert(actions != NULL);
  size_t at = 0;
  for (uint32_t rank = 0; rank < draft->rank_count; rank++) {
    const struct draft_row *row = &draft->rows[rank];
    if (row->count > 0) {
      memcpy(actions + at, row->records, row->count * sizeof *actions);
    }
    at += row->count;
  }
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  if (weft_program_create(NULL, draft->rank_count, sizes, actions, &program, &error) != WEFT_OK ||
      weft_program_set_graph(program, draft->graph, &error) != WEFT_OK) {
    fprintf(stderr, "draft_build: %s\n", error.message);
    abort();
  }
  free(actions);
  return program;
}

size_t draft_cell_records(const struct draft *draft, uint32_t rank, size_t index) {
  return draft_records(&draft->rows[rank].records[index]);
}

uint64_t draft_step(const struct draft *draft, struct draft_site site) {
  uint64_t step = 0;
  size_t index = 0;
  while (index + draft_cell_records(draft, site.rank, index) <= site.index) {
    index += draft_cell_records(draft, site.rank, index);
    step++;
  }
  return step;
}

size_t draft_cell_begin(const struct draft *draft, struct draft_site site) {
  size_t index = 0;
  while (index + draft_cell_records(draft, site.rank, index) <= site.index) {
    index += draft_cell_records(draft, site.rank, index);
  }
  return index;
}

bool draft_find(const struct draft *draft, struct weft_action action, struct draft_site *site) {
  for (uint32_t rank = 0; rank < draft->rank_count; rank++) {
    const struct draft_row *row = &draft->rows[rank];
    for (size_t index = 0; index < row->count; index++) {
      const struct weft_action *record = &row->records[index];
      if (record->op == action.op && record->stage == action.stage &&
          record->microbatch == action.microbatch && record->skip == action.skip) {
        *site = (struct draft_site){.rank = rank, .index = index};
        return true;
      }
    }
  }
  return false;
}

const struct weft_action *draft_at(const struct draft *draft, struct draft_site site) {
  assert(site.rank < draft->rank_count && site.index < draft->rows[site.rank].count);
  return &draft->rows[site.rank].records[site.index];
}
