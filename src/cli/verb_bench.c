/* `weft bench`: the list of benchmarks, and running them. */
#include <string.h>

#include "cli/did_you_mean.h"
#include "cli/message.h"
#include "cli/output_file.h"
#include "cli/verbs.h"

static const char plan_name[] = "plan";

static int list(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct weft_text text = {.allocator = cli->allocator};
  weft_text_addf(&text, "%s  time and memory of gen, lower and verify per action\n", plan_name);
  const int status = weft_cli_deliver(cli, arguments, &text, WEFT_CLI_OK);
  weft_text_finish(&text);
  return status;
}

int weft_cli_verb_bench(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  if (arguments->given[WEFT_CLI_OPTION_LIST]) {
    return list(cli, arguments);
  }
  if (arguments->given[WEFT_CLI_OPTION_ACTIONS] && !arguments->given[WEFT_CLI_OPTION_LARGE]) {
    return weft_cli_usage(cli, "add --large", "--actions is the size of the large programs");
  }
  if (arguments->operand_count == 0 || strcmp(arguments->operands[0], plan_name) == 0) {
    return weft_cli_bench_plan(cli, arguments);
  }
  char quoted[80];
  struct weft_cli_guess guess;
  weft_cli_guess_init(&guess, arguments->operands[0], strlen(arguments->operands[0]));
  weft_cli_guess_offer(&guess, plan_name, strlen(plan_name));
  return weft_cli_usage(
      cli, guess.best != NULL ? "did you mean 'plan'?" : "'weft bench --list' lists the benchmarks",
      "unknown benchmark '%s': expected plan",
      weft_cli_quote(quoted, sizeof quoted, arguments->operands[0]));
}
