/* `weft verify`: the findings, as text or JSON. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/report/verify_report.h"
#include "cli/scoped.h"

/* ---- --list ---- */

static void list_models(struct weft_text *text) {
  const struct weft_send_model_info *send;
  const struct weft_channel_model_info *channel;
  weft_text_add(text, "--comm, when a SEND is done:\n");
  for (uint32_t k = 0; (send = weft_send_model_info((enum weft_send_model)k)) != NULL; k++) {
    weft_text_addf(text, "  %-15s%s\n", send->name, send->done);
  }
  weft_text_add(text, "\n--channel, what one channel carries:\n");
  for (uint32_t k = 0; (channel = weft_channel_model_info((enum weft_channel_model)k)) != NULL;
       k++) {
    weft_text_addf(text, "  %-15s%s\n", channel->name, channel->one_for);
  }
}

static void list_models_json(struct weft_text *text) {
  const struct weft_send_model_info *send;
  const struct weft_channel_model_info *channel;
  struct weft_json json = weft_json_begin(text, "weft-models/1");
  weft_json_open(&json, "comm", '[');
  for (uint32_t k = 0; (send = weft_send_model_info((enum weft_send_model)k)) != NULL; k++) {
    weft_json_open(&json, NULL, '{');
    weft_json_string(&json, "name", send->name);
    weft_json_string(&json, "done", send->done);
    weft_json_boolean(&json, "row_waits", send->row_waits);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_open(&json, "channel", '[');
  for (uint32_t k = 0; (channel = weft_channel_model_info((enum weft_channel_model)k)) != NULL;
       k++) {
    weft_json_open(&json, NULL, '{');
    weft_json_string(&json, "name", channel->name);
    weft_json_string(&json, "one_for", channel->one_for);
    weft_json_string(&json, "words", channel->words);
    weft_json_boolean(&json, "asynchronous", channel->asynchronous);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
}

/* ---- Options ---- */

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
  options->model.channel = (enum weft_channel_model)arguments->choices[WEFT_CLI_OPTION_CHANNEL];
  options->trace = arguments->given[WEFT_CLI_OPTION_TRACE];
  if (options->trace && !arguments->given[WEFT_CLI_OPTION_JSON]) {
    return weft_cli_usage(cli, "add --json", "--trace is a list for programs");
  }
  if (arguments->given[WEFT_CLI_OPTION_COMM]) {
    const enum weft_send_model model =
        (enum weft_send_model)arguments->choices[WEFT_CLI_OPTION_COMM];
    options->model.capacity = (uint32_t)arguments->numbers[WEFT_CLI_OPTION_COMM];
    options->model.posted = !weft_send_model_info(model)->row_waits;
  }
  return WEFT_CLI_OK;
}

/* ---- The command ---- */

int weft_cli_cmd_verify(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const char *name = weft_cli_input_name(arguments->operands[0]);
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_SCOPED(weft_report) report = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  struct weft_verify_options options;
  if (arguments->given[WEFT_CLI_OPTION_LIST]) {
    (arguments->given[WEFT_CLI_OPTION_JSON] ? list_models_json : list_models)(&text);
    return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  }
  WEFT_CLI_TRY(read_options(cli, arguments, &options));
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &program));
  WEFT_CLI_CALL(cli, name, weft_verify(cli->allocator, program, &options, &report, &error));
  const struct weft_cli_verify_result result = {.program = program,
                                                .options = &options,
                                                .report = report,
                                                .name = name,
                                                .colour = weft_cli_colours_data(cli, arguments)};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    weft_cli_verify_json(&text, &result);
  } else {
    WEFT_CLI_CALL(cli, name, weft_cli_verify_text(&text, &result, &error));
  }
  return weft_cli_write_output(cli, arguments, &text,
                               report->ok ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}
