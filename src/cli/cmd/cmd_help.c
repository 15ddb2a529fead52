/* `weft help`: the commands, one command, the man page, the completions. */
#include <assert.h>

#include "cli/args/help.h"
#include "cli/cmd/commands.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"

int weft_cli_cmd_help(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  /* In the order of the option's choices. */
  static void (*const completions[])(struct weft_text *) = {
      weft_cli_completion_bash_add, weft_cli_completion_zsh_add, weft_cli_completion_fish_add};
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_MAN]) {
    weft_cli_man_add(&text);
  } else if (arguments->given[WEFT_CLI_OPTION_COMPLETION]) {
    completions[arguments->choices[WEFT_CLI_OPTION_COMPLETION]](&text);
  } else if (arguments->operand_count > 0) {
    const char *name = arguments->operands[0];
    const struct weft_cli_command *command = weft_cli_command_find(name);
    return command != NULL && weft_cli_program_runs(&weft_program, name)
               ? weft_cli_help_command(cli, arguments, command)
               : weft_cli_unknown_command(cli, &weft_program, name);
  } else {
    return weft_cli_help_program(cli, arguments, &weft_program);
  }
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
