/* Fuzzes everything a CSV from outside reaches, of chains and of graphs: the reader, the writer, the
 * verifier under the strictest and the weakest model, lowering, the dry run and
 * the grid. Beyond not crashing, what must hold:
 *   - what was read prints to text that reads back as an equal program;
 *   - a failing call leaves its output alone and explains itself;
 *   - a table that verifies can be lowered, and the program verifies too. */
#include <string.h>

#include <weft/weft.h>

#include "support_fuzz.h"

/* Larger inputs only make it slower, not wiser. */
#define SIZE_MAX_FUZZED 4096u

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

static void require_explained(enum weft_status status, const struct weft_error *error,
                              const void *out) {
  fuzz_require(out == NULL, "a failing call wrote its output");
  fuzz_require(error->status == status, "the error carries another status");
  fuzz_require(error->message[0] != '\0', "a failing call does not say why");
}

static void round_trip(const struct weft_program *program) {
  struct weft_text text = {0};
  struct weft_program *again = NULL;
  struct weft_error error = {0};
  weft_program_print(program, &text);
  fuzz_require(weft_text_status(&text, NULL) == WEFT_OK, "out of memory");
  fuzz_require(weft_program_parse(NULL, text.data, text.size, NULL, &again, &error) == WEFT_OK,
               "what was printed does not read");
  fuzz_require(weft_program_equal(program, again), "what was printed reads as another program");
  weft_program_destroy(again);
  weft_text_finish(&text);
}

/* Every finding is complete, and points into the program. */
static void check_finding(const struct weft_program *program, const struct weft_finding *finding) {
  const struct weft_action *action = finding->location.action;
  fuzz_require(finding->rule < WEFT_RULE_COUNT, "a finding of no known rule");
  fuzz_require(finding->message != NULL && finding->message[0] != '\0',
               "a finding without a message");
  fuzz_require(finding->location.rank < program->rank_count || program->rank_count == 0,
               "a finding on no rank");
  fuzz_require(action == NULL ||
                   (action >= program->actions + program->row_begin[finding->location.rank] &&
                    action < program->actions + program->row_begin[finding->location.rank + 1]),
               "a finding outside of its row");
  fuzz_require((finding->rule == WEFT_RULE_DEADLOCK) == (finding->cycle_length > 0),
               "a cycle without a deadlock, or the reverse");
}

static bool verify(const struct weft_program *program, uint32_t capacity,
                   enum weft_channel_model channel) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  struct weft_error error = {0};
  options.model = (struct weft_comm_model){.capacity = capacity, .channel = channel};
  const enum weft_status status = weft_verify(NULL, program, &options, &report, &error);
  if (status != WEFT_OK) {
    require_explained(status, &error, report);
    return false;
  }
  const bool ok = report->ok;
  fuzz_require(ok == (report->finding_count == 0), "ok does not say whether there are findings");
  for (size_t number = 0; number < report->finding_count; number++) {
    check_finding(program, &report->findings[number]);
  }
  weft_report_destroy(report);
  return ok;
}

static void dry_run(const struct weft_program *program) {
  struct weft_program *out = NULL;
  struct weft_error error = {0};
  const enum weft_status status = weft_dry_run(NULL, program, &out, &error);
  if (status != WEFT_OK) {
    require_explained(status, &error, out);
    return;
  }
  round_trip(out);
  weft_program_destroy(out);
}

static void draw(const struct weft_program *program) {
  struct weft_text text = {0};
  struct weft_error error = {0};
  fuzz_require(weft_grid_print(program, NULL, &text, &error) == WEFT_OK || error.message[0] != '\0',
               "no grid, and no reason");
  weft_text_finish(&text);
}

static void lower(const struct weft_program *program, bool merge, bool valid) {
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_program *out = NULL;
  struct weft_error error = {0};
  options.merge_bw = merge;
  const enum weft_status status = weft_lower(NULL, program, &options, &out, &error);
  if (status != WEFT_OK) {
    require_explained(status, &error, out);
    fuzz_require(!valid || program->level == WEFT_LEVEL_COMMS, "a valid table cannot be lowered");
    return;
  }
  const bool lowered_valid = verify(out, 0, WEFT_CHANNEL_RANK);
  fuzz_require(!valid || lowered_valid, "a valid table lowers to an invalid program");
  round_trip(out);
  dry_run(out);
  weft_program_destroy(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  if (size > SIZE_MAX_FUZZED) {
    return 0;
  }
  const enum weft_status status =
      weft_program_parse(NULL, (const char *)data, size, "fuzz", &program, &error);
  if (status != WEFT_OK) {
    require_explained(status, &error, program);
    return 0;
  }
  round_trip(program);
  const bool valid = verify(program, 0, WEFT_CHANNEL_EDGE);
  const bool weakly_valid = verify(program, WEFT_CAPACITY_UNLIMITED, WEFT_CHANNEL_EDGE);
  fuzz_require(!valid || weakly_valid, "valid with rendezvous, invalid with buffers");
  verify(program, 1, WEFT_CHANNEL_RANK);
  verify(program, 0, WEFT_CHANNEL_NCCL_PAIR);
  fuzz_require(!valid || verify(program, 0, WEFT_CHANNEL_NCCL_WORLD),
               "valid with rendezvous, invalid on one communicator");
  draw(program);
  dry_run(program);
  lower(program, false, valid);
  lower(program, true, valid);
  weft_program_destroy(program);
  return 0;
}

/* --- Mutations of cells ----------------------------------------------------------
 *
 * Bytes at random seldom make another table. Half of the mutations therefore
 * keep the language: a cell is doubled, moved or dropped, or a digit changes. */

struct span {
  size_t begin, end;
};

static bool is_separator(uint8_t byte) { return byte == ',' || byte == '\n'; }

/* The cell around a position, with the separator behind it. */
static struct span cell_at(const uint8_t *data, size_t size, size_t position) {
  struct span cell = {position, position};
  while (cell.begin > 0 && !is_separator(data[cell.begin - 1])) {
    cell.begin--;
  }
  while (cell.end < size && !is_separator(data[cell.end])) {
    cell.end++;
  }
  cell.end += cell.end < size;
  return cell;
}

static size_t cut(uint8_t *data, size_t size, struct span span) {
  memmove(data + span.begin, data + span.end, size - span.end);
  return size - (span.end - span.begin);
}

static size_t paste(uint8_t *data, size_t size, size_t at, const uint8_t *piece, size_t length) {
  memmove(data + at + length, data + at, size - at);
  memcpy(data + at, piece, length);
  return size + length;
}

static size_t change_digit(uint8_t *data, size_t size, struct span cell, unsigned int random) {
  for (size_t at = cell.begin + random % (cell.end - cell.begin); at < cell.end; at++) {
    if (data[at] >= '0' && data[at] <= '9') {
      data[at] = (uint8_t)('0' + random / 7 % 10);
      break;
    }
  }
  return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
  uint8_t piece[64];
  unsigned int random = seed * 2654435761u;
  const unsigned int kind = random >> 29;
  if (size == 0 || kind >= 4) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const struct span cell = cell_at(data, size, random / 8 % size);
  const size_t length = cell.end - cell.begin;
  if (length == 0 || length > sizeof piece || size + length > max_size) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  random = random * 1664525u + 1013904223u;
  if (kind == 0) {
    return change_digit(data, size, cell, random);
  }
  memcpy(piece, data + cell.begin, length);
  if (kind != 1) { /* 1 doubles the cell, 2 moves it, 3 drops it */
    size = cut(data, size, cell);
  }
  if (kind == 3) {
    return size;
  }
  const size_t position = size > 0 ? random / 8 % size : 0;
  return paste(data, size, cell_at(data, size, position).begin, piece, length);
}
