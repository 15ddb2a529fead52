/* The report of `weft sim`, as text and as "weft-sim/1". */
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include <weft/support.h>

#include "cli/io/text_columns.h"
#include "cli/report/graph_summary.h"
#include "cli/report/program_json.h"
#include "cli/report/sim_report.h"

#define RANKS_SHOWN 32u

/* ---- Totals ---- */

static void add_line(struct weft_text *text, const char *label, double amount, const char *unit,
                     const char *more) {
  weft_text_addf(text, "%-17s %s%s\n", label, weft_cli_amount_in(amount, unit).text, more);
}

/* The first of those with the largest peak. */
static uint32_t rank_of_peak(const struct weft_simulation *simulation) {
  uint32_t peak = 0;
  for (uint32_t rank = 1; rank < simulation->program->rank_count; rank++) {
    if (simulation->ranks[rank].peak_activation > simulation->ranks[peak].peak_activation) {
      peak = rank;
    }
  }
  return peak;
}

static void add_peak(struct weft_text *text, const struct weft_simulation *simulation) {
  if (simulation->program->rank_count > 0) {
    const uint32_t rank = rank_of_peak(simulation);
    weft_text_addf(text, "%-17s %s, on rank %" PRIu32 " at %s\n", "peak activation",
                   weft_cli_amount(simulation->peak_activation).text, rank,
                   weft_cli_amount(simulation->ranks[rank].peak_at).text);
  }
}

struct weft_cli_words weft_cli_scope_text(const struct weft_costs *costs,
                                          const struct weft_program *program) {
  struct weft_cli_words scope;
  (void)weft_costs_describe(costs, program->rank_count, program->stage_count, scope.text,
                            sizeof scope.text);
  return scope;
}

void weft_cli_heading_add(struct weft_text *text, uint32_t ranks, uint32_t microbatches,
                          const struct weft_costs *costs, const struct weft_graph *graph,
                          bool by_parts) {
  char sentence[96];
  const uint32_t stages = weft_graph_stage_count(graph);
  const bool is_divided = costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK && stages == 0;
  weft_text_addf(text, "%s, %s%s%s; %s\n\n", weft_cli_count(ranks, "rank").text,
                 weft_cli_count(microbatches, "microbatch").text,
                 costs->unit[0] != '\0' ? "; times in " : "", costs->unit,
                 by_parts     ? "times are of each stage"
                 : is_divided ? "times are of a rank's share of the model: with v stages per rank\n"
                                "each stage takes 1/v of its time and of its activations"
                              : weft_costs_describe(costs, ranks, stages > 0 ? stages : 1, sentence,
                                                    sizeof sentence));
}

const char *weft_cli_scope_name(const struct weft_costs *costs) {
  return costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK ? "rank" : "stage";
}

void weft_cli_scope_json(struct weft_json *json, const struct weft_costs *costs,
                         const struct weft_program *program) {
  const bool divided = costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK &&
                       program->stage_count > program->rank_count;
  weft_json_string(json, "costs_of", weft_cli_scope_name(costs));
  weft_json_exact(json, "stage_share",
                  divided ? (double)program->rank_count / program->stage_count : 1);
}

void weft_cli_sim_text_numbers(struct weft_text *text, const struct weft_cli_sim_report *report) {
  assert(text != NULL && report != NULL);
  const struct weft_simulation *simulation = report->simulation;
  const char *unit = report->costs->unit;
  weft_text_addf(text, "%-17s %s\n", "costs",
                 weft_cli_scope_text(report->costs, simulation->program).text);
  add_line(text, "makespan", simulation->makespan, unit, "");
  add_line(text, "span", simulation->span, unit,
           ", the longest from first to last action of a rank");
  add_line(text, "period", report->period, unit,
           " per step, when steps follow each other without a barrier");
  weft_text_addf(text, "%-17s %.2f %% of the makespan, %.2f %% of the span\n", "bubble",
                 100 * simulation->bubble_ratio, 100 * simulation->span_bubble_ratio);
  add_peak(text, simulation);
}

static void add_whole(struct weft_text *text, const struct weft_cli_sim_report *report) {
  const struct weft_program *program = report->simulation->program;
  weft_text_add_escaped(text, report->name, strlen(report->name));
  weft_text_addf(text, ": %s\n", weft_cli_size(program).text);
  weft_cli_sim_text_numbers(text, report);
  weft_cli_graph_text(text, "graph             ", program->graph);
  weft_cli_note_text(text, program);
}

static void add_jitter(struct weft_text *text, const struct weft_cli_sim_report *report) {
  const struct weft_cli_jitter *jitter = &report->jitter;
  if (jitter->runs == 0) {
    return;
  }
  weft_text_addf(text,
                 "%-17s makespan p50 %s, p90 %s, p99 %s, most %s, in %" PRIu64
                 " runs whose times vary by %g %%\n",
                 "jitter", weft_cli_amount(jitter->p50).text, weft_cli_amount(jitter->p90).text,
                 weft_cli_amount(jitter->p99).text, weft_cli_amount(jitter->most).text,
                 jitter->runs, 100 * jitter->share);
}

/* ---- The ranks ---- */

/* Numbers of a rank, in the order of the table and of JSON. */
static const struct {
  const char *key;
  const char *column; /* NULL: not in the table */
  size_t offset;
} fields[] = {
#define FIELD(key, column, member) \
  { key, column, offsetof(struct weft_rank_times, member) }
    FIELD("busy", "busy", busy),
    FIELD("idle", "idle", idle),
    FIELD("span", "span", span),
    FIELD("first_start", NULL, first_start),
    FIELD("last_end", NULL, last_end),
    FIELD("peak_activation", "peak", peak_activation),
    FIELD("peak_at", NULL, peak_at),
    FIELD("peak_memory", "memory", peak_memory),
    FIELD("peak_parameters", "parameters", peak_parameters),
    FIELD("peak_gradients", "gradients", peak_gradients),
    FIELD("receive_buffers", "buffers", receive_buffers_peak),
    FIELD("message_bytes", "bytes", message_bytes_peak)};

enum {
  FIELD_MEMORY = 7,
  FIELD_BUFFERS = 10,
  FIELD_BYTES = 11,
  FIELD_CAUSES, /* and one for each cause */
  FIELD_COUNT = FIELD_CAUSES + WEFT_IDLE_CAUSES
};

static_assert(FIELD_CAUSES == WEFT_ARRAY_LENGTH(fields), "a number for each field");

static double value_of(const struct weft_rank_times *rank, unsigned field) {
  assert(field < FIELD_COUNT);
  if (field >= FIELD_CAUSES) {
    return rank->idle_by_cause[field - FIELD_CAUSES];
  }
  return field == FIELD_BUFFERS ? rank->receive_buffers_peak
                                : *(const double *)((const char *)rank + fields[field].offset);
}

static const char *column_name(unsigned field) {
  return field < FIELD_CAUSES ? fields[field].column
                              : weft_idle_cause_name((enum weft_idle_cause)(field - FIELD_CAUSES));
}

/* Memory is shown where it is more than the activations; parameters, gradients,
 * causes and buffers where there are any. */
static bool is_shown(const struct weft_simulation *simulation, unsigned field) {
  bool shown = field < FIELD_MEMORY;
  for (uint32_t rank = 0; !shown && rank < simulation->program->rank_count; rank++) {
    const struct weft_rank_times *times = &simulation->ranks[rank];
    shown = value_of(times, field) > (field == FIELD_MEMORY ? times->peak_activation : 0);
  }
  return shown && column_name(field) != NULL;
}

static int width_of(const struct weft_simulation *simulation, unsigned column, uint32_t shown) {
  size_t width = strlen(column_name(column));
  for (uint32_t rank = 0; rank < shown; rank++) {
    const size_t size = strlen(weft_cli_amount(value_of(&simulation->ranks[rank], column)).text);
    width = size > width ? size : width;
  }
  return (int)width;
}

static void add_table_head(struct weft_text *text, const int *widths) {
  weft_text_add(text, "\n rank");
  for (unsigned column = 0; column < FIELD_COUNT; column++) {
    if (widths[column] > 0) {
      weft_text_addf(text, "%s  %*s", column == FIELD_CAUSES ? "  | idle:" : "", widths[column],
                     column_name(column));
    }
  }
  weft_text_add(text, "\n");
}

void weft_cli_sim_text_ranks(struct weft_text *text, const struct weft_cli_sim_report *report) {
  assert(text != NULL && report != NULL);
  const struct weft_simulation *simulation = report->simulation;
  const uint32_t count = simulation->program->rank_count;
  const uint32_t shown = count <= RANKS_SHOWN ? count : RANKS_SHOWN;
  int widths[FIELD_COUNT];
  for (unsigned column = 0; column < FIELD_COUNT; column++) {
    widths[column] = is_shown(simulation, column) ? width_of(simulation, column, shown) : 0;
  }
  add_table_head(text, widths);
  for (uint32_t rank = 0; rank < shown; rank++) {
    weft_text_addf(text, "%5" PRIu32, rank);
    for (unsigned column = 0; column < FIELD_COUNT; column++) {
      if (widths[column] > 0) {
        weft_text_addf(text, "%s  %*s", column == FIELD_CAUSES ? "         " : "", widths[column],
                       weft_cli_amount(value_of(&simulation->ranks[rank], column)).text);
      }
    }
    weft_text_add(text, "\n");
  }
  if (shown < count) {
    weft_text_addf(text, "  ... %" PRIu32 " more ranks; --json has them all\n", count - shown);
  }
}

/* ---- The critical path ---- */

static void add_path(struct weft_text *text, const struct weft_cli_sim_report *report) {
  const struct weft_simulation *simulation = report->simulation;
  const double ticks = simulation->ticks_per_unit;
  if (!report->has_path) {
    return;
  }
  const struct weft_graph *graph = simulation->program->graph;
  const bool named = weft_graph_has_names(graph);
  weft_text_addf(text, "\ncritical path: %" PRIu64 " actions\n%12s  %12s   rank  action%s\n",
                 report->path_count, "begin", "end", named ? "      stage" : "");
  for (uint64_t k = 0; k < report->path_count; k++) {
    const struct weft_event *event = &simulation->events[report->path[k]];
    weft_text_addf(text, "%12s  %12s  %5" PRIu32 "  ",
                   weft_cli_amount((double)event->begin / ticks).text,
                   weft_cli_amount((double)event->end / ticks).text, event->rank);
    const struct weft_action *action = &simulation->program->actions[event->record];
    const size_t begin = text->size;
    weft_action_print(action, text);
    if (named && action->op != WEFT_OP_OVERLAP_F_B) {
      weft_cli_pad(text, begin, 12);
      weft_graph_add_stage(graph, action->stage, text);
    }
    weft_text_add(text, "\n");
  }
}

void weft_cli_sim_text(struct weft_text *text, const struct weft_cli_sim_report *report) {
  assert(text != NULL && report != NULL);
  add_whole(text, report);
  add_jitter(text, report);
  if (report->simulation->program->rank_count > 0) {
    weft_cli_sim_text_ranks(text, report);
  }
  add_path(text, report);
}

/* ---- JSON ---- */

static void add_json_rank(struct weft_json *json, const struct weft_rank_times *rank) {
  weft_json_open(json, NULL, '{');
  for (unsigned field = 0; field < FIELD_COUNT; field++) {
    if (field == FIELD_CAUSES) {
      weft_json_open(json, "idle_by_cause", '{');
    }
    if (field != FIELD_BYTES || rank->message_bytes_peak > 0) {
      weft_json_exact(json, field < FIELD_CAUSES ? fields[field].key : column_name(field),
                      value_of(rank, field));
    }
  }
  weft_json_close(json, '}');
  weft_json_close(json, '}');
}

static void add_json_jitter(struct weft_json *json, const struct weft_cli_jitter *jitter) {
  if (jitter->runs == 0) {
    return;
  }
  weft_json_open(json, "jitter", '{');
  weft_json_exact(json, "share", jitter->share);
  weft_json_number(json, "runs", jitter->runs);
  weft_json_exact(json, "mean", jitter->mean);
  weft_json_exact(json, "min", jitter->least);
  weft_json_exact(json, "p50", jitter->p50);
  weft_json_exact(json, "p90", jitter->p90);
  weft_json_exact(json, "p99", jitter->p99);
  weft_json_exact(json, "max", jitter->most);
  weft_json_close(json, '}');
}

static void add_limit(struct weft_json *json, const struct weft_cli_sim_report *report) {
  if (!report->limited) {
    return;
  }
  weft_json_exact(json, "memory_limit", report->memory_limit);
  weft_json_open(json, "over_limit", '[');
  for (uint32_t rank = 0; rank < report->simulation->program->rank_count; rank++) {
    if (!weft_memory_fits(report->simulation->ranks[rank].peak_memory, report->memory_limit)) {
      weft_json_number(json, NULL, rank);
    }
  }
  weft_json_close(json, ']');
}

static void add_json_path(struct weft_json *json, const struct weft_cli_sim_report *report) {
  const struct weft_simulation *simulation = report->simulation;
  if (!report->has_path) {
    return;
  }
  weft_json_open(json, "critical_path", '[');
  for (uint64_t k = 0; k < report->path_count; k++) {
    const struct weft_event *event = &simulation->events[report->path[k]];
    weft_json_open(json, NULL, '{');
    weft_json_number(json, "rank", event->rank);
    weft_json_action(json, "action", &simulation->program->actions[event->record]);
    weft_json_exact(json, "begin", (double)event->begin / simulation->ticks_per_unit);
    weft_json_exact(json, "end", (double)event->end / simulation->ticks_per_unit);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

void weft_cli_sim_json_members(struct weft_json *json, const struct weft_cli_sim_report *report) {
  assert(report != NULL);
  const struct weft_simulation *simulation = report->simulation;
  const uint32_t rank_count = simulation->program->rank_count;
  weft_json_string(json, "unit", report->costs->unit);
  weft_cli_scope_json(json, report->costs, simulation->program);
  weft_json_exact(json, "makespan", simulation->makespan);
  weft_json_exact(json, "span", simulation->span);
  weft_json_exact(json, "bubble_ratio", simulation->bubble_ratio);
  weft_json_exact(json, "span_bubble_ratio", simulation->span_bubble_ratio);
  weft_json_exact(json, "period", report->period);
  weft_json_exact(json, "peak_activation", simulation->peak_activation);
  weft_json_exact(json, "peak_at",
                  rank_count > 0 ? simulation->ranks[rank_of_peak(simulation)].peak_at : 0);
  add_limit(json, report);
  add_json_jitter(json, &report->jitter);
  weft_json_open(json, "ranks", '[');
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    add_json_rank(json, &simulation->ranks[rank]);
  }
  weft_json_close(json, ']');
  add_json_path(json, report);
}

void weft_cli_sim_json(struct weft_text *text, const struct weft_cli_sim_report *report) {
  assert(text != NULL && report != NULL);
  struct weft_json json = weft_json_begin(text, "weft-sim/1");
  weft_cli_graph_json(&json, report->simulation->program->graph);
  weft_cli_note_json(&json, report->simulation->program);
  weft_cli_sim_json_members(&json, report);
  weft_json_end(&json);
}
