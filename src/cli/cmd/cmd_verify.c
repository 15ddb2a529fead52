/* `weft verify`: the findings, as text or JSON. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/verify.h>

#include "cli/args/suggest.h"
#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/report/verify_report.h"

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
  static const enum weft_channel_model channels[] = {WEFT_CHANNEL_EDGE, WEFT_CHANNEL_PAIR,
                                                     WEFT_CHANNEL_RANK};
  options->model.channel = channels[arguments->choices[WEFT_CLI_OPTION_CHANNEL]];
  if (!arguments->given[WEFT_CLI_OPTION_COMM]) {
    return WEFT_CLI_OK;
  }
  return read_comm(cli, arguments->texts[WEFT_CLI_OPTION_COMM], &options->model.capacity);
}

/* ---- The command ---- */

static int write_report(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        const struct weft_cli_verify_result *result) {
  struct weft_text text = {.allocator = cli->allocator};
  struct weft_error error;
  enum weft_status composed = WEFT_OK;
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    weft_cli_verify_json(&text, result);
  } else {
    composed = weft_cli_verify_text(&text, result, &error);
  }
  const int status =
      composed < 0 ? weft_cli_fail(cli, result->name, &error)
                   : weft_cli_write_output(cli, arguments, &text,
                                           result->report->ok ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
  weft_text_finish(&text);
  return status;
}

int weft_cli_cmd_verify(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  struct weft_verify_options options;
  int status = read_options(cli, arguments, &options);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  struct weft_program *program;
  status = weft_cli_read_program(cli, arguments->operands[0], &program);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  struct weft_cli_verify_result result = {.program = program,
                                          .options = &options,
                                          .name = weft_cli_input_name(arguments->operands[0]),
                                          .colour = weft_cli_colours_data(cli, arguments)};
  struct weft_report *report = NULL;
  struct weft_error error;
  if (weft_verify(cli->allocator, program, &options, &report, &error) < 0) {
    status = weft_cli_fail(cli, result.name, &error);
  } else {
    result.report = report;
    status = write_report(cli, arguments, &result);
  }
  weft_report_destroy(report);
  weft_program_destroy(program);
  return status;
}
