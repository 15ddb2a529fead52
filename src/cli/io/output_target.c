/* Where the data of a command goes: to standard output or to -o FILE. The playground has this, and
 * writes files in its own way. */
#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"

int weft_cli_write_stdout(const struct weft_cli *cli, const struct weft_text *text) {
  return weft_cli_write_descriptor(cli, cli->output, "standard output", text);
}

const char *weft_cli_output_path(const struct weft_cli_arguments *arguments) {
  assert(arguments != NULL);
  const char *path = arguments->texts[WEFT_CLI_OPTION_OUTPUT];
  return arguments->given[WEFT_CLI_OPTION_OUTPUT] && strcmp(path, "-") != 0 ? path : NULL;
}

bool weft_cli_colours_data(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  return cli->colour && cli->output_terminal && weft_cli_output_path(arguments) == NULL;
}

int weft_cli_write_output(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          const struct weft_text *text, int status) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  const char *path = weft_cli_output_path(arguments);
  const int written =
      path == NULL ? weft_cli_write_stdout(cli, text) : weft_cli_write_file(cli, path, text);
  return written == WEFT_CLI_OK ? status : written;
}
