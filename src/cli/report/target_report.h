/* What other programs need to run a table, of gen and plan: as text, and as members of JSON. */
#ifndef CLI_TARGET_REPORT_H
#define CLI_TARGET_REPORT_H

#include <weft/support.h>
#include <weft/target.h>

#include "cli/cli.h"

WEFT_SCOPED_TYPE(weft_target)

void weft_cli_target_text(struct weft_text *text, enum weft_target_kind kind,
                          const struct weft_target *target);
/* A member "run_with": target, flags (a list of words), notes (a list of sentences); of torchtitan
 * and a model in parts also module_fqns_per_model_part, of PyTorch code, of Megatron-LM layout. */
void weft_cli_target_json(struct weft_json *json, enum weft_target_kind kind,
                          const struct weft_target *target);

#endif
