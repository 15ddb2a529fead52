/* Costs as the file that --costs reads: "weft-costs/1". */
#ifndef CLI_COSTS_DOCUMENT_H
#define CLI_COSTS_DOCUMENT_H

#include <weft/costs.h>

#include <weft/support.h>

/* As a member of another document. */
void weft_cli_costs_add_object(struct weft_json *json, const char *key,
                               const struct weft_costs *costs);

/* Appends it. Reading it back gives the same numbers. */
void weft_cli_costs_add(struct weft_text *text, const struct weft_costs *costs);

#endif
