/* What `weft compare` found, as text and as "weft-compare/1". */
#ifndef CLI_COMPARE_REPORT_H
#define CLI_COMPARE_REPORT_H

#include <weft/compare.h>

void weft_cli_compare_text(struct weft_text *text, const struct weft_compare_request *request,
                           const struct weft_comparison *comparison);
void weft_cli_compare_json(struct weft_text *text, const struct weft_compare_request *request,
                           const struct weft_comparison *comparison);

#endif
