/* Variables that own what they hold: it is given back when they go out of scope, whichever way
 * the function returns. So a command is a list of steps, each of which may fail:
 *
 *     WEFT_SCOPED(weft_program) program = NULL;
 *     WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
 *     WEFT_CLI_TRY(weft_cli_read_program(cli, path, &program));
 *     weft_program_print(program, &text);
 *     return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
 */
#ifndef CLI_SCOPED_H
#define CLI_SCOPED_H

#include <weft/inspect.h>
#include <weft/sim.h>
#include <weft/support.h>
#include <weft/verify.h>

#include "cli/io/error_message.h"

/* Returns an exit status other than WEFT_CLI_OK to the caller. */
#define WEFT_CLI_TRY(call)           \
  do {                               \
    const int weft_cli_try = (call); \
    if (weft_cli_try != 0) {         \
      return weft_cli_try;           \
    }                                \
  } while (0)

/* Calls a function of the library, which gets &error, and returns to the caller when it fails,
 * after reporting it as weft_cli_fail() does:
 *
 *     WEFT_CLI_CALL(cli, name, weft_simulate(..., &simulation, &error));
 */
#define WEFT_CLI_CALL(cli, file, call)                            \
  do {                                                            \
    struct weft_error error;                                      \
    WEFT_CLI_TRY(weft_cli_result((cli), (file), (call), &error)); \
  } while (0)

WEFT_SCOPED_TYPE(weft_costs)
WEFT_SCOPED_TYPE(weft_diff)
WEFT_SCOPED_TYPE(weft_graph)
WEFT_SCOPED_TYPE(weft_links)
WEFT_SCOPED_TYPE(weft_program)
WEFT_SCOPED_TYPE(weft_report)
WEFT_SCOPED_TYPE(weft_simulation)

#endif
