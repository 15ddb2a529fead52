/* Whether the simulation of a table or program is meaningful. */
#include "cli/cmd/validity.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/verify.h>

#include "cli/io/error_message.h"

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
  struct weft_report *report;
  struct weft_error error;
  options.model.capacity = WEFT_CAPACITY_UNLIMITED;
  options.findings_max = 1;
  if (weft_verify(cli->allocator, program, &options, &report, &error) < 0) {
    return weft_cli_fail(cli, name, &error);
  }
  const int status = report->ok ? WEFT_CLI_OK : say_finding(cli, &report->findings[0], name);
  weft_report_destroy(report);
  return status;
}
