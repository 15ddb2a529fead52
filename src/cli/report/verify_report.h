/* The result of `weft verify`, as text and as JSON. */
#ifndef CLI_VERIFY_REPORT_H
#define CLI_VERIFY_REPORT_H

#include <weft/verify.h>

struct weft_cli_verify_result {
  const struct weft_program *program;
  const struct weft_verify_options *options;
  const struct weft_report *report;
  const char *name; /* of the input */
  bool colour;
};

/* One line when all is well, and one on the graph of the stages; else the findings, the grid around one of them, and
 * their number. */
enum weft_status weft_cli_verify_text(struct weft_text *text,
                                      const struct weft_cli_verify_result *result,
                                      struct weft_error *error);
/* "weft-verify/1". */
void weft_cli_verify_json(struct weft_text *text, const struct weft_cli_verify_result *result);

#endif
