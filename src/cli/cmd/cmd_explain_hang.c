/* `weft explain-hang`: explains the dump of a run that hangs. */
#include <assert.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"

/* Without a file: what is piped or redirected to the command, else what 'weft run' writes. */
static const char *default_path(void) {
  struct stat input;
  const bool is_given = fstat(STDIN_FILENO, &input) == 0 && !S_ISCHR(input.st_mode);
  return is_given ? NULL : "weft-hang.json";
}

int weft_cli_cmd_explain_hang(const struct weft_cli *cli,
                              const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  const char *path = arguments->operands[0] != NULL ? arguments->operands[0] : default_path();
  WEFT_CLI_TRY(weft_cli_read_hang(cli, path, arguments->given[WEFT_CLI_OPTION_JSON], &text));
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
