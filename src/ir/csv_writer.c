/* Actions and programs as text, spelled from the op table. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <weft/ir.h>

#include "ir/action.h"

/* The way of the data. */
static const char *arrow(const struct weft_action *action) {
  return weft_op_in(action->op, WEFT_OPS_SEND) ? ">" : "<";
}

static void print_record(const struct weft_action *action, struct weft_text *text) {
  const struct weft_op_info *info = weft_op_info((enum weft_op)action->op);
  weft_text_add_number(text, action->stage);
  weft_text_add(text, info->text);
  if (info->has_microbatch) {
    weft_text_add_number(text, action->microbatch);
  }
  if (action->skip > 0) { /* a record that is no header of an overlap: a SEND or RECV */
    weft_text_append(text, arrow(action), 1);
    weft_text_add_number(text, weft_transfer_other(*action));
  }
}

void weft_action_print(const struct weft_action *action, struct weft_text *text) {
  assert(action != NULL && action->op < WEFT_OP_COUNT);
  if (action->op == WEFT_OP_IDLE) {
    return;
  }
  if (action->op != WEFT_OP_OVERLAP_F_B) {
    print_record(action, text);
    return;
  }
  weft_text_append(text, "(", 1);
  for (uint32_t k = 1; k <= action->parts; k++) {
    if (k > 1) {
      weft_text_append(text, ";", 1);
    }
    print_record(action + k, text);
  }
  weft_text_append(text, ")", 1);
  weft_text_add(text, weft_op_info(WEFT_OP_OVERLAP_F_B)->text);
}

static int format_record(const struct weft_action *action, char *buffer, size_t size) {
  const struct weft_op_info *info = weft_op_info((enum weft_op)action->op);
  if (action->skip > 0) {
    return snprintf(buffer, size, "%u%s%u%s%u", action->stage, info->text, action->microbatch,
                    arrow(action), weft_transfer_other(*action));
  }
  return info->has_microbatch
             ? snprintf(buffer, size, "%u%s%u", action->stage, info->text, action->microbatch)
             : snprintf(buffer, size, "%u%s", action->stage, info->text);
}

char *weft_action_format(const struct weft_action *action, char *buffer, size_t size) {
  assert(size > 0);
  /* Largest record: 5 digits, 11 letters, 8 digits, an arrow, 5 digits. */
  char piece[32];
  size_t used = 0;
  buffer[0] = '\0';
  if (action->op == WEFT_OP_IDLE) {
    return buffer;
  }
  const uint32_t records = weft_cell_records(action);
  for (uint32_t k = records > 1 ? 1 : 0; k < records; k++) {
    (void)format_record(action + k, piece, sizeof piece);
    const char *before = records == 1 ? "" : k == 1 ? "(" : ";";
    const char *after = records == 1 || k + 1 < records ? "" : ")OVERLAP_F_B";
    const int added = snprintf(buffer + used, size - used, "%s%s%s", before, piece, after);
    if (added < 0 || (size_t)added >= size - used) {
      memcpy(buffer + size - 4, "...", 4);
      return buffer;
    }
    used += (size_t)added;
  }
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

/* "#graph,0>1,0>2F": the edges; an F where no gradient comes back. */
static void print_graph(const struct weft_graph *graph, struct weft_text *text) {
  weft_text_add(text, "#graph");
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    weft_text_append(text, ",", 1);
    weft_text_add_number(text, graph->edges[e].from);
    weft_text_append(text, ">", 1);
    weft_text_add_number(text, graph->edges[e].to);
    if (!graph->edges[e].gradient) {
      weft_text_append(text, "F", 1);
    }
  }
  weft_text_append(text, "\n", 1);
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
  if (!weft_graph_is_chain(program->graph)) {
    print_graph(program->graph, text);
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    print_row(program, r, text);
  }
}
