/* What `weft compare` found: schedules, best first, and why the first one wins;
 * as text and as "weft-compare/1". */
#ifndef CLI_COMPARE_REPORT_H
#define CLI_COMPARE_REPORT_H

#include <weft/gen.h>
#include <weft/sim.h>

/* A schedule with its numbers. */
struct weft_cli_entry {
  const char *name; /* of the schedule or of the file */
  bool file;
  bool one_v;   /* there is no other v under this name */
  double v;     /* of a file: a whole number, unless its ranks have different numbers of stages */
  size_t order; /* files in the order given, then schedules in that of the registry */
  bool fits;    /* under the memory limit, if there is one */
  double makespan;
  double span;
  double bubble_ratio;
  double peak_activation;
  double peak_memory;
  double busy; /* a rank, on average; and so are the causes */
  double idle_by_cause[WEFT_IDLE_CAUSES];
};

/* A schedule that does not take this shape. */
struct weft_cli_omission {
  const struct weft_schedule_info *info;
  uint32_t v;
  char why[512]; /* the library's message */
};

/* Files, and schedules times values of v. */
enum { WEFT_CLI_ENTRIES_MAX = 256 };

struct weft_cli_comparison {
  struct weft_shape shape;
  const struct weft_costs *costs;
  const struct weft_graph *graph; /* NULL: chains */
  bool limited;
  double memory_limit;
  struct weft_cli_entry entries[WEFT_CLI_ENTRIES_MAX]; /* sorted */
  size_t entry_count;
  size_t fitting; /* how many of them fit; they come first */
  struct weft_cli_omission omissions[WEFT_CLI_ENTRIES_MAX];
  size_t omission_count;
};

/* Best first; those over the limit at the end. */
void weft_cli_comparison_sort(struct weft_cli_comparison *comparison);

/* One sentence on the first one. */
void weft_cli_compare_reason(struct weft_text *text, const struct weft_cli_comparison *comparison);

void weft_cli_compare_text(struct weft_text *text, const struct weft_cli_comparison *comparison);
void weft_cli_compare_json(struct weft_text *text, const struct weft_cli_comparison *comparison);

#endif
