/* The options about time and memory that sim, show and compare share, and what
 * a program needs before it can be simulated with them:
 *
 *     struct weft_cli_costs costs;
 *     status = weft_cli_costs_read(cli, arguments, &costs);
 *     ... weft_cli_costs_fit(cli, &costs, program, name) ...
 *     weft_simulate(cli->allocator, costs.program, costs.costs, &costs.options, &sim, &error)
 *     weft_cli_costs_finish(&costs);
 */
#ifndef CLI_COST_OPTIONS_H
#define CLI_COST_OPTIONS_H

#include <weft/sim.h>
#include <weft/support.h>

#include "cli/args/option_parser.h"

/* A --slow RANK=FACTOR. */
struct weft_cli_straggler {
  uint32_t rank;
  double factor;
};

struct weft_cli_costs {
  struct weft_costs *costs;
  struct weft_sim_options options; /* rank_factors: of the program that was fitted last */
  const char *file;                /* --costs, or NULL */

  /* Of the program that was fitted last. */
  const struct weft_program *program; /* the one to simulate: as given, or `lowered` */
  struct weft_program *lowered;       /* with SEND and RECV, for shared channels; or NULL */
  struct weft_arena arena;            /* of all that is about that program */

  struct weft_cli_straggler stragglers[WEFT_CLI_LIST_MAX];
  unsigned straggler_count;
};

/* Reads --f --b --i --w --hop or --costs, and --costs-of, --channel, --slow, --jitter, --seed.
 * Returns WEFT_CLI_OK, or another exit status after printing what is wrong. To be finished in any
 * case. */
int weft_cli_costs_read(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_cli_costs *costs);
/* The name of the first of these options that was given; NULL: none was. */
const char *weft_cli_costs_given(const struct weft_cli_arguments *arguments);

/* Prepares for a program, which is called `name` in messages and is borrowed until
 * the next fit: checks stages and the ranks of --slow against it, and lowers a
 * compute-only table when the channels are shared. May be called again for
 * another program, after which a simulation of the last one is no longer valid. */
int weft_cli_costs_fit(const struct weft_cli *cli, struct weft_cli_costs *costs,
                       const struct weft_program *program, const char *name);

/* Only --slow, for so many ranks and a program that is not made yet: options.rank_factors. Once. */
int weft_cli_costs_fit_ranks(const struct weft_cli *cli, struct weft_cli_costs *costs,
                             uint32_t rank_count);

void weft_cli_costs_finish(struct weft_cli_costs *costs);

#endif
