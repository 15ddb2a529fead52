/* The collector of findings. */
#include "verify/findings.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const rule_ids[WEFT_RULE_COUNT] = {
#define WEFT_RULE(NAME, id, summary) [WEFT_RULE_##NAME] = id,
#include <weft/rules.def>
#undef WEFT_RULE
};

const char *weft_rule_id(enum weft_rule rule) {
  assert((unsigned)rule < WEFT_RULE_COUNT);
  return rule_ids[rule];
}

/* Doubles the list; the old block stays in the arena, which is freed at once. */
static bool grow_list(struct weft_findings *findings) {
  const size_t capacity = findings->list_capacity == 0 ? 16 : findings->list_capacity * 2;
  struct weft_finding *list = weft_arena_allocate(findings->arena, capacity, sizeof *list);
  if (list == NULL) {
    findings->failed = true;
    return false;
  }
  if (findings->list_count > 0) {
    memcpy(list, findings->list, findings->list_count * sizeof *list);
  }
  findings->list = list;
  findings->list_capacity = capacity;
  return true;
}

/* Copies the message, with the name behind every "stage 3". */
static void add_names(const struct weft_graph *graph, const char *message, struct weft_text *text) {
  static const char word[] = "stage ";
  for (const char *at = message, *found; (found = strstr(at, word)) != NULL; message = at) {
    char *end;
    at = found + strlen(word);
    const uint64_t stage = strtoull(at, &end, 10);
    weft_text_append(text, message, (size_t)(at - message));
    if (end > at && stage < graph->stage_count) {
      weft_graph_add_stage(graph, (uint32_t)stage, text);
      at = end;
    }
  }
  weft_text_add(text, message);
}

static const char *keep_message(struct weft_findings *findings, const char *message, size_t size) {
  if (!weft_graph_has_names(findings->graph)) {
    return weft_arena_copy_text(findings->arena, message, size);
  }
  WEFT_SCOPED_TEXT text = {.allocator = findings->arena->allocator};
  add_names(findings->graph, message, &text);
  return text.failed ? NULL : weft_arena_copy_text(findings->arena, text.data, text.size);
}

struct weft_finding *weft_findings_add(struct weft_findings *findings, enum weft_rule rule,
                                       struct weft_location location, const char *format, ...) {
  assert((unsigned)rule < WEFT_RULE_COUNT);
  if (++findings->count[rule] > findings->max || findings->failed ||
      (findings->list_count == findings->list_capacity && !grow_list(findings))) {
    return NULL;
  }
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  const int size = vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  const size_t kept = size < 0                        ? 0
                      : (size_t)size < sizeof message ? (size_t)size
                                                      : sizeof message - 1;
  const char *copy = keep_message(findings, message, kept);
  if (copy == NULL) {
    findings->failed = true;
    return NULL;
  }
  struct weft_finding *finding = &findings->list[findings->list_count++];
  *finding = (struct weft_finding){.rule = rule, .location = location, .message = copy};
  return finding;
}

bool weft_findings_any(const struct weft_findings *findings, enum weft_rule first,
                       enum weft_rule last) {
  assert(first <= last && last < WEFT_RULE_COUNT);
  for (unsigned rule = first; rule <= (unsigned)last; rule++) {
    if (findings->count[rule] > 0) {
      return true;
    }
  }
  return false;
}

/* A total order, so that the result does not depend on the C library's qsort(). */
static int compare(const void *a, const void *b) {
  const struct weft_finding *x = a, *y = b;
  const struct weft_location *p = &x->location, *q = &y->location;
  return x->rule != y->rule       ? (x->rule < y->rule ? -1 : 1)
         : p->rank != q->rank     ? (p->rank < q->rank ? -1 : 1)
         : p->step != q->step     ? (p->step < q->step ? -1 : 1)
         : p->action != q->action ? (p->action < q->action ? -1 : 1) /* parts of an overlap */
                                  : strcmp(x->message, y->message);
}

/* Keeps the list's order. A finding stays if there is room for it besides one
 * of each rule still to come. */
static void trim(struct weft_findings *findings) {
  size_t rules_left = 0, kept = 0;
  for (unsigned rule = 0; rule < WEFT_RULE_COUNT; rule++) {
    rules_left += findings->count[rule] > 0;
  }
  for (size_t i = 0; i < findings->list_count; i++) {
    const bool first_of_rule = i == 0 || findings->list[i].rule != findings->list[i - 1].rule;
    rules_left -= first_of_rule;
    if (first_of_rule || kept + rules_left < findings->max) {
      findings->list[kept++] = findings->list[i];
    }
  }
  findings->list_count = kept;
  assert(kept <= findings->max + WEFT_RULE_COUNT);
}

void weft_findings_report(struct weft_findings *findings, struct weft_report *report) {
  assert(findings->list_count <= findings->list_capacity && report != NULL);
  uint64_t all = 0;
  for (unsigned rule = 0; rule < WEFT_RULE_COUNT; rule++) {
    all += findings->count[rule];
  }
  if (findings->list_count > 0) {
    qsort(findings->list, findings->list_count, sizeof *findings->list, compare);
    trim(findings);
  }
  report->findings = findings->list;
  report->finding_count = findings->list_count;
  report->findings_left_out = all - findings->list_count;
  report->ok = all == 0;
}
