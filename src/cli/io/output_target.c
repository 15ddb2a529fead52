/* Where the data of a command goes: to standard output or to -o FILE. */
#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"

static bool goes_to_stdout(const struct weft_cli_arguments *arguments) {
  const char *path = arguments->texts[WEFT_CLI_OPTION_OUTPUT];
  return !arguments->given[WEFT_CLI_OPTION_OUTPUT] || strcmp(path, "-") == 0;
}

bool weft_cli_colours_data(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  return cli->colour && cli->output_terminal && goes_to_stdout(arguments);
}

int weft_cli_write_output(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          const struct weft_text *text, int status) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  if (text->failed) {
    return weft_cli_fail_memory(cli);
  }
  const int written =
      goes_to_stdout(arguments)
          ? weft_cli_write_descriptor(cli, cli->output, "standard output", text)
          : weft_cli_write_file(cli, arguments->texts[WEFT_CLI_OPTION_OUTPUT], text);
  return written == WEFT_CLI_OK ? status : written;
}
