/* The reader: CSV text to a program. Strict where the language is strict; the
 * tolerated spellings are listed at weft_program_parse() in weft/ir.h. The
 * first fault ends the reading, with line, column and cell.
 *
 * A row is read in one sweep, cell by cell, straight into the builder; nothing
 * else is allocated, so hostile input costs at most its own size. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/ir.h>
#include <weft/support.h>

#include "ir/graph_maker.h"
#include "ir/program_builder.h"

struct reader {
  const char *at;
  const char *end;
  const char *line_begin;
  const char *cell_begin;
  const char *name;
  uint64_t line;
  struct weft_program_builder builder;
  struct weft_graph *graph; /* of the row "#graph", if there is one */
  uint32_t stage_limit;     /* its stages, or all that there may be */
  struct weft_error *error;
};

/* ---- Faults ---- */

static const char *cell_end(const struct reader *reader) {
  const char *end = reader->cell_begin;
  while (end < reader->end && *end != ',' && *end != '\n') {
    end++;
  }
  const bool at_line_end = end == reader->end || *end == '\n';
  if (at_line_end && end > reader->cell_begin && end[-1] == '\r') {
    end--;
  }
  return end;
}

/* "file:line:column: " and what is wrong there. */
static enum weft_status fail_at(struct reader *reader, uint64_t column, enum weft_status status,
                                const char *hint, const char *what) {
  char name[128];
  weft_escape(name, sizeof name, reader->name, strlen(reader->name));
  (void)weft_fail(reader->error, status, hint, "%s:%" PRIu64 ":%" PRIu64 ": %s", name, reader->line,
                  column, what);
  if (reader->error != NULL) {
    reader->error->line = reader->line;
    reader->error->column = column;
  }
  return status;
}

/* The fault at `where`: "in cell 'x': expected ..., found ...". */
static enum weft_status fault(struct reader *reader, const char *where, enum weft_status status,
                              const char *expected, const char *hint) {
  char cell[96], byte[8] = "", found[32] = "the end of the cell", what[320];
  const char *end = cell_end(reader);
  weft_escape(cell, sizeof cell, reader->cell_begin, (size_t)(end - reader->cell_begin));
  if (where < end) {
    (void)snprintf(found, sizeof found, "'%s'", weft_escape(byte, sizeof byte, where, 1));
  }
  (void)snprintf(what, sizeof what, "in cell '%s': expected %s, found %s", cell, expected, found);
  return fail_at(reader, (uint64_t)(where - reader->line_begin) + 1, status, hint, what);
}

#define HINT_LANGUAGE "actions look like 0F1, 2SEND_F0, 3UNSHARD or (0F8;7B0)OVERLAP_F_B"
#define HINT_TABS \
  "cells are separated by commas; this looks like a file with tabs (TSV): save it as CSV"
#define HINT_SEMICOLONS \
  "cells are separated by commas; this looks like a file with semicolons: save it with commas"
#define HINT_EDGE                                                                          \
  "a transfer that skips stages names its other end: 2SEND_F0>5, 5RECV_F0<2, 5SEND_B0>2, " \
  "2RECV_B0<5"
#define HINT_GRAPH                                                                              \
  "the first row may list the edges between stages, from lower to higher: #graph,0>1,1>2,0>2; " \
  "0>2F is an edge without gradients"

/* ---- Pieces of a cell ---- */

static bool is_digit(const struct reader *reader) {
  return reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9';
}

static bool is_next(const struct reader *reader, char byte) {
  return reader->at < reader->end && *reader->at == byte;
}

static bool is_letter(const struct reader *reader) {
  return reader->at < reader->end &&
         ((*reader->at >= 'A' && *reader->at <= 'Z') || *reader->at == '_');
}

static void skip_blanks(struct reader *reader) {
  while (is_next(reader, ' ') || is_next(reader, '\t')) {
    reader->at++;
  }
}

static bool at_cell_end(const struct reader *reader) {
  if (reader->at == reader->end || *reader->at == ',' || *reader->at == '\n') {
    return true;
  }
  /* "\r" counts only as part of a line end, or at the very end of the text. */
  return *reader->at == '\r' && (reader->at + 1 == reader->end || reader->at[1] == '\n');
}

/* A number below `limit`; `what` names it in errors. */
static enum weft_status read_number(struct reader *reader, const char *what, uint32_t limit,
                                    uint32_t *number) {
  const char *begin = reader->at;
  char expected[80];
  if (!is_digit(reader)) {
    (void)snprintf(expected, sizeof expected, "a %s number", what);
    return fault(reader, reader->at, WEFT_ERR_FORMAT, expected, HINT_LANGUAGE);
  }
  uint32_t value = 0;
  while (is_digit(reader)) {
    value = value * 10 + (uint32_t)(*reader->at - '0');
    if (value >= limit) {
      if (reader->graph != NULL && limit == reader->stage_limit) { /* smaller than other limits */
        (void)snprintf(expected, sizeof expected,
                       "a stage of the row #graph, which has 0 to %" PRIu32, limit - 1);
        return fault(reader, begin, WEFT_ERR_FORMAT, expected, HINT_GRAPH);
      }
      (void)snprintf(expected, sizeof expected, "a %s number of at most %" PRIu32, what, limit - 1);
      return fault(reader, begin, WEFT_ERR_LIMIT, expected,
                   "numbers count from 0; the limits are listed in docs/language.md");
    }
    reader->at++;
  }
  *number = value;
  return WEFT_OK;
}

/* What may come between a stage and a microbatch. */
static bool is_plain(unsigned op) {
  const enum weft_op_kind kind = weft_op_info((enum weft_op)op)->kind;
  return kind != WEFT_KIND_IDLE && kind != WEFT_KIND_GROUP;
}

/* "one of F B I W ...", from the op table. */
static const char *list_ops(char *buffer, size_t size) {
  size_t used = (size_t)snprintf(buffer, size, "one of");
  for (unsigned k = 0; k < WEFT_OP_COUNT && used < size; k++) {
    if (is_plain(k)) {
      used +=
          (size_t)snprintf(buffer + used, size - used, " %s", weft_op_info((enum weft_op)k)->text);
    }
  }
  return buffer;
}

/* The longest run of letters is the op, so SEND_F is never read as S. */
static enum weft_status read_op(struct reader *reader, enum weft_op *op) {
  const char *begin = reader->at;
  while (is_letter(reader)) {
    reader->at++;
  }
  const size_t size = (size_t)(reader->at - begin);
  for (unsigned k = 0; k < WEFT_OP_COUNT; k++) {
    const char *text = weft_op_info((enum weft_op)k)->text;
    if (is_plain(k) && strlen(text) == size && memcmp(text, begin, size) == 0) {
      *op = (enum weft_op)k;
      return WEFT_OK;
    }
  }
  char expected[128];
  reader->at = begin;
  return fault(reader, begin, WEFT_ERR_FORMAT, list_ops(expected, sizeof expected), HINT_LANGUAGE);
}

/* The other stage of a SEND or RECV that is not between neighbours: ">5" or "<2". */
static enum weft_status read_other(struct reader *reader, struct weft_action *action) {
  const bool is_send = weft_op_info((enum weft_op)action->op)->kind == WEFT_KIND_SEND;
  const bool up = action->op == WEFT_OP_SEND_F || action->op == WEFT_OP_RECV_B;
  const char *begin = reader->at;
  if (*begin != (is_send ? '>' : '<')) {
    return fault(reader, begin, WEFT_ERR_FORMAT,
                 is_send ? "'>' before the stage that a SEND goes to"
                         : "'<' before the stage that a RECV comes from",
                 HINT_EDGE);
  }
  reader->at++;
  uint32_t other;
  WEFT_TRY(read_number(reader, "stage", reader->stage_limit, &other));
  if (up ? other <= action->stage : other >= action->stage) {
    return fault(reader, begin + 1, WEFT_ERR_FORMAT,
                 up ? "a higher stage than its own" : "a lower stage than its own", HINT_EDGE);
  }
  const uint32_t distance = up ? other - action->stage : action->stage - other;
  if (distance - 1 > WEFT_SKIP_MAX) {
    return fault(reader, begin + 1, WEFT_ERR_LIMIT, "a stage at most 256 from its own", HINT_EDGE);
  }
  action->skip = (uint8_t)(distance - 1);
  return WEFT_OK;
}

/* Today's spelling: stage op [microbatch [arrow stage]]. */
static enum weft_status read_plain(struct reader *reader, struct weft_action *action) {
  uint32_t stage, microbatch = 0;
  enum weft_op op = WEFT_OP_IDLE;
  WEFT_TRY(read_number(reader, "stage", reader->stage_limit, &stage));
  WEFT_TRY(read_op(reader, &op));
  if (weft_op_info(op)->has_microbatch) {
    WEFT_TRY(read_number(reader, "microbatch", WEFT_MICROBATCHES_MAX, &microbatch));
  }
  *action = weft_action_make(op, stage, microbatch);
  const bool is_transfer = weft_op_in(op, WEFT_OPS_SEND | WEFT_OPS_RECV);
  return is_transfer && (is_next(reader, '>') || is_next(reader, '<')) ? read_other(reader, action)
                                                                       : WEFT_OK;
}

/* The older spelling: F0_s2, a letter, the microbatch, "_s", the stage. */
static enum weft_status read_old(struct reader *reader, struct weft_action *action) {
  uint32_t stage, microbatch;
  enum weft_op op = WEFT_OP_IDLE;
  for (unsigned k = 0; k < WEFT_OP_COUNT; k++) {
    const struct weft_op_info *info = weft_op_info((enum weft_op)k);
    if (info->kind == WEFT_KIND_COMPUTE && info->text[0] == *reader->at) {
      op = (enum weft_op)k;
    }
  }
  if (op == WEFT_OP_IDLE) {
    return fault(reader, reader->at, WEFT_ERR_FORMAT, "an action", HINT_LANGUAGE);
  }
  reader->at++;
  WEFT_TRY(read_number(reader, "microbatch", WEFT_MICROBATCHES_MAX, &microbatch));
  if (reader->end - reader->at < 2 || memcmp(reader->at, "_s", 2) != 0) {
    return fault(reader, reader->at, WEFT_ERR_FORMAT, "'_s' and a stage number (F0_s2)",
                 HINT_LANGUAGE);
  }
  reader->at += 2;
  WEFT_TRY(read_number(reader, "stage", reader->stage_limit, &stage));
  *action = weft_action_make(op, stage, microbatch);
  return WEFT_OK;
}

static enum weft_status read_action(struct reader *reader, struct weft_action *action) {
  if (is_digit(reader)) {
    return read_plain(reader, action);
  }
  if (is_letter(reader)) {
    return read_old(reader, action);
  }
  const bool semicolon = reader->at == reader->cell_begin && is_next(reader, ';');
  return fault(reader, reader->at, WEFT_ERR_FORMAT, "an action",
               semicolon ? HINT_SEMICOLONS : HINT_LANGUAGE);
}

static enum weft_status expect(struct reader *reader, const char *token) {
  const size_t size = strlen(token);
  if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, token, size) != 0) {
    char expected[32];
    (void)snprintf(expected, sizeof expected, "'%s'", token);
    return fault(reader, reader->at, WEFT_ERR_FORMAT, expected, HINT_LANGUAGE);
  }
  reader->at += size;
  return WEFT_OK;
}

/* "(" action { ";" action } ")OVERLAP_F_B". The header is written first and
 * its part count put in at the end. */
static enum weft_status read_overlap(struct reader *reader) {
  struct weft_program_builder *builder = &reader->builder;
  const uint64_t header = builder->count;
  uint32_t parts = 0;
  weft_program_builder_add(builder, weft_action_overlap(0));
  reader->at++;
  for (;;) {
    struct weft_action part;
    skip_blanks(reader);
    const char *begin = reader->at;
    WEFT_TRY(read_action(reader, &part));
    if (++parts > UINT8_MAX) {
      return fault(reader, begin, WEFT_ERR_LIMIT, "at most 255 parts", HINT_LANGUAGE);
    }
    weft_program_builder_add(builder, part);
    skip_blanks(reader);
    if (!is_next(reader, ';')) {
      break;
    }
    reader->at++;
  }
  WEFT_TRY(expect(reader, ")"));
  WEFT_TRY(expect(reader, weft_op_info(WEFT_OP_OVERLAP_F_B)->text));
  if (builder->status == WEFT_OK) {
    builder->actions[header] = weft_action_overlap(parts);
  }
  return WEFT_OK;
}

/* A quote around a cell, as spreadsheets write it (RFC 4180); nothing that it holds has one. */
static bool open_quote(struct reader *reader) {
  skip_blanks(reader);
  const bool quoted = is_next(reader, '"');
  reader->at += quoted;
  skip_blanks(reader);
  return quoted;
}

static enum weft_status close_quote(struct reader *reader, bool quoted) {
  skip_blanks(reader);
  if (quoted) {
    WEFT_TRY(expect(reader, "\""));
    skip_blanks(reader);
  }
  return WEFT_OK;
}

static enum weft_status end_cell(struct reader *reader, const char *hint) {
  if (at_cell_end(reader)) {
    return WEFT_OK;
  }
  const bool tab = reader->at > reader->cell_begin && reader->at[-1] == '\t';
  return fault(reader, reader->at, WEFT_ERR_FORMAT, "',' or the end of the line",
               tab                  ? HINT_TABS
               : *reader->at == ';' ? HINT_SEMICOLONS
                                    : hint);
}

static enum weft_status read_cell(struct reader *reader) {
  reader->cell_begin = reader->at;
  const bool quoted = open_quote(reader);
  if (quoted ? is_next(reader, '"') : at_cell_end(reader)) {
    weft_program_builder_add(&reader->builder, weft_action_idle());
  } else if (is_next(reader, '(')) {
    WEFT_TRY(read_overlap(reader));
  } else {
    struct weft_action action;
    WEFT_TRY(read_action(reader, &action));
    weft_program_builder_add(&reader->builder, action);
  }
  WEFT_TRY(close_quote(reader, quoted));
  return end_cell(reader, HINT_LANGUAGE);
}

/* ---- Rows and the file ---- */

static void end_line(struct reader *reader) {
  reader->at += is_next(reader, '\r');
  reader->at += is_next(reader, '\n');
  reader->line++;
  reader->line_begin = reader->at;
}

/* Ends the row; one with a single empty cell, which is "", has no cell. */
static void end_row(struct weft_program_builder *builder, uint64_t begin) {
  if (builder->status == WEFT_OK && builder->count == begin + 1 &&
      builder->actions[begin].op == WEFT_OP_IDLE) {
    builder->count = begin;
  }
  weft_program_builder_end_row(builder);
}

/* Blank lines are ranks without actions if a row follows them; at the end they are none. */
static enum weft_status read_row(struct reader *reader, uint64_t *blank_lines) {
  struct weft_program_builder *builder = &reader->builder;
  reader->cell_begin = reader->at;
  skip_blanks(reader);
  if (at_cell_end(reader) && (reader->at == reader->end || *reader->at != ',')) {
    ++*blank_lines;
    end_line(reader);
    return WEFT_OK;
  }
  for (; *blank_lines > 0 && builder->status == WEFT_OK; --*blank_lines) {
    weft_program_builder_end_row(builder);
  }
  const uint64_t begin = builder->count;
  reader->at = reader->cell_begin;
  WEFT_TRY(read_cell(reader));
  while (is_next(reader, ',')) {
    reader->at++;
    WEFT_TRY(read_cell(reader));
  }
  end_line(reader);
  end_row(builder, begin);
  return WEFT_OK;
}

/* ---- The row "#graph" ---- */

static enum weft_status read_edge(struct reader *reader, struct weft_edge *edge) {
  uint32_t from, to;
  reader->cell_begin = reader->at;
  const bool quoted = open_quote(reader);
  WEFT_TRY(read_number(reader, "stage", WEFT_STAGES_MAX, &from));
  if (!is_next(reader, '>')) {
    return fault(reader, reader->at, WEFT_ERR_FORMAT, "'>' and the stage that uses it", HINT_GRAPH);
  }
  reader->at++;
  WEFT_TRY(read_number(reader, "stage", WEFT_STAGES_MAX, &to));
  *edge = weft_edge_make(from, to);
  edge->gradient = !is_next(reader, 'F');
  reader->at += !edge->gradient;
  WEFT_TRY(close_quote(reader, quoted));
  return end_cell(reader, HINT_GRAPH);
}

/* Where it is in the row; 1 for the row as a whole. */
static uint64_t edge_column(const struct reader *reader, uint32_t edge) {
  const char *at = reader->line_begin;
  for (uint32_t k = 0; edge != WEFT_EDGE_NONE && k <= edge; k++) {
    at = (const char *)memchr(at, ',', (size_t)(reader->end - at)) + 1;
  }
  return (uint64_t)(at - reader->line_begin) + 1;
}

static enum weft_status make_graph(struct reader *reader, const struct weft_edge *edges,
                                   uint32_t count) {
  uint32_t stages = 1;
  for (uint32_t e = 0; e < count; e++) {
    const uint32_t higher = edges[e].from > edges[e].to ? edges[e].from : edges[e].to;
    stages = higher + 1 > stages ? higher + 1 : stages;
  }
  struct weft_error why;
  uint32_t edge;
  const enum weft_status status = weft_graph_make(reader->builder.allocator, stages, edges, count,
                                                  NULL, &reader->graph, &edge, &why);
  reader->stage_limit = stages;
  return status == WEFT_OK
             ? WEFT_OK
             : fail_at(reader, edge_column(reader, edge), status, why.hint, why.message);
}

/* Empty cells up to the end of the row, which a spreadsheet adds to short ones. */
static bool skip_padding(struct reader *reader) {
  const char *begin = reader->at;
  while (reader->at < reader->end && memchr(", \t\"", *reader->at, 4) != NULL) {
    reader->at++;
  }
  if (at_cell_end(reader)) {
    return true;
  }
  reader->at = begin;
  return false;
}

static enum weft_status read_edges(struct reader *reader) {
  WEFT_SCOPED_ARENA arena = {.allocator = reader->builder.allocator};
  uint32_t room = 1, count = 0;
  for (const char *at = reader->at; at < reader->end && *at != '\n'; at++) {
    room += *at == ',' && room <= WEFT_EDGES_MAX;
  }
  struct weft_edge *edges = weft_arena_allocate(&arena, room, sizeof *edges);
  WEFT_TRY(weft_arena_status(&arena, reader->error));
  for (; !skip_padding(reader) && *reader->at == ','; count++) {
    reader->at++;
    WEFT_TRY(count == room
                 ? fault(reader, reader->at, WEFT_ERR_LIMIT, "at most 1048576 edges", HINT_GRAPH)
                 : read_edge(reader, &edges[count]));
  }
  return at_cell_end(reader)
             ? make_graph(reader, edges, count)
             : fault(reader, reader->at, WEFT_ERR_FORMAT, "',' and an edge", HINT_GRAPH);
}

static enum weft_status read_graph(struct reader *reader) {
  static const char name[] = "#graph";
  reader->cell_begin = reader->at;
  const bool quoted = reader->end - reader->at > 1 && *reader->at == '"' && reader->at[1] == '#';
  reader->at += quoted;
  if (!is_next(reader, '#')) {
    return WEFT_OK;
  }
  if ((size_t)(reader->end - reader->at) < strlen(name) ||
      memcmp(reader->at, name, strlen(name)) != 0) {
    return fault(reader, reader->at, WEFT_ERR_FORMAT, "an action", HINT_GRAPH);
  }
  reader->at += strlen(name);
  if (quoted) {
    WEFT_TRY(close_quote(reader, quoted));
  }
  WEFT_TRY(read_edges(reader));
  end_line(reader);
  return WEFT_OK;
}

static enum weft_status read_rows(struct reader *reader) {
  static const char byte_order_mark[] = "\xef\xbb\xbf";
  if (reader->end - reader->at >= 3 && memcmp(reader->at, byte_order_mark, 3) == 0) {
    reader->at += 3;
    reader->line_begin = reader->at;
  }
  WEFT_TRY(read_graph(reader));
  uint64_t blank_lines = 0;
  while (reader->at < reader->end && reader->builder.status == WEFT_OK) {
    WEFT_TRY(read_row(reader, &blank_lines));
  }
  if (reader->builder.row_count == 0 && reader->builder.status == WEFT_OK) {
    char name[128];
    return weft_fail(reader->error, WEFT_ERR_FORMAT,
                     "a table has a line for each rank, such as 0F0,0F1,0B0,0B1",
                     "%s: empty: expected a row of actions per rank",
                     weft_escape(name, sizeof name, reader->name, strlen(reader->name)));
  }
  return WEFT_OK;
}

enum weft_status weft_program_parse(const struct weft_allocator *allocator, const char *text,
                                    size_t size, const char *name, struct weft_program **out,
                                    struct weft_error *error) {
  WEFT_NEED(out, error);
  if (size > 0) {
    WEFT_NEED(text, error);
  }
  struct reader reader = {.at = text,
                          .end = text + size,
                          .line_begin = text,
                          .cell_begin = text,
                          .name = name != NULL ? name : "input",
                          .line = 1,
                          .stage_limit = WEFT_STAGES_MAX,
                          .error = error};
  /* A cell takes about six bytes; the builder grows or shrinks from there. */
  weft_program_builder_init(&reader.builder, allocator, size / 6 + 1, 16);
  enum weft_status status = read_rows(&reader);
  if (status < 0) {
    weft_program_builder_abandon(&reader.builder);
  } else {
    status = weft_program_builder_finish(&reader.builder, reader.graph, out, error);
  }
  weft_graph_destroy(reader.graph);
  return status;
}
