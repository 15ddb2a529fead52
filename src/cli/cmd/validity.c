/* Whether the simulation of a table or program is meaningful. */
#include "cli/cmd/validity.h"

#include <assert.h>
#include <inttypes.h>

#include "cli/io/error_message.h"
#include "cli/scoped.h"

static int say_finding(const struct weft_cli *cli, const struct weft_finding *finding,
                       const char *name) {
  char quoted[256];
  weft_cli_print(cli, "'weft verify --comm eager' lists everything that is wrong with it",
                 "%s: rank %" PRIu32 " step %" PRIu64 ": %s [%s]",
                 weft_cli_quote(quoted, sizeof quoted, name), finding->place.rank,
                 finding->place.step, finding->message, weft_rule_id(finding->rule));
  return WEFT_CLI_FOUND_BAD;
}

int weft_cli_check_valid(const struct weft_cli *cli, const struct weft_program *program,
                         const char *name) {
  assert(cli != NULL && program != NULL);
  struct weft_verify_options options = weft_verify_options_default();
  WEFT_SCOPED(weft_report) report = NULL;
  struct weft_error error;
  options.model.capacity = WEFT_CAPACITY_UNLIMITED;
  options.findings_max = 1;
  WEFT_CLI_TRY(weft_cli_result(
      cli, name, weft_verify(cli->allocator, program, &options, &report, &error), &error));
  return report->ok ? WEFT_CLI_OK : say_finding(cli, &report->findings[0], name);
}
