/* `weft show --grid`: the grid of steps and ranks. */
#include <weft/inspect.h>

#include "cli/input_file.h"
#include "cli/message.h"
#include "cli/output_file.h"
#include "cli/verbs.h"

static int show_grid(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                     const struct weft_program *program) {
  struct weft_text text = {.allocator = cli->allocator};
  struct weft_error error;
  const int status = weft_grid_print(program, NULL, &text, &error) < 0
                         ? weft_cli_fail(cli, weft_cli_input_name(arguments->operands[0]), &error)
                         : weft_cli_deliver(cli, arguments, &text, WEFT_CLI_OK);
  weft_text_finish(&text);
  return status;
}

int weft_cli_verb_show(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  if (!arguments->given[WEFT_CLI_OPTION_GRID]) {
    weft_cli_say(cli, "'weft show --grid' draws the grid of steps and ranks",
                 "the timeline comes with a later release; this is %s", weft_version());
    return WEFT_CLI_UNAVAILABLE;
  }
  struct weft_program *program = NULL;
  int status = weft_cli_read_program(cli, arguments->operands[0], &program);
  if (status == WEFT_CLI_OK) {
    status = show_grid(cli, arguments, program);
  }
  weft_program_destroy(program);
  return status;
}
