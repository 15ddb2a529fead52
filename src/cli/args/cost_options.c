/* Times and memory from the command line: numbers for all stages, or a file. */
#include "cli/args/cost_options.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/lower.h>

#include "cli/io/input_file.h"
#include "cli/scoped.h"

#define FACTOR_MAX 1e6

/* ---- Costs ---- */

static int check_given(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id numbers[] = {WEFT_CLI_OPTION_F, WEFT_CLI_OPTION_B,
                                                    WEFT_CLI_OPTION_I, WEFT_CLI_OPTION_W,
                                                    WEFT_CLI_OPTION_HOP};
  if (!arguments->given[WEFT_CLI_OPTION_COSTS]) {
    return WEFT_CLI_OK;
  }
  const char *number = weft_cli_first_given(arguments, numbers, WEFT_ARRAY_LENGTH(numbers));
  if (number != NULL) {
    return weft_cli_usage(cli, "leave one of them out, or change the file",
                          "--%s and --costs both give times", number);
  }
  /* Without an operand a command reads standard input, unless it takes a list. */
  bool taken = arguments->command->operands_max > 0 && arguments->operand_count == 0 &&
               strstr(arguments->command->operands, "...") == NULL;
  for (unsigned k = 0; k < arguments->operand_count; k++) {
    taken = taken || strcmp(arguments->operands[k], "-") == 0;
  }
  if (taken && strcmp(arguments->texts[WEFT_CLI_OPTION_COSTS], "-") == 0) {
    return weft_cli_usage(cli, "give one of them as a file",
                          "standard input can be read only once: as the table or as the costs");
  }
  return WEFT_CLI_OK;
}

static int make_costs(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                      struct weft_costs **out) {
  WEFT_CLI_CALL(cli, NULL, weft_costs_create(cli->allocator, 1, out, &error));
  struct weft_costs *costs = *out;
  struct weft_stage_costs *stage = &costs->stages[0];
  stage->f = weft_cli_real(arguments, WEFT_CLI_OPTION_F, stage->f);
  stage->i = weft_cli_real(arguments, WEFT_CLI_OPTION_I, stage->i);
  stage->w = weft_cli_real(arguments, WEFT_CLI_OPTION_W, stage->w);
  stage->b = weft_cli_real(arguments, WEFT_CLI_OPTION_B, stage->i + stage->w);
  costs->hop.latency = weft_cli_real(arguments, WEFT_CLI_OPTION_HOP, 0);
  /* i + w may be over the limit */
  WEFT_CLI_CALL(cli, NULL, weft_costs_check(costs, 1, &error));
  return WEFT_CLI_OK;
}

const char *weft_cli_costs_given(const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id all[] = {
      WEFT_CLI_OPTION_F,        WEFT_CLI_OPTION_B,       WEFT_CLI_OPTION_I,
      WEFT_CLI_OPTION_W,        WEFT_CLI_OPTION_HOP,     WEFT_CLI_OPTION_COSTS,
      WEFT_CLI_OPTION_COSTS_OF, WEFT_CLI_OPTION_CHANNEL, WEFT_CLI_OPTION_SLOW,
      WEFT_CLI_OPTION_JITTER,   WEFT_CLI_OPTION_SEED};
  return weft_cli_first_given(arguments, all, WEFT_ARRAY_LENGTH(all));
}

/* ---- Stragglers ---- */

static int read_straggler(const struct weft_cli *cli, const char *text,
                          struct weft_cli_straggler *straggler) {
  char rank[24] = "";
  uint64_t number;
  const char *equals = strchr(text, '=');
  if (equals != NULL && (size_t)(equals - text) < sizeof rank) {
    memcpy(rank, text, (size_t)(equals - text));
  }
  if (weft_cli_read_number(rank, &number) != NULL || number >= WEFT_RANKS_MAX) {
    return weft_cli_usage(cli, "for example: --slow 3=1.25",
                          "--slow '%s' is not RANK=FACTOR: expected the number of a rank and how "
                          "many times as long it takes",
                          weft_cli_quoted(text).text);
  }
  straggler->rank = (uint32_t)number;
  /* A rank that takes no time at all would be faster than any machine. */
  return weft_cli_read_real(cli, "--slow RANK=", equals + 1, false, 1 / FACTOR_MAX, FACTOR_MAX,
                            &straggler->factor);
}

/* ---- Reading ---- */

/* --costs-of. Entries of their own are what they say. */
static int set_scope(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                     struct weft_cli_costs *costs) {
  static const enum weft_costs_scope scopes[] = {WEFT_COSTS_OF_RANK, WEFT_COSTS_OF_STAGE};
  if (!arguments->given[WEFT_CLI_OPTION_COSTS_OF]) {
    return WEFT_CLI_OK;
  }
  const enum weft_costs_scope of = scopes[arguments->choices[WEFT_CLI_OPTION_COSTS_OF]];
  if (costs->costs->stage_count > 1 && of == WEFT_COSTS_OF_RANK) {
    return weft_cli_usage(cli, "leave --costs-of out, or give one entry in stages",
                          "'%s' has times for each of %" PRIu32
                          " stages: they are not of a rank's share",
                          weft_cli_quoted(costs->file).text, costs->costs->stage_count);
  }
  costs->costs->of = of;
  return WEFT_CLI_OK;
}

int weft_cli_costs_read(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_cli_costs *costs) {
  assert(cli != NULL && arguments != NULL);
  *costs = (struct weft_cli_costs){.arena = {.allocator = cli->allocator},
                                   .file = arguments->texts[WEFT_CLI_OPTION_COSTS]};
  WEFT_CLI_TRY(check_given(cli, arguments));
  for (; costs->straggler_count < arguments->list_count; costs->straggler_count++) {
    WEFT_CLI_TRY(read_straggler(cli, arguments->list[costs->straggler_count],
                                &costs->stragglers[costs->straggler_count]));
  }
  costs->options = weft_sim_options_default();
  costs->options.channel = (enum weft_channel_model)arguments->choices[WEFT_CLI_OPTION_CHANNEL];
  costs->options.jitter = weft_cli_real(arguments, WEFT_CLI_OPTION_JITTER, 0);
  costs->options.seed = weft_cli_number(arguments, WEFT_CLI_OPTION_SEED, costs->options.seed);
  WEFT_CLI_TRY(costs->file != NULL ? weft_cli_read_costs(cli, costs->file, &costs->costs)
                                   : make_costs(cli, arguments, &costs->costs));
  return set_scope(cli, arguments, costs);
}

/* ---- Fitting to a program ---- */

static void release_fit(struct weft_cli_costs *costs) {
  weft_arena_finish(&costs->arena);
  weft_program_destroy(costs->lowered);
  costs->options.rank_factors = NULL;
  costs->lowered = NULL;
  costs->program = NULL;
}

int weft_cli_costs_fit_ranks(const struct weft_cli *cli, struct weft_cli_costs *costs,
                             uint32_t rank_count) {
  assert(costs->options.rank_factors == NULL);
  for (unsigned k = 0; k < costs->straggler_count; k++) {
    if (costs->stragglers[k].rank >= rank_count) {
      return weft_cli_usage(cli, "ranks are counted from 0",
                            "--slow names rank %" PRIu32 ", but there are %" PRIu32 " ranks",
                            costs->stragglers[k].rank, rank_count);
    }
  }
  const double *known = costs->costs->rank_factors;
  if (known != NULL && costs->costs->rank_count != rank_count) {
    return weft_cli_usage(cli, "give one factor for each rank",
                          "%s has rank_factors of %" PRIu32 " ranks, but there are %" PRIu32
                          " ranks",
                          costs->file, costs->costs->rank_count, rank_count);
  }
  if (costs->straggler_count == 0 && known == NULL) {
    return WEFT_CLI_OK;
  }
  double *factors = weft_arena_allocate(&costs->arena, rank_count, sizeof *factors);
  if (factors == NULL) {
    return weft_cli_fail_memory(cli);
  }
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    factors[rank] = known != NULL ? known[rank] : 1;
  }
  for (unsigned k = 0; k < costs->straggler_count; k++) {
    const uint32_t rank = costs->stragglers[k].rank;
    factors[rank] = costs->stragglers[k].factor * (known != NULL ? known[rank] : 1);
  }
  costs->options.rank_factors = factors;
  return WEFT_CLI_OK;
}

int weft_cli_costs_fit(const struct weft_cli *cli, struct weft_cli_costs *costs,
                       const struct weft_program *program, const char *name) {
  assert(cli != NULL && program != NULL);
  release_fit(costs);
  WEFT_CLI_CALL(cli, costs->file, weft_costs_check(costs->costs, program->stage_count, &error));
  WEFT_CLI_TRY(weft_cli_costs_fit_ranks(cli, costs, program->rank_count));
  costs->program = program;
  if (costs->options.channel != WEFT_CHANNEL_EDGE && program->level == WEFT_LEVEL_COMPUTE) {
    WEFT_CLI_CALL(cli, name,
                  weft_lower_transfers(cli->allocator, program, &costs->lowered, &error));
    costs->program = costs->lowered;
  }
  return WEFT_CLI_OK;
}

void weft_cli_costs_finish(struct weft_cli_costs *costs) {
  release_fit(costs);
  weft_costs_destroy(costs->costs);
  costs->costs = NULL;
}
