/* `weft explain`: a program as a report. */
#include <assert.h>
#include <inttypes.h>

#include <weft/lower.h>

#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/report/explain_report.h"

/* Files carry no buffers; they are assigned for the report. */
static enum weft_status prepare(const struct weft_cli *cli, struct weft_program *program,
                                struct weft_error *error) {
  if (program->level == WEFT_LEVEL_COMPUTE) {
    weft_cli_print(cli, NULL,
                   "note: a compute-only table, listed as it is; 'weft lower' adds channels and "
                   "buffers");
    return WEFT_OK;
  }
  return weft_slots_assign(program, error);
}

static int write_report(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        const struct weft_cli_explain_report *report) {
  struct weft_text text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    weft_cli_explain_json(&text, report);
  } else {
    weft_cli_explain_text(&text, report);
  }
  const int status = weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  weft_text_finish(&text);
  return status;
}

static int explain(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   struct weft_program *program) {
  struct weft_links *links = NULL;
  struct weft_error error;
  enum weft_status result = prepare(cli, program, &error);
  if (result == WEFT_OK) {
    result = weft_links_create(cli->allocator, program, &links, &error);
  }
  const bool one = arguments->given[WEFT_CLI_OPTION_RANK];
  const uint32_t rank = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANK, 0);
  const struct weft_cli_explain_report report = {.program = program,
                                                 .links = links,
                                                 .rank_first = rank,
                                                 .rank_end = one ? rank + 1 : program->rank_count};
  const int status = result < 0
                         ? weft_cli_fail(cli, weft_cli_input_name(arguments->operands[0]), &error)
                         : write_report(cli, arguments, &report);
  weft_links_destroy(links);
  return status;
}

int weft_cli_cmd_explain(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  struct weft_program *program = NULL;
  int status = weft_cli_read_program(cli, arguments->operands[0], &program);
  const uint64_t rank = weft_cli_number(arguments, WEFT_CLI_OPTION_RANK, 0);
  if (status == WEFT_CLI_OK && rank >= program->rank_count) {
    status = weft_cli_usage(cli, "ranks count from 0",
                            "--rank %" PRIu64 " is not there: the program has %" PRIu32 " ranks",
                            rank, program->rank_count);
  }
  if (status == WEFT_CLI_OK) {
    status = explain(cli, arguments, program);
  }
  weft_program_destroy(program);
  return status;
}
