/* `weft sim --steps`: the untimed dry run. */
#include <weft/inspect.h>
#include <weft/lower.h>

#include "cli/input_file.h"
#include "cli/message.h"
#include "cli/program_document.h"
#include "cli/verbs.h"

/* As PyTorch does: SEND and RECV, and nothing else. */
static enum weft_status add_communication(const struct weft_cli *cli,
                                          const struct weft_program *table,
                                          struct weft_program **out, struct weft_error *error) {
  const struct weft_lower_options options = {.communicate = true, .unshard_window = 1};
  return weft_lower(cli->allocator, table, &options, out, error);
}

static int simulate(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                    const struct weft_program *input) {
  struct weft_program *lowered = NULL, *steps = NULL;
  struct weft_error error;
  enum weft_status result = WEFT_OK;
  if (input->level == WEFT_LEVEL_COMPUTE) {
    result = add_communication(cli, input, &lowered, &error);
  }
  if (result == WEFT_OK) {
    result = weft_dry_run(cli->allocator, lowered != NULL ? lowered : input, &steps, &error);
  }
  const int status = result < 0
                         ? weft_cli_fail(cli, weft_cli_input_name(arguments->operands[0]), &error)
                         : weft_cli_deliver_program(cli, arguments, steps);
  weft_program_destroy(steps);
  weft_program_destroy(lowered);
  return status;
}

int weft_cli_verb_sim(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  if (!arguments->given[WEFT_CLI_OPTION_STEPS]) {
    weft_cli_say(cli, "'weft sim --steps' writes the untimed dry run",
                 "the timed simulation comes with a later release; this is %s", weft_version());
    return WEFT_CLI_UNAVAILABLE;
  }
  struct weft_program *input = NULL;
  int status = weft_cli_read_program(cli, arguments->operands[0], &input);
  if (status == WEFT_CLI_OK) {
    status = simulate(cli, arguments, input);
  }
  weft_program_destroy(input);
  return status;
}
