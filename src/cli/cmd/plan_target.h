/* What other programs need to run a planned table: flags and notes. */
#ifndef CLI_PLAN_TARGET_H
#define CLI_PLAN_TARGET_H

#include <weft/search.h>
#include <weft/support.h>

#include "cli/args/option_parser.h"

/* In the order of the choices of --for. */
enum weft_cli_target_kind { WEFT_CLI_TARGET_TORCHTITAN, WEFT_CLI_TARGET_PYTORCH };

struct weft_cli_target {
  enum weft_cli_target_kind kind;
  const char *file; /* where the table is */
};

/* WEFT_CLI_OK when the target can run the table, or another exit status after it has printed why
 * not. */
int weft_cli_target_check(const struct weft_cli *cli, const struct weft_cli_target *target,
                          const struct weft_search_answer *answer);

/* The table as the target's loader takes it, with weft_table_for_pytorch(). */
int weft_cli_target_table(const struct weft_cli *cli, const struct weft_program *table,
                          struct weft_program **out);

void weft_cli_target_add(struct weft_text *text, const struct weft_cli_target *target,
                         const struct weft_search_answer *answer);
/* A member "run_with": target, flags (a list of words) and notes (a list of sentences). */
void weft_cli_target_add_member(struct weft_json *json, const struct weft_cli_target *target,
                                const struct weft_search_answer *answer);

#endif
