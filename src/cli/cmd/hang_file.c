/* Writes a dump for `weft explain-hang` along with the error message. */
#include "cli/cmd/hang_file.h"

#include <assert.h>
#include <stdio.h>

#include <weft/run.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"

void weft_cli_write_hang(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_transport *transport) {
  assert(cli != NULL && arguments != NULL);
  const char *given = arguments->texts[WEFT_CLI_OPTION_DUMP];
  const char *path = given != NULL ? given : "weft-hang.json";
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  struct weft_error error;
  char quoted[256], hint[320];
  if (weft_hang_dump(transport, &text, &error) < 0) {
    (void)weft_cli_fail(cli, NULL, &error);
  } else if (weft_cli_write_file(cli, path, &text) == WEFT_CLI_OK) {
    weft_cli_quote(quoted, sizeof quoted, path);
    (void)snprintf(hint, sizeof hint, "'weft explain-hang %s' explains it", quoted);
    weft_cli_print(cli, hint, "what all ranks were doing is in '%s'", quoted);
  }
}
