/* `weft lower`: a compute-only table in, a program with communication out. */
#include <assert.h>
#include <inttypes.h>

#include <weft/lower.h>

#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/scoped.h"

static int read_options(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_lower_options *options) {
  const bool *given = arguments->given;
  *options = weft_lower_options_default();
  if (given[WEFT_CLI_OPTION_NO_UNSHARD] && given[WEFT_CLI_OPTION_WINDOW]) {
    return weft_cli_usage(cli, "leave one of them out",
                          "--window is about the UNSHARD that --no-unshard leaves out");
  }
  options->merge_bw = given[WEFT_CLI_OPTION_MERGE_BW];
  options->unshard = !given[WEFT_CLI_OPTION_NO_UNSHARD];
  options->reduce_grad = !given[WEFT_CLI_OPTION_NO_REDUCE_GRAD];
  options->tie_grad = given[WEFT_CLI_OPTION_TIE_GRAD];
  options->communicate = !given[WEFT_CLI_OPTION_NO_COMM];
  options->unshard_window =
      (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_WINDOW, options->unshard_window);
  return WEFT_CLI_OK;
}

/* An incomplete table can be lowered, to look at a fragment, but the user must know before
 * running the result. */
static int warn_of_findings(const struct weft_cli *cli, const char *path,
                            const struct weft_program *table) {
  const char *name = weft_cli_input_name(path);
  WEFT_SCOPED(weft_report) report = NULL;
  WEFT_CLI_CALL(cli, name, weft_verify(cli->allocator, table, NULL, &report, &error));
  if (!report->ok) {
    weft_cli_print(
        cli, NULL, "warning: %s is not a complete schedule: %s; 'weft verify %s' lists them",
        weft_cli_quoted(name).text,
        weft_cli_count(report->finding_count + report->findings_left_out, "finding").text,
        weft_cli_shell_word(path).text);
  }
  return WEFT_CLI_OK;
}

int weft_cli_cmd_lower(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const char *name = weft_cli_input_name(arguments->operands[0]);
  WEFT_SCOPED(weft_program) table = NULL;
  WEFT_SCOPED(weft_program) program = NULL;
  struct weft_lower_options options;
  WEFT_CLI_TRY(read_options(cli, arguments, &options));
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &table));
  WEFT_CLI_CALL(cli, name, weft_lower(cli->allocator, table, &options, &program, &error));
  WEFT_CLI_TRY(warn_of_findings(cli, arguments->operands[0], table));
  weft_cli_print_note(cli, NULL, table);
  return weft_cli_write_program(cli, arguments, program);
}
