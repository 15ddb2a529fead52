/* Collects findings while a program is verified, bounded in number, and makes
 * the report of them. */
#ifndef VERIFY_FINDINGS_H
#define VERIFY_FINDINGS_H

#include <weft/support.h>
#include <weft/verify.h>

struct weft_findings {
  struct weft_arena *arena;       /* owns findings and messages */
  size_t max;                     /* of each rule */
  const struct weft_graph *graph; /* whose names of stages messages have; or NULL */
  uint64_t count[WEFT_RULE_COUNT];
  struct weft_finding *list;
  size_t list_count;
  size_t list_capacity;
  bool failed; /* out of memory */
};

/* Adds a finding; counted but not kept beyond the maximum of its rule: NULL then. The
 * message is formatted only when kept. It calls a stage "stage 3"; a name is added here. */
struct weft_finding *weft_findings_add(struct weft_findings *findings, enum weft_rule rule,
                                       struct weft_location location, const char *format, ...)
    WEFT_PRINTF(4, 5);

/* Whether any of the rules in [first, last] was broken. */
bool weft_findings_any(const struct weft_findings *findings, enum weft_rule first,
                       enum weft_rule last);

/* Sorts, trims to `max` in all with every broken rule present, and fills the
 * report's finding fields. */
void weft_findings_report(struct weft_findings *findings, struct weft_report *report);

#endif
