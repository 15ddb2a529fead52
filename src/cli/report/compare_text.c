/* The comparison as a table. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "cli/io/error_message.h"
#include "cli/io/text_columns.h"
#include "cli/report/compare_report.h"
#include "cli/report/sim_report.h"

enum { NAME_WIDTH_MIN = 22, NAME_WIDTH_MAX = 60 };

static void add_head(struct weft_text *text, const struct weft_costs *costs,
                     const struct weft_comparison *comparison) {
  const struct weft_shape *shape = &comparison->shape;
  weft_text_addf(text, "%" PRIu32 " rank%s, %" PRIu32 " microbatch%s%s", shape->ranks,
                 weft_cli_plural(shape->ranks), shape->microbatches,
                 shape->microbatches == 1 ? "" : "es", costs->unit[0] != '\0' ? "; times in " : "");
  weft_text_addf(text, "%s; ", costs->unit);
  weft_cli_scope_add(text, costs, shape->ranks, comparison->graph);
  weft_text_add(text, "\n\n");
}

/* The width of the names' column. */
static int name_width(const struct weft_comparison *comparison) {
  size_t width = NAME_WIDTH_MIN;
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    const struct weft_cli_quoted name = weft_cli_quoted(comparison->entries[k].name);
    const size_t length = weft_cli_width(name.text, strlen(name.text));
    width = length > width && length <= NAME_WIDTH_MAX ? length : width;
  }
  return (int)width;
}

/* Name, v, and the numbers, each in its column. */
static void add_row(struct weft_text *text, const struct weft_comparison_entry *entry, int width,
                    bool wins, bool memory) {
  weft_text_add(text, wins ? "* " : "  ");
  const size_t begin = text->size;
  weft_text_add_escaped(text, entry->name, strlen(entry->name));
  const size_t used = text->failed ? 0 : weft_cli_width(text->data + begin, text->size - begin);
  weft_text_addf(text, "%*s %3s  %10s  %10s  %6.2f %%  %10s",
                 used < (size_t)width ? width - (int)used : 0, "",
                 weft_cli_amount(entry->stages_per_rank).text,
                 weft_cli_amount(entry->makespan).text, weft_cli_amount(entry->span).text,
                 100 * entry->bubble_ratio, weft_cli_amount(entry->peak_activation).text);
  if (memory) {
    weft_text_addf(text, "  %10s", weft_cli_amount(entry->peak_memory).text);
  }
  weft_text_add(text, "\n");
}

/* More than activations, because the costs have sizes of parameters. */
static bool has_memory(const struct weft_comparison *comparison) {
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    if (comparison->entries[k].peak_memory > comparison->entries[k].peak_activation) {
      return true;
    }
  }
  return false;
}

static void add_omissions(struct weft_text *text, const struct weft_comparison *comparison,
                          int width) {
  weft_text_add(text, comparison->omission_count > 0 ? "\nleft out:\n" : "");
  for (uint32_t k = 0; k < comparison->omission_count; k++) {
    const struct weft_comparison_omission *omission = &comparison->omissions[k];
    weft_text_addf(text, "  %-*s %3" PRIu32 "  %s\n", width, omission->info->name,
                   omission->stages_per_rank, omission->why);
  }
}

void weft_cli_compare_text(struct weft_text *text, const struct weft_compare_request *request,
                           const struct weft_comparison *comparison) {
  assert(text != NULL && request != NULL && comparison != NULL);
  const bool memory = has_memory(comparison);
  const int width = name_width(comparison);
  add_head(text, request->costs, comparison);
  weft_text_addf(text, "  %-*s %3s  %10s  %10s  %8s  %10s%s\n", width, "name", "v", "makespan",
                 "span", "bubble", "activation", memory ? "      memory" : "");
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    if (k == comparison->fitting) {
      weft_text_addf(text, "%sover the memory limit of %s:\n", k > 0 ? "\n" : "",
                     weft_cli_amount(request->memory_limit).text);
    }
    add_row(text, &comparison->entries[k], width, k == 0 && comparison->fitting > 0, memory);
  }
  add_omissions(text, comparison, width);
  weft_text_addf(text, "\n%s.\n", comparison->why);
}
