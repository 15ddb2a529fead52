/* The reader and the writer: parse(print(x)) = x on a million random programs;
 * every tolerated spelling; the exact place and expectation of every kind of
 * fault; the limits, from both sides and from far beyond. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/ir.h>

#include "support_csv.h"
#include "support_draft.h"
#include "support_random_program.h"

#if defined(__SANITIZE_ADDRESS__)
#define ROUND_TRIPS 200000u /* about memory; what is right the other build asks all of them */
#else
#define ROUND_TRIPS 1000000u
#endif

/* --- A million round trips -------------------------------------------------- */

/* What the random programs had in them; each must have occurred. */
struct features {
  uint32_t tables, programs, overlaps, bubbles, empty_rows, lone_bubbles, trailing_bubbles,
      empty_programs, largest_stage, largest_microbatch, full_overlaps, skips, largest_skips;
};

static void note_row(const struct draft_row *row, struct features *features) {
  const size_t count = row->count;
  const bool lone = count == 1 && row->records[0].op == WEFT_OP_IDLE;
  features->empty_rows += count == 0;
  features->lone_bubbles += lone;
  features->trailing_bubbles += count > 1 && row->records[count - 1].op == WEFT_OP_IDLE;
  for (size_t k = 0; k < count; k++) {
    const struct weft_action *action = &row->records[k];
    features->overlaps += draft_parts(action) > 0;
    features->full_overlaps += draft_parts(action) == 255;
    features->skips += action->op != WEFT_OP_OVERLAP_F_B && action->skip > 0;
    features->largest_skips += action->op != WEFT_OP_OVERLAP_F_B && action->skip == WEFT_SKIP_MAX;
    features->bubbles += action->op == WEFT_OP_IDLE;
    features->largest_stage += action->stage == WEFT_STAGES_MAX - 1;
    features->largest_microbatch += action->microbatch == WEFT_MICROBATCHES_MAX - 1;
  }
}

static void note(const struct draft *draft, const struct weft_program *program,
                 struct features *features) {
  features->tables += program->level == WEFT_LEVEL_COMPUTE;
  features->programs += program->level == WEFT_LEVEL_COMMS;
  features->empty_programs += program->action_count == 0;
  for (uint32_t rank = 0; rank < draft->rank_count; rank++) {
    note_row(&draft->rows[rank], features);
  }
}

static void assert_same(const struct weft_program *a, const struct weft_program *b) {
  assert_true(weft_program_equal(a, b));
  assert_true(weft_program_hash(a) == weft_program_hash(b));
  assert_int_equal(a->level, b->level);
  assert_int_equal(a->stage_count, b->stage_count);
  assert_int_equal(a->microbatch_count, b->microbatch_count);
}

/* Transfers that skip stages, where there is room for that. */
static void add_skips(struct weft_random *random, struct draft *draft) {
  for (uint32_t rank = 0; rank < draft->rank_count; rank++) {
    for (size_t k = 0; k < draft->rows[rank].count; k++) {
      struct weft_action *action = &draft->rows[rank].records[k];
      if (action->op < WEFT_OP_SEND_F || action->op > WEFT_OP_RECV_B) {
        continue;
      }
      action->skip =
          (uint8_t)(random_chance(random, 30) ? WEFT_SKIP_MAX : weft_random_below(random, 4));
      if (draft_other(*action) >= WEFT_STAGES_MAX) {
        action->skip = 0;
      }
    }
  }
}

static bool has_lone_bubble(const struct weft_program *program) {
  for (uint32_t r = 0; r < program->rank_count; r++) {
    if (program->row_begin[r + 1] == program->row_begin[r] + 1 &&
        program->actions[program->row_begin[r]].op == WEFT_OP_IDLE) {
      return true;
    }
  }
  return false;
}

static void random_round_trips(void **state) {
  (void)state;
  struct weft_random random = {.state = 1};
  struct features seen = {0};
  struct draft draft = {0};
  struct weft_text text = {0};
  for (uint32_t trip = 0; trip < ROUND_TRIPS; trip++) {
    struct weft_program *read = NULL;
    struct weft_error error = {0};
    random_rows(&random, 4, 6, &draft);
    if (trip % 4 == 0) {
      add_skips(&random, &draft);
    }
    struct weft_program *written = draft_build(&draft);
    text.size = 0;
    weft_program_print(written, &text);
    assert_int_equal(weft_text_status(&text, NULL), WEFT_OK);
    if (weft_program_parse(NULL, text.data, text.size, NULL, &read, &error) != WEFT_OK) {
      fail_msg("%s\n%s", error.message, text.data);
    }
    if (has_lone_bubble(written)) { /* read as a row without cells */
      char *again = csv_text(read);
      assert_string_equal(again, text.data);
      free(again);
    } else {
      assert_same(written, read);
    }
    note(&draft, written, &seen);
    weft_program_destroy(read);
    weft_program_destroy(written);
  }
  weft_text_finish(&text);
  draft_finish(&draft);
  const uint32_t *counts = &seen.tables;
  for (size_t k = 0; k < sizeof seen / sizeof *counts; k++) {
    assert_in_range(counts[k], 50 * (ROUND_TRIPS / 1000) / 1000, UINT32_MAX);
  }
}

/* --- Tolerated spellings ------------------------------------------------------ */

static const struct {
  const char *text;
  size_t size; /* 0: up to the NUL */
  const char *canonical;
} tolerated[] = {
    {"0F0\n", 0, "0F0\n"},
    {"0F0", 0, "0F0\n"},                 /* no last newline */
    {"0F0\r\n1F0\r\n", 0, "0F0\n1F0\n"}, /* CRLF */
    {"0F0\r\n1F0\r", 0, "0F0\n1F0\n"},   /* CRLF, cut in its middle */
    {"0F0\r\n1F0", 0, "0F0\n1F0\n"},     /* CRLF, no last newline */
    {"0F0\n1F0\r\n", 0, "0F0\n1F0\n"},   /* mixed */
    {"\xef\xbb\xbf"
     "0F0,0B0\n",
     0, "0F0,0B0\n"}, /* byte-order mark */
    {"\xef\xbb\xbf"
     "0F0\r\n",
     0, "0F0\n"},                          /* ... and CRLF */
    {"\"\",0F0,\"\"\n", 0, ",0F0,\n"},     /* quoted empty cells */
    {"\"\"\n", 0, "\"\"\n"},               /* a rank without actions */
    {"\"0F0\",\"0B0\"\n", 0, "0F0,0B0\n"}, /* quoted cells */
    {" \" 0F0 \" ,\"(0F1;3B0)OVERLAP_F_B\"\r\n", 0, "0F0,(0F1;3B0)OVERLAP_F_B\n"},
    {"\"#graph\",\"0>2\",\"1>2F\",\"\"\n\"0F0\"\n", 0, "#graph,0>2,1>2F\n0F0\n"},
    {" \"\" ,0F0\n", 0, ",0F0\n"},       /* ... with blanks */
    {" 0F0 ,\t1F0\t\n", 0, "0F0,1F0\n"}, /* blanks around an action */
    {"( 0F1 ; 3B0 )OVERLAP_F_B\n", 0, "(0F1;3B0)OVERLAP_F_B\n"},
    {" (0F1;3B0)OVERLAP_F_B \r\n", 0, "(0F1;3B0)OVERLAP_F_B\n"},
    {"F0_s2\n", 0, "2F0\n"}, /* the older spelling */
    {"F0_s2,B1_s0,I3_s4,W5_s6\n", 0, "2F0,0B1,4I3,6W5\n"},
    {"(F0_s2;B1_s0)OVERLAP_F_B\n", 0, "(2F0;0B1)OVERLAP_F_B\n"},
    {"F0_s2,2B0\n", 0, "2F0,2B0\n"}, /* both spellings in one file */
    {"00F00\n", 0, "0F0\n"},         /* leading zeros */
    {"0F0,\n", 0, "0F0,\n"},         /* a bubble at the end */
    {",\n", 0, ",\n"},               /* two bubbles */
    {" , \n", 0, ",\n"},
    {"\n0F0\n", 0, "\"\"\n0F0\n"},     /* a blank line in front is a rank */
    {"  \t\n0F0\n", 0, "\"\"\n0F0\n"}, /* ... of blanks */
    {"\r\n0F0\n", 0, "\"\"\n0F0\n"},
    {"0F0\n\n1F0\n", 0, "0F0\n\"\"\n1F0\n"},             /* ... and one between rows */
    {"0F0\n\n \t\n\r\n", 0, "0F0\n"},                    /* those at the end are none */
    {"\n\n0F0\n\"\"\n\n", 0, "\"\"\n\"\"\n0F0\n\"\"\n"}, /* several */
    {"(0F0)OVERLAP_F_B\n", 0, "(0F0)OVERLAP_F_B\n"},     /* one part: for verify to judge */
    {"(0F0;1F0;2B0)OVERLAP_F_B\n", 0, "(0F0;1F0;2B0)OVERLAP_F_B\n"},
    {"3UNSHARD,3RESHARD,3REDUCE_GRAD\n", 0, "3UNSHARD,3RESHARD,3REDUCE_GRAD\n"},
    {"0TIE_GRAD, 7TIE_GRAD\n", 0, "0TIE_GRAD,7TIE_GRAD\n"},
    {"0SEND_F1,2RECV_F3,4SEND_B5,6RECV_B7\n", 0, "0SEND_F1,2RECV_F3,4SEND_B5,6RECV_B7\n"},
};

static void tolerated_spellings(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof tolerated / sizeof tolerated[0]; k++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    const char *input = tolerated[k].text;
    const size_t size = tolerated[k].size != 0 ? tolerated[k].size : strlen(input);
    if (weft_program_parse(NULL, input, size, "spelling", &program, &error) != WEFT_OK) {
      fail_msg("'%s': %s", input, error.message);
    }
    char *text = csv_text(program);
    assert_string_equal(text, tolerated[k].canonical);
    struct weft_program *again = csv_program(text);
    assert_same(program, again);
    weft_program_destroy(again);
    free(text);
    weft_program_destroy(program);
  }
}

/* --- Faults ---------------------------------------------------------------------- */

#define ANY_OP                                                              \
  "one of F B I W SEND_F RECV_F SEND_B RECV_B UNSHARD RESHARD REDUCE_GRAD " \
  "TIE_GRAD"
#define CELL_END "',' or the end of the line"
#define TEN_8 "0F0,0F0,0F0,0F0,0F0,0F0,0F0,0F0,"

static const struct {
  const char *text;
  uint64_t line, column;
  const char *cell;
  const char *expected;
  const char *found;
} faults[] = {
    /* trailing junk, which PyTorch takes */
    {"2F0junk\n", 1, 4, "2F0junk", CELL_END, "'j'"},
    {"2FOO\n", 1, 2, "2FOO", ANY_OP, "'F'"},
    {"0F0 0F1\n", 1, 5, "0F0 0F1", CELL_END, "'0'"},
    {"0F0;0F1\n", 1, 4, "0F0;0F1", CELL_END, "';'"},
    {"0F0.5\n", 1, 4, "0F0.5", CELL_END, "'.'"},
    {"0F-1\n", 1, 3, "0F-1", "a microbatch number", "'-'"},
    {"0F0)\n", 1, 4, "0F0)", CELL_END, "')'"},
    {"3UNSHARD0\n", 1, 9, "3UNSHARD0", CELL_END, "'0'"},
    /* missing pieces */
    {"0F\n", 1, 3, "0F", "a microbatch number", "the end of the cell"},
    {"0\n", 1, 2, "0", ANY_OP, "the end of the cell"},
    {"0F,0F1\n", 1, 3, "0F", "a microbatch number", "the end of the cell"},
    {"F0\n", 1, 3, "F0", "'_s' and a stage number (F0_s2)", "the end of the cell"},
    {"F0_\n", 1, 3, "F0_", "'_s' and a stage number (F0_s2)", "'_'"},
    {"F0_s\n", 1, 5, "F0_s", "a stage number", "the end of the cell"},
    {"F_s2\n", 1, 2, "F_s2", "a microbatch number", "'_'"},
    {"F0_S2\n", 1, 3, "F0_S2", "'_s' and a stage number (F0_s2)", "'_'"},
    {"F0_s2x\n", 1, 6, "F0_s2x", CELL_END, "'x'"},
    /* wrong ops */
    {"0f0\n", 1, 2, "0f0", ANY_OP, "'f'"},
    {"0X0\n", 1, 2, "0X0", ANY_OP, "'X'"},
    {"0SEND0\n", 1, 2, "0SEND0", ANY_OP, "'S'"},
    {"0SEND_W0\n", 1, 2, "0SEND_W0", ANY_OP, "'S'"},
    {"0OVERLAP_F_B\n", 1, 2, "0OVERLAP_F_B", ANY_OP, "'O'"},
    {"X0_s2\n", 1, 1, "X0_s2", "an action", "'X'"},
    {"SEND_F0_s2\n", 1, 1, "SEND_F0_s2", "an action", "'S'"},
    {"_\n", 1, 1, "_", "an action", "'_'"},
    /* signs, quotes and other characters */
    {"-1F0\n", 1, 1, "-1F0", "an action", "'-'"},
    {"+1F0\n", 1, 1, "+1F0", "an action", "'+'"},
    {"#comment\n", 1, 1, "#comment", "an action", "'#'"},
    {"\"0F0\n", 1, 5, "\"0F0", "'\"'", "the end of the cell"},
    {"\"0F0,0F1\"\n", 1, 5, "\"0F0", "'\"'", "the end of the cell"},
    {"\"0F0\"\"\n", 1, 6, "\"0F0\"\"", CELL_END, "'\"'"},
    {"0F0\"\n", 1, 4, "0F0\"", CELL_END, "'\"'"},
    {"\"\n", 1, 2, "\"", "an action", "the end of the cell"},
    {"\"\"0F0\n", 1, 3, "\"\"0F0", CELL_END, "'0'"},
    {"0F0\r,0F1\n", 1, 4, "0F0\\x0d", CELL_END, "'\\x0d'"},
    {"0F0\r\r\n", 1, 4, "0F0\\x0d", CELL_END, "'\\x0d'"},
    {"0\x1b[31mF0\n", 1, 2, "0\\x1b[31mF0", ANY_OP, "'\\x1b'"},
    {"\xff\n", 1, 1, "\\xff", "an action", "'\\xff'"},
    /* overlaps */
    {"()OVERLAP_F_B\n", 1, 2, "()OVERLAP_F_B", "an action", "')'"},
    {"(0F0\n", 1, 5, "(0F0", "')'", "the end of the cell"},
    {"(0F0;\n", 1, 6, "(0F0;", "an action", "the end of the cell"},
    {"(0F0;)OVERLAP_F_B\n", 1, 6, "(0F0;)OVERLAP_F_B", "an action", "')'"},
    {"(0F0;1B0)\n", 1, 10, "(0F0;1B0)", "'OVERLAP_F_B'", "the end of the cell"},
    {"(0F0;1B0)OVERLAP\n", 1, 10, "(0F0;1B0)OVERLAP", "'OVERLAP_F_B'", "'O'"},
    {"(0F0;1B0)OVERLAP_F_B2\n", 1, 21, "(0F0;1B0)OVERLAP_F_B2", CELL_END, "'2'"},
    {"(0F0,1B0)OVERLAP_F_B\n", 1, 5, "(0F0", "')'", "the end of the cell"},
    {"((0F0;1B0)OVERLAP_F_B;2F0)OVERLAP_F_B\n", 1, 2, "((0F0;1B0)OVERLAP_F_B;2F0)OVERLAP_F_B",
     "an action", "'('"},
    {"0F0(1F0)OVERLAP_F_B\n", 1, 4, "0F0(1F0)OVERLAP_F_B", CELL_END, "'('"},
    /* places other than the first cell */
    {"0F0,0F1,0Q2\n", 1, 10, "0Q2", ANY_OP, "'Q'"},
    {"0F0\n1F0\n2F\n", 3, 3, "2F", "a microbatch number", "the end of the cell"},
    {"0F0\r\n1F0\r\n2F\r\n", 3, 3, "2F", "a microbatch number", "the end of the cell"},
    {"\n\n\n,,  x\n", 4, 5, "  x", "an action", "'x'"},
    {"\xef\xbb\xbf"
     "0F\n",
     1, 3, "0F", "a microbatch number", "the end of the cell"},
    {TEN_8 TEN_8 "0F\n", 1, 67, "0F", "a microbatch number", "the end of the cell"},
};

static void assert_fault(enum weft_status status, enum weft_status wanted,
                         const struct weft_error *error, uint64_t line, uint64_t column) {
  char place[64];
  assert_int_equal(status, wanted);
  assert_int_equal(error->status, wanted);
  (void)snprintf(place, sizeof place, "bad.csv:%" PRIu64 ":%" PRIu64 ": ", line, column);
  if (strncmp(error->message, place, strlen(place)) != 0) {
    fail_msg("expected a message that begins with %s: %s", place, error->message);
  }
  assert_int_equal(error->line, line);
  assert_int_equal(error->column, column);
  assert_true(error->hint[0] != '\0');
}

static void exact_places_of_faults(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof faults / sizeof faults[0]; k++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    char wanted[512];
    const char *text = faults[k].text;
    const enum weft_status status =
        weft_program_parse(NULL, text, strlen(text), "bad.csv", &program, &error);
    assert_null(program); /* outputs are written only on success */
    assert_fault(status, WEFT_ERR_FORMAT, &error, faults[k].line, faults[k].column);
    (void)snprintf(wanted, sizeof wanted, "in cell '%s': expected %s, found %s", faults[k].cell,
                   faults[k].expected, faults[k].found);
    if (strstr(error.message, wanted) == NULL) {
      fail_msg("expected '... %s': %s", wanted, error.message);
    }
  }
}

/* No rows at all is a fault without a place; so is a text with a NUL. */
static void nothing_to_read(void **state) {
  (void)state;
  static const char *const empty[] = {"", "\xef\xbb\xbf"};
  for (size_t k = 0; k < 2; k++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    assert_int_equal(
        weft_program_parse(NULL, empty[k], strlen(empty[k]), "bad.csv", &program, &error),
        WEFT_ERR_FORMAT);
    assert_null(program);
    assert_non_null(strstr(error.message, "bad.csv: empty"));
    assert_int_equal(error.line, 0);
    assert_int_equal(error.column, 0);
  }
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  assert_fault(weft_program_parse(NULL, "0F0\0,0F1\n", 9, "bad.csv", &program, &error),
               WEFT_ERR_FORMAT, &error, 1, 4);
  assert_non_null(strstr(error.message, "'\\x00'"));
}

/* What a file says never reaches a terminal as it is, nor does its name. */
static void messages_are_escaped(void **state) {
  (void)state;
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  static const char text[] = "0F0,\x1b]0;title\x07\n";
  assert_int_equal(
      weft_program_parse(NULL, text, sizeof text - 1, "na\x1bme\n.csv", &program, &error),
      WEFT_ERR_FORMAT);
  for (const char *at = error.message; *at != '\0'; at++) {
    assert_in_range((unsigned char)*at, 0x20, 0x7e);
  }
  assert_non_null(strstr(error.message, "na\\x1bme\\x0a.csv:1:5"));
}

/* An error is optional. */
static void faults_without_error_struct(void **state) {
  (void)state;
  struct weft_program *program = NULL;
  assert_int_equal(weft_program_parse(NULL, "0F", 2, NULL, &program, NULL), WEFT_ERR_FORMAT);
  assert_int_equal(weft_program_parse(NULL, "", 0, NULL, &program, NULL), WEFT_ERR_FORMAT);
  assert_int_equal(weft_program_parse(NULL, "70000F0", 7, NULL, &program, NULL), WEFT_ERR_LIMIT);
  assert_null(program);
}

/* --- Limits ---------------------------------------------------------------------- */

#define TEN_30 "1000000000000000000000000000000"

static const char *const far_beyond[] = {
    "2147483646",           "2147483647",           "2147483648", /* 2^31 */
    "4294967295",           "4294967296",           "4294967297", /* 2^32 */
    "9223372036854775807",  "9223372036854775808",                /* 2^63 */
    "18446744073709551615", "18446744073709551616", TEN_30,
};

/* `before` and `after` go around the number, which begins at `column`. */
static void try_number(const char *before, const char *number, const char *after, bool good,
                       const char *largest) {
  char text[128], expected[64];
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  (void)snprintf(text, sizeof text, "%s%s%s\n", before, number, after);
  const enum weft_status status =
      weft_program_parse(NULL, text, strlen(text), "bad.csv", &program, &error);
  if (good) {
    assert_int_equal(status, WEFT_OK);
    weft_program_destroy(program);
    return;
  }
  assert_null(program);
  assert_fault(status, WEFT_ERR_LIMIT, &error, 1, strlen(before) + 1);
  (void)snprintf(expected, sizeof expected, "number of at most %s", largest);
  assert_non_null(strstr(error.message, expected));
}

static void try_limit(const char *before, const char *after, uint64_t limit) {
  char number[32], largest[32];
  (void)snprintf(largest, sizeof largest, "%" PRIu64, limit - 1);
  for (uint64_t value = limit - 2; value <= limit + 1; value++) {
    (void)snprintf(number, sizeof number, "%" PRIu64, value);
    try_number(before, number, after, value < limit, largest);
  }
  for (size_t k = 0; k < sizeof far_beyond / sizeof far_beyond[0]; k++) {
    try_number(before, far_beyond[k], after, false, largest);
  }
}

static void limits_of_numbers(void **state) {
  (void)state;
  try_limit("", "F0", WEFT_STAGES_MAX);
  try_limit("0F0,", "UNSHARD", WEFT_STAGES_MAX);
  try_limit("F0_s", "", WEFT_STAGES_MAX);
  try_limit("(0F0;", "B0)OVERLAP_F_B", WEFT_STAGES_MAX);
  try_limit("0F", "", WEFT_MICROBATCHES_MAX);
  try_limit("0SEND_B", "", WEFT_MICROBATCHES_MAX);
  try_limit("W", "_s0", WEFT_MICROBATCHES_MAX);
  try_limit("(0F", ";1B0)OVERLAP_F_B", WEFT_MICROBATCHES_MAX);
}

static char *repeat(const char *before, const char *piece, size_t times, const char *after) {
  const size_t size = strlen(piece);
  char *text = malloc(strlen(before) + size * times + strlen(after) + 1);
  assert_non_null(text);
  memcpy(text, before, strlen(before));
  char *at = text + strlen(before);
  for (size_t k = 0; k < times; k++, at += size) {
    memcpy(at, piece, size);
  }
  memcpy(at, after, strlen(after) + 1);
  return text;
}

static void limit_of_parts(void **state) {
  (void)state;
  for (size_t parts = 254; parts <= 257; parts++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    char *text = repeat("(0F0", ";1B0", parts - 1, ")OVERLAP_F_B\n");
    const enum weft_status status =
        weft_program_parse(NULL, text, strlen(text), "bad.csv", &program, &error);
    if (parts <= 255) {
      assert_int_equal(status, WEFT_OK);
      assert_int_equal(program->actions[0].parts, parts);
      weft_program_destroy(program);
    } else {
      assert_fault(status, WEFT_ERR_LIMIT, &error, 1, 1 + 4 * 255 + 1);
    }
    free(text);
  }
}

static void limit_of_ranks(void **state) {
  (void)state;
  for (size_t ranks = WEFT_RANKS_MAX - 1; ranks <= WEFT_RANKS_MAX + 1; ranks++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    char *text = repeat("", "\"\"\n", ranks, "");
    const enum weft_status status =
        weft_program_parse(NULL, text, strlen(text), "bad.csv", &program, &error);
    if (ranks <= WEFT_RANKS_MAX) {
      assert_int_equal(status, WEFT_OK);
      assert_int_equal(program->rank_count, ranks);
      weft_program_destroy(program);
    } else {
      assert_int_equal(status, WEFT_ERR_LIMIT);
      assert_null(program);
      assert_non_null(strstr(error.message, "65536"));
    }
    free(text);
  }
}

/* More actions than the limit are refused before anything is read or allocated:
 * the rows given here do not exist. */
static void limit_of_actions(void **state) {
  (void)state;
  static const uint64_t sizes[][2] = {{WEFT_ACTIONS_MAX, 1},
                                      {WEFT_ACTIONS_MAX + 1, 0},
                                      {UINT64_C(1) << 32, 0},
                                      {UINT64_C(1) << 63, UINT64_C(1) << 63},
                                      {UINT64_MAX, 2}};
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    assert_int_equal(weft_program_create(NULL, 2, sizes[k], NULL, &program, &error),
                     WEFT_ERR_LIMIT);
    assert_null(program);
    assert_non_null(strstr(error.message, "268435456"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_round_trips),     cmocka_unit_test(tolerated_spellings),
      cmocka_unit_test(exact_places_of_faults), cmocka_unit_test(nothing_to_read),
      cmocka_unit_test(messages_are_escaped),   cmocka_unit_test(faults_without_error_struct),
      cmocka_unit_test(limits_of_numbers),      cmocka_unit_test(limit_of_parts),
      cmocka_unit_test(limit_of_ranks),         cmocka_unit_test(limit_of_actions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
