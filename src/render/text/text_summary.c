/* The sentences under a timeline. */
#include "render/text/text_summary.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "render/timeline.h"

static const char *cause_words(enum weft_idle_cause cause) {
  switch (cause) {
    case WEFT_IDLE_START: return "before its first action";
    case WEFT_IDLE_FORWARD: return "waiting for activations";
    case WEFT_IDLE_GRADIENT: return "waiting for gradients";
    case WEFT_IDLE_CHANNEL: return "waiting for a busy channel";
    case WEFT_IDLE_UNSHARD: return "waiting for parameters";
    default: return "after its last action";
  }
}

static void add_time(struct weft_text *text, const struct weft_picture *picture, double time) {
  weft_add_rounded(text, time);
  if (picture->costs != NULL && picture->costs->unit[0] != '\0') {
    const char *unit = picture->costs->unit;
    weft_text_add(text, " ");
    weft_text_add_escaped(text, unit, strnlen(unit, sizeof picture->costs->unit));
  }
}

static void add_peak(struct weft_text *text, const struct weft_simulation *simulation) {
  uint32_t rank = 0;
  for (uint32_t i = 0; i < simulation->program->rank_count; i++) {
    if (simulation->ranks[i].peak_activation > simulation->ranks[rank].peak_activation) {
      rank = i;
    }
  }
  weft_text_add(text, ", peak memory ");
  weft_add_rounded(text, simulation->peak_activation);
  weft_text_addf(text, " on rank %" PRIu32 "\n", rank);
}

/* The cause with most of the idle time of the ranks first ... last-1. */
static enum weft_idle_cause main_cause(const struct weft_simulation *simulation, uint32_t first,
                                       uint32_t end, double *time) {
  enum weft_idle_cause best = WEFT_IDLE_START;
  *time = -1;
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    double sum = 0;
    for (uint32_t rank = first; rank < end; rank++) {
      sum += simulation->ranks[rank].idle_by_cause[cause];
    }
    if (sum > *time) {
      *time = sum;
      best = cause;
    }
  }
  return best;
}

static void add_share(struct weft_text *text, double part, double total) {
  weft_text_addf(text, " (%.1f %%)", total > 0 ? 100 * part / total : 0);
}

/* The rank with most idle time; *all when every rank has as much. */
static uint32_t most_idle(const struct weft_simulation *simulation, bool *all) {
  const uint32_t count = simulation->program->rank_count;
  const double small = simulation->makespan * 1e-9;
  uint32_t most = 0;
  double least = simulation->ranks[0].idle;
  for (uint32_t rank = 1; rank < count; rank++) {
    const double idle = simulation->ranks[rank].idle;
    most = idle > simulation->ranks[most].idle + small ? rank : most;
    least = idle < least ? idle : least;
  }
  *all = count > 1 && simulation->ranks[most].idle - least <= small;
  return most;
}

static void add_idle(struct weft_text *text, const struct weft_picture *picture) {
  const struct weft_simulation *simulation = picture->simulation;
  bool all;
  const uint32_t rank = most_idle(simulation, &all);
  const double idle = simulation->ranks[rank].idle;
  if (!(idle > 0)) {
    weft_text_add(text, "no rank is ever idle\n");
    return;
  }
  if (all) {
    weft_text_add(text, "every rank idles ");
  } else {
    weft_text_addf(text, "rank %" PRIu32 " idles most, ", rank);
  }
  add_time(text, picture, idle);
  add_share(text, idle, simulation->makespan);
  double time;
  const uint32_t end = all ? simulation->program->rank_count : rank + 1;
  const enum weft_idle_cause cause = main_cause(simulation, all ? 0 : rank, end, &time);
  const double total = all ? idle * simulation->program->rank_count : idle;
  weft_text_addf(text, "%s %s\n", time < total * (1 - 1e-9) ? ", mostly" : ",", cause_words(cause));
}

void weft_text_summary_add(struct weft_text *text, const struct weft_picture *picture) {
  assert(picture->simulation != NULL && picture->simulation->program != NULL);
  const struct weft_simulation *simulation = picture->simulation;
  weft_text_add(text, "makespan ");
  add_time(text, picture, simulation->makespan);
  weft_text_addf(text, ", bubble %.1f %%", 100 * simulation->bubble_ratio);
  if (simulation->peak_activation > 0) {
    add_peak(text, simulation);
  } else {
    weft_text_add(text, "\n");
  }
  if (simulation->program->rank_count > 0) {
    add_idle(text, picture);
  }
  char room[WEFT_NOTE_SIZE];
  const char *note = weft_picture_note(picture, room);
  if (note[0] != '\0') {
    weft_add_line_text(text, note, WEFT_NOTE_SIZE);
    weft_text_add(text, "\n");
  }
  if (!weft_graph_is_chain(simulation->program->graph)) {
    weft_add_edges(text, simulation->program->graph);
    weft_text_add(text, "\n");
    if (simulation->program->graph->names != NULL) {
      weft_add_stage_names(text, simulation->program->graph);
      weft_text_add(text, "\n");
    }
  }
}
