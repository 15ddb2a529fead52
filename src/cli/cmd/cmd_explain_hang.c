/* `weft explain-hang`: explains the dump of a run that hangs. */
#include <assert.h>

#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"

int weft_cli_cmd_explain_hang(const struct weft_cli *cli,
                              const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  struct weft_text text = {.allocator = cli->allocator};
  int status = weft_cli_read_hang(cli, arguments->operands[0],
                                  arguments->given[WEFT_CLI_OPTION_JSON], &text);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  }
  weft_text_finish(&text);
  return status;
}
