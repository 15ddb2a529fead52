/* `weft explain-hang`: the dump of a run that hangs. */
#include <assert.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cmd/commands.h"
#include "cli/io/dump_folder.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"

/* Without a file: what is piped or redirected to the command, else what 'weft run' writes. */
static const char *default_path(void) {
  struct stat input;
  const bool is_given = fstat(STDIN_FILENO, &input) == 0 && !S_ISCHR(input.st_mode);
  return is_given ? NULL : "weft-hang.json";
}

static bool is_folder(const char *path) {
  struct stat status;
  return path != NULL && stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* The dumps of PyTorch's flight recorder. */
static int explain_folder(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          struct weft_text *text) {
  const char *path = arguments->texts[WEFT_CLI_OPTION_PROGRAM];
  if (path == NULL) {
    return weft_cli_usage(cli, "add --program FILE: the table or program that the job runs",
                          "'%s' is a folder, and which action a rank is in follows only from "
                          "its program",
                          weft_cli_quoted(arguments->operands[0]).text);
  }
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_CLI_TRY(weft_cli_read_program(cli, path, &program));
  return weft_cli_explain_flight(cli, arguments->operands[0], program,
                                 arguments->given[WEFT_CLI_OPTION_JSON], text);
}

int weft_cli_cmd_explain_hang(const struct weft_cli *cli,
                              const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  const char *path = arguments->operands[0] != NULL ? arguments->operands[0] : default_path();
  if (is_folder(path)) {
    WEFT_CLI_TRY(explain_folder(cli, arguments, &text));
  } else if (arguments->given[WEFT_CLI_OPTION_PROGRAM]) {
    return weft_cli_usage(cli, "give the folder with the dumps of PyTorch's flight recorder",
                          "--program is for the dumps of a PyTorch job; '%s' is no folder",
                          weft_cli_quoted(weft_cli_input_name(path)).text);
  } else {
    WEFT_CLI_TRY(weft_cli_read_hang(cli, path, arguments->given[WEFT_CLI_OPTION_JSON], &text));
  }
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
