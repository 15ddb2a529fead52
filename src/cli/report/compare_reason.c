/* Which schedule wins, and why: one sentence, derived from its numbers and those
 * of the runner-up. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/io/text_columns.h"
#include "cli/report/compare_report.h"

/* Equal but for rounding; times are sums of many. */
static int order_of(double a, double b) {
  const double tolerance = 1e-9 * fmax(fabs(a), fabs(b));
  return a < b - tolerance ? -1 : a > b + tolerance ? 1 : 0;
}

static int compare_entries(const void *left, const void *right) {
  const struct weft_cli_entry *a = left, *b = right;
  if (a->fits != b->fits) {
    return a->fits ? -1 : 1;
  }
  const int makespan = order_of(a->makespan, b->makespan);
  if (makespan != 0) {
    return makespan;
  }
  const int memory = order_of(a->peak_memory, b->peak_memory);
  if (memory != 0) {
    return memory;
  }
  if (a->v != b->v) { /* fewer stages, fewer messages */
    return a->v < b->v ? -1 : 1;
  }
  return a->order < b->order ? -1 : 1; /* a file before a schedule that does as well */
}

void weft_cli_comparison_sort(struct weft_cli_comparison *comparison) {
  assert(comparison != NULL);
  qsort(comparison->entries, comparison->entry_count, sizeof comparison->entries[0],
        compare_entries);
  comparison->fitting = 0;
  for (size_t k = 0; k < comparison->entry_count; k++) {
    comparison->fitting += comparison->entries[k].fits ? 1 : 0;
  }
}

/* ---- The sentence ---- */

static const char *const cause_words[WEFT_IDLE_CAUSES] = {
    [WEFT_IDLE_START] = "before its first action",  [WEFT_IDLE_FORWARD] = "waiting for activations",
    [WEFT_IDLE_GRADIENT] = "waiting for gradients", [WEFT_IDLE_CHANNEL] = "waiting for a channel",
    [WEFT_IDLE_UNSHARD] = "waiting for parameters", [WEFT_IDLE_END] = "after its last action"};

static void add_entry(struct weft_text *text, const struct weft_cli_entry *entry) {
  weft_text_add_escaped(text, entry->name, strlen(entry->name));
  if (!entry->one_v) {
    weft_text_addf(text, " with v = %s", weft_cli_amount(entry->v).text);
  }
}

/* "3 against 4" */
static void add_numbers(struct weft_text *text, double winner, double other) {
  weft_text_addf(text, "%s against %s", weft_cli_amount(winner).text, weft_cli_amount(other).text);
}

/* The gain is the sum of what a rank saves in work and in each kind of idling; the
 * largest of these is the reason. */
static void add_gain(struct weft_text *text, const struct weft_cli_entry *winner,
                     const struct weft_cli_entry *other) {
  unsigned best = 0;
  double saved = -INFINITY;
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    const double difference = other->idle_by_cause[cause] - winner->idle_by_cause[cause];
    if (difference > saved) {
      saved = difference;
      best = cause;
    }
  }
  if (other->busy - winner->busy > saved) {
    weft_text_add(text, ", because a rank has less to compute (");
    add_numbers(text, winner->busy, other->busy);
  } else {
    weft_text_addf(text, ", because a rank idles less %s (", cause_words[best]);
    add_numbers(text, winner->idle_by_cause[best], other->idle_by_cause[best]);
  }
  weft_text_add(text, " on average)");
}

static void add_memory(struct weft_text *text, const struct weft_cli_entry *winner,
                       const struct weft_cli_entry *other) {
  const int order = order_of(winner->peak_memory, other->peak_memory);
  if (order == 0) {
    weft_text_add(text, "; both need the same memory");
    return;
  }
  weft_text_addf(text, "; it needs %s memory, ", order < 0 ? "less" : "more");
  add_numbers(text, winner->peak_memory, other->peak_memory);
}

/* The two are equally fast. */
static void add_tie(struct weft_text *text, const struct weft_cli_entry *winner,
                    const struct weft_cli_entry *other) {
  weft_text_add(text, " wins: as fast as ");
  add_entry(text, other);
  if (order_of(winner->peak_memory, other->peak_memory) != 0) {
    weft_text_add(text, ", with less memory, ");
    add_numbers(text, winner->peak_memory, other->peak_memory);
  } else if (winner->v != other->v) {
    weft_text_add(text, " in the same memory, with fewer stages per rank and so fewer messages");
  } else {
    weft_text_add(text, " in the same memory; the order between them means nothing");
  }
}

static void add_none(struct weft_text *text, const struct weft_cli_comparison *comparison) {
  const struct weft_cli_entry *least = &comparison->entries[0];
  for (size_t k = 1; k < comparison->entry_count; k++) {
    if (comparison->entries[k].peak_memory < least->peak_memory) {
      least = &comparison->entries[k];
    }
  }
  weft_text_addf(text, "no schedule fits into %s: the least, ",
                 weft_cli_amount(comparison->memory_limit).text);
  add_entry(text, least);
  weft_text_addf(text, ", needs %s", weft_cli_amount(least->peak_memory).text);
}

void weft_cli_compare_reason(struct weft_text *text, const struct weft_cli_comparison *comparison) {
  assert(text != NULL && comparison != NULL);
  const struct weft_cli_entry *winner = &comparison->entries[0], *other = &comparison->entries[1];
  if (comparison->fitting == 0) {
    add_none(text, comparison);
    return;
  }
  add_entry(text, winner);
  if (comparison->fitting == 1) {
    weft_text_add(text, comparison->entry_count > 1 ? " wins: the others are over the memory limit"
                                                    : " wins: it is the only one for this shape");
    return;
  }
  if (order_of(winner->makespan, other->makespan) == 0) {
    add_tie(text, winner, other);
    return;
  }
  weft_text_add(text, " wins: ");
  add_numbers(text, winner->makespan, other->makespan);
  weft_text_add(text, " of ");
  add_entry(text, other);
  add_gain(text, winner, other);
  add_memory(text, winner, other);
}
