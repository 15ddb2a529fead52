/* Actions and programs as text, spelled from the op table. */
#include <assert.h>
#include <string.h>

#include <weft/ir.h>

#include "ir/action.h"

static size_t put_text(char *buffer, const char *text) {
  const size_t size = strlen(text);
  memcpy(buffer, text, size);
  return size;
}

static size_t put_number(char *buffer, uint32_t number) {
  char digits[11];
  size_t first = sizeof digits - 1;
  digits[first] = '\0';
  do {
    digits[--first] = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0);
  return put_text(buffer, digits + first);
}

/* Largest: a bracket, 5 digits, 11 letters, 8 digits, an arrow, 5 digits, and the end of an overlap. */
enum { PIECE_SIZE = 48 };

/* Record k of a cell, with what is around it in an overlap. Returns its length; no NUL ends it. */
static size_t put_piece(const struct weft_action *cell, uint32_t k, char piece[PIECE_SIZE]) {
  const struct weft_action *action = cell + k;
  const struct weft_op_info *info = weft_op_info((enum weft_op)action->op);
  size_t used = put_text(piece, k == 0 ? "" : k == 1 ? "(" : ";");
  used += put_number(piece + used, action->stage);
  used += put_text(piece + used, info->text);
  used += info->has_microbatch ? put_number(piece + used, action->microbatch) : 0;
  if (action->skip > 0) { /* a record that is no header of an overlap: a SEND or RECV */
    used += put_text(piece + used, weft_op_in(action->op, WEFT_OPS_SEND) ? ">" : "<");
    used += put_number(piece + used, weft_transfer_other(*action));
  }
  used += put_text(piece + used, k > 0 && k == cell->parts ? ")OVERLAP_F_B" : "");
  assert(used < PIECE_SIZE);
  return used;
}

static bool has_pieces(const struct weft_action *cell) {
  assert(cell != NULL && cell->op < WEFT_OP_COUNT);
  return cell->op != WEFT_OP_IDLE;
}

void weft_action_print(const struct weft_action *action, struct weft_text *text) {
  const uint32_t parts = weft_cell_parts(action);
  char piece[PIECE_SIZE];
  for (uint32_t k = parts > 0; has_pieces(action) && k <= parts; k++) {
    weft_text_append(text, piece, put_piece(action, k, piece));
  }
}

char *weft_action_format(const struct weft_action *action, char *buffer, size_t size) {
  const uint32_t parts = weft_cell_parts(action);
  char piece[PIECE_SIZE];
  size_t used = 0;
  assert(size >= 8);
  for (uint32_t k = parts > 0; has_pieces(action) && k <= parts; k++) {
    const size_t wanted = put_piece(action, k, piece), room = size - used - 1;
    memcpy(buffer + used, piece, wanted < room ? wanted : room);
    if (wanted > room) {
      memcpy(buffer + size - 4, "...", 4);
      return buffer;
    }
    used += wanted;
  }
  buffer[used] = '\0';
  return buffer;
}

static void print_row(const struct weft_program *program, uint32_t rank, struct weft_text *text) {
  const uint64_t begin = program->row_begin[rank], end = program->row_begin[rank + 1];
  if (end == begin || (end == begin + 1 && program->actions[begin].op == WEFT_OP_IDLE)) {
    weft_text_add(text, "\"\""); /* a blank line at the end would be no rank */
  }
  for (uint64_t i = begin; i < end; i += weft_cell_records(&program->actions[i])) {
    if (i > begin) {
      weft_text_append(text, ",", 1);
    }
    weft_action_print(&program->actions[i], text);
  }
  weft_text_append(text, "\n", 1);
}

/* "#graph,0>1,0>2F": the edges; an F where no gradient comes back. Nothing of a chain. */
static void print_graph(const struct weft_graph *graph, struct weft_text *text) {
  const uint32_t count = weft_graph_told_edges(graph);
  for (uint32_t e = 0; e < count; e++) {
    weft_text_add(text, e == 0 ? "#graph," : ",");
    weft_text_add_number(text, graph->edges[e].from);
    weft_text_append(text, ">", 1);
    weft_text_add_number(text, graph->edges[e].to);
    if (!graph->edges[e].gradient) {
      weft_text_append(text, "F", 1);
    }
  }
  weft_text_add(text, count > 0 ? "\n" : "");
}

bool weft_program_rank_acts(const struct weft_program *program, uint32_t rank) {
  assert(program != NULL && rank < program->rank_count);
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
    if (program->actions[i].op != WEFT_OP_IDLE) {
      return true;
    }
  }
  return false;
}

enum { RANKS_NAMED_MAX = 8 };

void weft_program_note(const struct weft_program *program, struct weft_text *text) {
  assert(program != NULL && text != NULL);
  uint32_t count = 0, named = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    count += !weft_program_rank_acts(program, r);
  }
  if (count == 0) {
    return;
  }
  weft_text_add(text, count == 1 ? "rank" : "ranks");
  for (uint32_t r = 0; r < program->rank_count && named < RANKS_NAMED_MAX; r++) {
    if (!weft_program_rank_acts(program, r)) {
      const char *between = named == 0 ? " " : named + 1 == count ? " and " : ", ";
      weft_text_add(text, between);
      weft_text_add_number(text, r);
      named++;
    }
  }
  if (named < count) {
    weft_text_add(text, " and ");
    weft_text_add_number(text, count - named);
    weft_text_add(text, " more");
  }
  weft_text_add(text, count == 1 ? " has no action" : " have no action");
}

void weft_program_print(const struct weft_program *program, struct weft_text *text) {
  assert(program != NULL && text != NULL);
  print_graph(program->graph, text);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    print_row(program, r, text);
  }
}
