/* `weft explain`: a program as a report. */
#include <assert.h>
#include <inttypes.h>

#include <weft/lower.h>

#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/report/explain_report.h"
#include "cli/scoped.h"

int weft_cli_cmd_explain(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const char *name = weft_cli_input_name(arguments->operands[0]);
  const bool one = arguments->given[WEFT_CLI_OPTION_RANK];
  const uint64_t rank = weft_cli_number(arguments, WEFT_CLI_OPTION_RANK, 0);
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_SCOPED(weft_links) links = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &program));
  if (rank >= program->rank_count) {
    return weft_cli_usage(cli, "ranks count from 0",
                          "--rank %" PRIu64 " is not there: the program has %" PRIu32 " ranks",
                          rank, program->rank_count);
  }
  if (program->level == WEFT_LEVEL_COMPUTE) {
    weft_cli_print(cli, NULL,
                   "note: a compute-only table, listed as it is; 'weft lower' adds channels");
  }
  WEFT_CLI_CALL(cli, name, weft_links_create(cli->allocator, program, &links, &error));
  const struct weft_cli_explain_report report = {
      .program = program,
      .links = links,
      .rank_first = (uint32_t)rank,
      .rank_end = one ? (uint32_t)rank + 1 : program->rank_count};
  (arguments->given[WEFT_CLI_OPTION_JSON] ? weft_cli_explain_json : weft_cli_explain_text)(&text,
                                                                                           &report);
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
