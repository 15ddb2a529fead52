/* `weft verify`: the findings, as text or JSON. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/args/suggest.h"
#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/report/verify_report.h"
#include "cli/scoped.h"

/* ---- Options ---- */

static int read_comm(const struct weft_cli *cli, const char *text, uint32_t *capacity) {
  static const char slots[] = "slots:";
  if (strcmp(text, "rendezvous") == 0) {
    *capacity = 0;
    return WEFT_CLI_OK;
  }
  if (strcmp(text, "eager") == 0) {
    *capacity = WEFT_CAPACITY_UNLIMITED;
    return WEFT_CLI_OK;
  }
  if (strncmp(text, slots, strlen(slots)) == 0) {
    uint64_t number = 0;
    const uint64_t most = WEFT_CAPACITY_UNLIMITED - 1;
    const int status =
        weft_cli_read_bounded(cli, "--comm slots:", text + strlen(slots), 0, most, most, &number);
    *capacity = (uint32_t)number;
    return status;
  }
  /* Of the last only "slots" is compared; all of it is shown. */
  struct weft_cli_suggestion suggestion;
  weft_cli_suggestion_init(&suggestion, text, strlen(text));
  weft_cli_suggestion_offer(&suggestion, "rendezvous", strlen("rendezvous"));
  weft_cli_suggestion_offer(&suggestion, "eager", strlen("eager"));
  weft_cli_suggestion_offer(&suggestion, "slots:K, with a number for K", strlen("slots"));
  char quoted[80], hint[80];
  (void)snprintf(hint, sizeof hint, "did you mean %s?",
                 suggestion.best != NULL ? suggestion.best : "");
  return weft_cli_usage(cli, suggestion.best != NULL ? hint : "'weft help verify' explains them",
                        "--comm '%s' is not known: expected rendezvous, eager or slots:K",
                        weft_cli_quote(quoted, sizeof quoted, text));
}

static int read_options(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_verify_options *options) {
  *options = weft_verify_options_default();
  options->stage_count = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES, 0);
  const uint64_t microbatches = weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, 0);
  if (microbatches > WEFT_MICROBATCHES_MAX) {
    return weft_cli_usage(cli, "leave -m out to take the number from the table",
                          "-m %" PRIu64 " is over the limit of %" PRIu32 " microbatches",
                          microbatches, WEFT_MICROBATCHES_MAX);
  }
  options->microbatch_count = (uint32_t)microbatches;
  options->findings_max =
      (size_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MAX_FINDINGS, options->findings_max);
  /* In the order of the option's choices. */
  static const enum weft_channel_model channels[] = {
      WEFT_CHANNEL_EDGE,          WEFT_CHANNEL_PAIR,      WEFT_CHANNEL_RANK,
      WEFT_CHANNEL_NCCL_DIRECTED, WEFT_CHANNEL_NCCL_PAIR, WEFT_CHANNEL_NCCL_WORLD};
  options->model.channel = channels[arguments->choices[WEFT_CLI_OPTION_CHANNEL]];
  if (!arguments->given[WEFT_CLI_OPTION_COMM]) {
    return WEFT_CLI_OK;
  }
  return read_comm(cli, arguments->texts[WEFT_CLI_OPTION_COMM], &options->model.capacity);
}

/* ---- The command ---- */

int weft_cli_cmd_verify(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const char *name = weft_cli_input_name(arguments->operands[0]);
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_SCOPED(weft_report) report = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  struct weft_verify_options options;
  struct weft_error error;
  WEFT_CLI_TRY(read_options(cli, arguments, &options));
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &program));
  WEFT_CLI_TRY(weft_cli_result(
      cli, name, weft_verify(cli->allocator, program, &options, &report, &error), &error));
  const struct weft_cli_verify_result result = {.program = program,
                                                .options = &options,
                                                .report = report,
                                                .name = name,
                                                .colour = weft_cli_colours_data(cli, arguments)};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    weft_cli_verify_json(&text, &result);
  } else {
    WEFT_CLI_TRY(weft_cli_result(cli, name, weft_cli_verify_text(&text, &result, &error), &error));
  }
  return weft_cli_write_output(cli, arguments, &text,
                               report->ok ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}
