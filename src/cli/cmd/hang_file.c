/* Writes a dump for `weft explain-hang` along with the error message. */
#include "cli/cmd/hang_file.h"

#include <assert.h>
#include <stdio.h>

#include <weft/run.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"

void weft_cli_write_hang(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_transport *transport) {
  assert(cli != NULL && arguments != NULL);
  const char *given = arguments->texts[WEFT_CLI_OPTION_DUMP];
  const char *path = given != NULL ? given : "weft-hang.json";
  struct weft_text text = {.allocator = cli->allocator};
  struct weft_error error;
  char quoted[256], hint[320];
  const int status = weft_hang_dump(transport, &text, &error) < 0
                         ? weft_cli_fail(cli, NULL, &error)
                         : weft_cli_write_file(cli, path, &text);
  if (status == WEFT_CLI_OK) {
    weft_cli_quote(quoted, sizeof quoted, path);
    (void)snprintf(hint, sizeof hint, "'weft explain-hang %s' explains it", quoted);
    weft_cli_print(cli, hint, "what all ranks were doing is in '%s'", quoted);
  }
  weft_text_finish(&text);
}
