/* The report of `weft explain`, as text and as JSON. */
#ifndef CLI_EXPLAIN_REPORT_H
#define CLI_EXPLAIN_REPORT_H

#include <weft/inspect.h>

struct weft_cli_explain_report {
  const struct weft_program *program;
  const struct weft_links *links;
  uint32_t rank_first;
  uint32_t rank_end;
};

void weft_cli_explain_text(struct weft_text *text, const struct weft_cli_explain_report *report);
void weft_cli_explain_json(struct weft_text *text, const struct weft_cli_explain_report *report);

#endif
