/* `weft diff`: where two tables or programs differ, per rank. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/scoped.h"

#define DIFFERENCES_MAX 1000

static void add_cell(struct weft_text *text, const struct weft_action *action) {
  if (action->op == WEFT_OP_IDLE) {
    weft_text_add(text, "(bubble)");
  } else {
    weft_action_print(action, text);
  }
}

static void add_difference(struct weft_text *text, const struct weft_difference *difference) {
  weft_text_addf(text, "rank %" PRIu32, difference->rank);
  if (difference->a == NULL && difference->b == NULL) {
    weft_text_add(text, ": an empty row that only one of them has\n");
    return;
  }
  const uint64_t step = difference->a != NULL ? difference->step_a : difference->step_b;
  weft_text_addf(text, " step %" PRIu64, step);
  if (difference->a != NULL && difference->b != NULL) {
    if (difference->step_b != step) {
      weft_text_addf(text, " -> %" PRIu64, difference->step_b);
    }
    weft_text_add(text, ": ");
    add_cell(text, difference->a);
    weft_text_add(text, " -> ");
    add_cell(text, difference->b);
  } else {
    weft_text_add(text, difference->a != NULL ? ": - " : ": + ");
    add_cell(text, difference->a != NULL ? difference->a : difference->b);
  }
  weft_text_add(text, "\n");
}

static void add_listing(struct weft_text *text, const struct weft_program *a,
                        const struct weft_program *b, const struct weft_diff *diff) {
  const uint64_t count = diff->difference_count + diff->left_out;
  for (size_t i = 0; i < diff->difference_count; i++) {
    add_difference(text, &diff->differences[i]);
  }
  if (a->rank_count != b->rank_count) {
    weft_text_addf(text, "%" PRIu32 " ranks -> %" PRIu32 " ranks\n", a->rank_count, b->rank_count);
  }
  if (diff->left_out > 0) {
    weft_text_addf(text, "and %" PRIu64 " more; --max-differences shows them\n", diff->left_out);
  }
  if (count > 0) {
    weft_text_addf(text, "%" PRIu64 " difference%s\n", count, weft_cli_plural(count));
  }
}

static void add_step(struct weft_json *json, const char *key, const struct weft_action *action,
                     uint64_t step) {
  weft_json_optional(json, key, action != NULL, step);
}

static const char *kind_of(const struct weft_difference *difference) {
  if (difference->a != NULL && difference->b != NULL) {
    return "changed";
  }
  if (difference->a == NULL && difference->b == NULL) {
    return "empty_row";
  }
  return difference->a != NULL ? "removed" : "added";
}

static void add_json(struct weft_text *text, const struct weft_program *a,
                     const struct weft_program *b, const struct weft_diff *diff) {
  struct weft_json json = weft_json_begin(text, "weft-diff/1");
  weft_json_boolean(&json, "equal", diff->difference_count + diff->left_out == 0);
  weft_json_number(&json, "ranks_a", a->rank_count);
  weft_json_number(&json, "ranks_b", b->rank_count);
  weft_json_open(&json, "differences", '[');
  for (size_t i = 0; i < diff->difference_count; i++) {
    const struct weft_difference *difference = &diff->differences[i];
    weft_json_open(&json, NULL, '{');
    weft_json_number(&json, "rank", difference->rank);
    weft_json_string(&json, "kind", kind_of(difference));
    add_step(&json, "step_a", difference->a, difference->step_a);
    add_step(&json, "step_b", difference->b, difference->step_b);
    weft_json_action(&json, "a", difference->a);
    weft_json_action(&json, "b", difference->b);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_number(&json, "differences_left_out", diff->left_out);
  weft_json_end(&json);
}

int weft_cli_cmd_diff(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  if (arguments->operand_count < 2) {
    return weft_cli_usage(cli, "for example: weft diff a.csv b.csv",
                          "%s: expected two files to compare",
                          arguments->operand_count == 0 ? "no file given" : "only one file given");
  }
  if (strcmp(arguments->operands[0], "-") == 0 && strcmp(arguments->operands[1], "-") == 0) {
    return weft_cli_usage(cli, "give at least one of them a name",
                          "standard input can be read only once");
  }
  WEFT_SCOPED(weft_program) a = NULL;
  WEFT_SCOPED(weft_program) b = NULL;
  WEFT_SCOPED(weft_diff) diff = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  struct weft_error error;
  WEFT_CLI_TRY(weft_cli_read_program(cli, arguments->operands[0], &a));
  WEFT_CLI_TRY(weft_cli_read_program(cli, arguments->operands[1], &b));
  const uint64_t most =
      weft_cli_number(arguments, WEFT_CLI_OPTION_MAX_DIFFERENCES, DIFFERENCES_MAX);
  WEFT_CLI_TRY(weft_cli_result(cli, weft_cli_input_name(arguments->operands[1]),
                               weft_diff_create(cli->allocator, a, b, (size_t)most, &diff, &error),
                               &error));
  (arguments->given[WEFT_CLI_OPTION_JSON] ? add_json : add_listing)(&text, a, b, diff);
  const bool equal = diff->difference_count + diff->left_out == 0;
  return weft_cli_write_output(cli, arguments, &text, equal ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}
