/* Which schedule wins, and why: one sentence, derived from its numbers and those of the runner-up. */
#include "plan/compare_reason.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "sim/event_waits.h"

/* ---- The order ---- */

/* Equal but for rounding; times are sums of many. */
static int order_of(double a, double b) {
  const double tolerance = 1e-9 * fmax(fabs(a), fabs(b));
  return a < b - tolerance ? -1 : a > b + tolerance ? 1 : 0;
}

int weft_comparison_order(const struct weft_comparison_entry *a,
                          const struct weft_comparison_entry *b) {
  assert(a != NULL && b != NULL);
  if (a->fits != b->fits) {
    return a->fits ? -1 : 1;
  }
  const int makespan = order_of(a->makespan, b->makespan);
  if (makespan != 0) {
    return makespan;
  }
  const int memory = order_of(a->peak_memory, b->peak_memory);
  return memory != 0 ? memory
                     : order_of(a->stages_per_rank, b->stages_per_rank); /* fewer messages */
}

/* ---- The sentence ---- */

static void add_amount(struct weft_text *text, double amount) {
  char buffer[WEFT_AMOUNT_SIZE];
  weft_text_add(text, weft_amount(buffer, sizeof buffer, amount));
}

/* Its stages per rank too, where the schedule takes others. */
static void add_entry(struct weft_text *text, const struct weft_comparison_entry *entry) {
  weft_text_add_escaped(text, entry->name, strlen(entry->name));
  if (entry->info != NULL && entry->info->stages_per_rank_min < entry->info->stages_per_rank_max) {
    weft_text_add(text, " with v = ");
    add_amount(text, entry->stages_per_rank);
  }
}

/* "3 against 4" */
static void add_numbers(struct weft_text *text, double winner, double other) {
  add_amount(text, winner);
  weft_text_add(text, " against ");
  add_amount(text, other);
}

/* The gain is the sum of what a rank saves in work and in each kind of idling; the largest of these
 * is the reason. */
static void add_gain(struct weft_text *text, const struct weft_comparison_entry *winner,
                     const struct weft_comparison_entry *other) {
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
    weft_text_addf(text, ", because a rank idles less %s (", weft_idle_cause_words(best));
    add_numbers(text, winner->idle_by_cause[best], other->idle_by_cause[best]);
  }
  weft_text_add(text, " on average)");
}

static void add_memory(struct weft_text *text, const struct weft_comparison_entry *winner,
                       const struct weft_comparison_entry *other) {
  const int order = order_of(winner->peak_memory, other->peak_memory);
  if (order == 0) {
    weft_text_add(text, "; both need the same memory");
    return;
  }
  weft_text_addf(text, "; it needs %s memory, ", order < 0 ? "less" : "more");
  add_numbers(text, winner->peak_memory, other->peak_memory);
}

/* The two are equally fast. */
static void add_tie(struct weft_text *text, const struct weft_comparison_entry *winner,
                    const struct weft_comparison_entry *other) {
  weft_text_add(text, " wins: as fast as ");
  add_entry(text, other);
  if (order_of(winner->peak_memory, other->peak_memory) != 0) {
    weft_text_add(text, ", with less memory, ");
    add_numbers(text, winner->peak_memory, other->peak_memory);
  } else if (order_of(winner->stages_per_rank, other->stages_per_rank) != 0) {
    weft_text_add(text, " in the same memory, with fewer stages per rank and so fewer messages");
  } else {
    weft_text_add(text, " in the same memory; the order between them means nothing");
  }
}

static void add_none(struct weft_text *text, const struct weft_comparison *comparison,
                     double memory_limit) {
  const struct weft_comparison_entry *least = &comparison->entries[0];
  for (uint32_t k = 1; k < comparison->entry_count; k++) {
    if (comparison->entries[k].peak_memory < least->peak_memory) {
      least = &comparison->entries[k];
    }
  }
  weft_text_add(text, "no schedule fits into ");
  add_amount(text, memory_limit);
  weft_text_add(text, ": the least, ");
  add_entry(text, least);
  weft_text_add(text, ", needs ");
  add_amount(text, least->peak_memory);
}

void weft_comparison_explain(struct weft_text *text, const struct weft_comparison *comparison,
                             double memory_limit) {
  assert(comparison->entry_count > 0 && comparison->fitting <= comparison->entry_count);
  const struct weft_comparison_entry *winner = &comparison->entries[0], *other = winner + 1;
  if (comparison->fitting == 0) {
    add_none(text, comparison, memory_limit);
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
