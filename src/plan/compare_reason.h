/* The order of a comparison's entries, and the sentence about the first one. Internal to the
 * module. */
#ifndef PLAN_COMPARE_REASON_H
#define PLAN_COMPARE_REASON_H

#include <weft/compare.h>

/* Negative: `a` is the better one; 0: neither is. */
int weft_comparison_order(const struct weft_comparison_entry *a,
                          const struct weft_comparison_entry *b);

/* Of a comparison with sorted entries, at least one. */
void weft_comparison_explain(struct weft_text *text, const struct weft_comparison *comparison,
                             double memory_limit);

#endif
