/* The timeline as one HTML page. The page itself is src/render/html/page; here its
 * data is made, from events and links alone: a JSON document with the names,
 * and for each picture a stream of bytes in base64, which keeps 230,000 events
 * in 4 MB and out of the way of locales and rounding:
 *
 *     number   7 bits per byte, low ones first, the top bit says "more"
 *     signed   a number: 2n, or -2n - 1 when negative
 *     real     8 bytes, IEEE 754, low byte first
 *
 *     number   ranks, stages, microbatches
 *     real     ticks per unit, makespan, span, bubble ratio, span bubble ratio,
 *              peak activation, time of a transfer
 *     ranks ×  real busy, idle, first start, last end, span, idle by 6 causes,
 *              peak activation, peak memory, peak at; number receive buffers
 *     number   events of all ranks
 *     ranks ×  number events, and for each
 *                byte    op + 16 × links (15: and as many more as the next number says)
 *                number  stage (of an overlap: its parts), microbatch
 *                signed  begin - begin of the event before, in ticks (of the first:
 *                        - the earliest begin of all, from which times count)
 *                number  duration in ticks
 *                links × signed  number of an event that it waits for - its own
 *     ranks ×  number points of memory, and for each
 *                number  ticks since the point before
 *                real    size from there on
 *     number   events of the critical path, and for each, first to last,
 *                signed  its number - the number of the one before
 *
 * A picture whose stages form a graph has the field "edges", and in its stream every SEND and RECV
 * has a number after its stage, the stages that it skips; and every link has one, the ticks from
 * the end of the other event to when what it made was there: a table has no RECV to tell.
 *
 * page/codec.js reads it. */
#include <weft/render.h>
#include <weft/support.h>

#include <inttypes.h>
#include <string.h>

#include "ir/action.h"
#include "render/html/timeline_page.h"
#include "render/palette.h"
#include "render/timeline.h"
#include "sim/event_waits.h"
#include "spec/costs_fields.h"

/* What a browser can still hold and draw; page/codec.js has it too. */
#define EVENTS_MAX UINT64_C(10000000)
/* More stages than this share colours: their colours could not be distinguished. */
#define STAGE_COLOURS_MAX 256u
/* Links of an event that do not fit into its first byte. */
#define LINKS_MORE 15u

/* ---- Bytes as base64 ---- */

struct packer {
  struct weft_text *text;
  uint32_t bits;  /* not yet written */
  unsigned count; /* bytes in them: 0, 1, 2 */
};

static void put_digits(struct packer *packer, unsigned digits) {
  static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char quad[4] = {'=', '=', '=', '='};
  for (unsigned i = 0; i < digits; i++) {
    quad[i] = alphabet[packer->bits >> (18 - 6 * i) & 63];
  }
  weft_text_append(packer->text, quad, sizeof quad);
}

static inline __attribute__((always_inline)) void pack_byte(struct packer *packer, uint8_t byte) {
  packer->bits |= (uint32_t)byte << (16 - 8 * packer->count);
  if (++packer->count == 3) {
    put_digits(packer, 4);
    packer->bits = 0;
    packer->count = 0;
  }
}

static void pack_number(struct packer *packer, uint64_t number) {
  for (; number > 127; number >>= 7) {
    pack_byte(packer, (uint8_t)(number | 128));
  }
  pack_byte(packer, (uint8_t)number);
}

static void pack_signed(struct packer *packer, int64_t number) {
  const uint64_t twice = (uint64_t)number << 1;
  pack_number(packer, number < 0 ? ~twice : twice);
}

static void pack_real(struct packer *packer, double number) {
  uint64_t bits;
  memcpy(&bits, &number, sizeof bits);
  for (unsigned i = 0; i < 64; i += 8) {
    pack_byte(packer, (uint8_t)(bits >> i));
  }
}

static void pack_reals(struct packer *packer, const double *numbers, size_t count) {
  for (size_t k = 0; k < count; k++) {
    pack_real(packer, numbers[k]);
  }
}

/* ---- One picture ---- */

struct page_picture {
  const struct weft_picture *picture;
  struct weft_arena arena;
  struct weft_links *links;
  uint32_t *event_of; /* [record]; WEFT_MATCH_NONE for bubbles */
  bool has_edges;     /* its stages form a graph: the page gets its edges */
  int64_t earliest;   /* begin of all events, in ticks: measured times may be far from 0,
                         farther than a browser's numbers are exact */
  struct weft_rank_curve curve;
};

static void pack_totals(struct packer *packer, const struct weft_picture *picture) {
  const struct weft_simulation *simulation = picture->simulation;
  pack_number(packer, simulation->program->rank_count);
  pack_number(packer, simulation->program->stage_count);
  pack_number(packer, simulation->program->microbatch_count);
  const struct weft_hop_costs *hop = picture->costs != NULL ? &picture->costs->hop : NULL;
  const double totals[] = {simulation->ticks_per_unit,
                           simulation->makespan,
                           simulation->span,
                           simulation->bubble_ratio,
                           simulation->span_bubble_ratio,
                           simulation->peak_activation,
                           hop != NULL ? hop->latency + weft_hop_transfer(hop, -1) : 0};
  pack_reals(packer, totals, WEFT_ARRAY_LENGTH(totals));
}

static void pack_rank_times(struct packer *packer, const struct weft_rank_times *times) {
  const double spans[] = {times->busy, times->idle, times->first_start, times->last_end,
                          times->span};
  const double peaks[] = {times->peak_activation, times->peak_memory, times->peak_at};
  pack_reals(packer, spans, WEFT_ARRAY_LENGTH(spans));
  pack_reals(packer, times->idle_by_cause, WEFT_IDLE_CAUSES);
  pack_reals(packer, peaks, WEFT_ARRAY_LENGTH(peaks));
  pack_number(packer, times->receive_buffers_peak);
}

/* The events that an event waits for; for a RECV that is its SEND. */
static unsigned links_of(const struct page_picture *page, uint64_t record,
                         uint32_t events[WEFT_NEEDS_MAX + 1]) {
  uint64_t records[WEFT_NEEDS_MAX + 1];
  unsigned count = weft_links_needs(page->links, record, records);
  const uint8_t op = page->picture->simulation->program->actions[record].op;
  if (weft_op_in(op, WEFT_OPS_RECV) && weft_links_peer(page->links, record) != WEFT_MATCH_NONE) {
    records[count++] = weft_links_peer(page->links, record);
  }
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++) {
    if (page->event_of[records[i]] != WEFT_MATCH_NONE) {
      events[kept++] = page->event_of[records[i]];
    }
  }
  return kept;
}

/* Of any two times: what does not fit comes back right when it is added again. */
static int64_t difference(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }

/* Ticks that what an event made took to a record that needs it. */
static uint64_t travel_of(const struct weft_simulation *simulation, uint64_t event,
                          uint64_t record) {
  const int64_t end = simulation->events[event].end;
  const int64_t there = weft_arrival_of(simulation, event, record);
  return there > end ? (uint64_t)difference(there, end) : 0;
}

static void pack_event(struct packer *packer, const struct page_picture *page, uint64_t number,
                       int64_t previous_begin) {
  const struct weft_event *event = &page->picture->simulation->events[number];
  const struct weft_action action = page->picture->simulation->program->actions[event->record];
  uint32_t links[WEFT_NEEDS_MAX + 1];
  const unsigned count = links_of(page, event->record, links);
  _Static_assert(WEFT_OP_COUNT <= 16, "an op has four bits");
  pack_byte(packer, (uint8_t)(action.op | (count < LINKS_MORE ? count : LINKS_MORE) << 4));
  if (count >= LINKS_MORE) {
    pack_number(packer, count - LINKS_MORE);
  }
  pack_number(packer, action.op == WEFT_OP_OVERLAP_F_B ? action.parts : action.stage);
  if (page->has_edges && weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    pack_number(packer, action.skip);
  }
  pack_number(packer, action.microbatch);
  pack_signed(packer, difference(event->begin, previous_begin));
  pack_number(packer,
              event->end > event->begin ? (uint64_t)difference(event->end, event->begin) : 0);
  for (unsigned i = 0; i < count; i++) {
    pack_signed(packer, (int64_t)links[i] - (int64_t)number);
    if (page->has_edges) {
      pack_number(packer, travel_of(page->picture->simulation, links[i], event->record));
    }
  }
}

static void pack_events(struct packer *packer, const struct page_picture *page) {
  const struct weft_simulation *simulation = page->picture->simulation;
  pack_number(packer, simulation->event_count);
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    const uint64_t begin = simulation->event_begin[rank], end = simulation->event_begin[rank + 1];
    int64_t previous_begin = page->earliest;
    pack_number(packer, end - begin);
    for (uint64_t i = begin; i < end; i++) {
      pack_event(packer, page, i, previous_begin);
      previous_begin = simulation->events[i].begin;
    }
  }
}

/* Ticks since the earliest begin; the time was made from whole ticks. */
static int64_t ticks_at(const struct page_picture *page, double at) {
  const double ticks = at * page->picture->simulation->ticks_per_unit - (double)page->earliest;
  return ticks < 0.5 ? 0 : ticks > 9e18 ? INT64_MAX : (int64_t)(ticks + 0.5);
}

static void pack_curve(struct packer *packer, const struct page_picture *page) {
  const struct weft_rank_curve *curve = &page->curve;
  int64_t previous = 0;
  pack_number(packer, curve->count);
  for (uint64_t i = 0; i < curve->count; i++) {
    int64_t at = ticks_at(page, curve->points[i].at);
    at = at > previous ? at : previous;
    pack_number(packer, (uint64_t)(at - previous));
    pack_real(packer, curve->points[i].size);
    previous = at;
  }
}

static enum weft_status pack_memory(struct packer *packer, struct page_picture *page,
                                    struct weft_error *error) {
  for (uint32_t rank = 0; rank < page->picture->simulation->program->rank_count; rank++) {
    WEFT_TRY(weft_rank_curve_read(&page->curve, page->picture, rank, error));
    pack_curve(packer, page);
  }
  return WEFT_OK;
}

static enum weft_status pack_path(struct packer *packer, struct page_picture *page,
                                  struct weft_error *error) {
  const struct weft_simulation *simulation = page->picture->simulation;
  uint64_t count;
  uint64_t *path = weft_arena_allocate(&page->arena, simulation->event_count, sizeof *path);
  WEFT_TRY(weft_arena_status(&page->arena, error));
  WEFT_TRY(weft_critical_path(page->arena.allocator, simulation, path, simulation->event_count,
                              &count, error));
  /* More than all: events that no simulation made, in a cycle. */
  count = count <= simulation->event_count ? count : 0;
  pack_number(packer, count);
  for (uint64_t i = 0; i < count; i++) {
    pack_signed(packer, (int64_t)path[i] - (i > 0 ? (int64_t)path[i - 1] : 0));
  }
  return WEFT_OK;
}

static enum weft_status pack_picture(struct packer *packer, struct page_picture *page,
                                     struct weft_error *error) {
  const struct weft_simulation *simulation = page->picture->simulation;
  pack_totals(packer, page->picture);
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    pack_rank_times(packer, &simulation->ranks[rank]);
  }
  pack_events(packer, page);
  WEFT_TRY(pack_memory(packer, page, error));
  WEFT_TRY(pack_path(packer, page, error));
  if (packer->count > 0) {
    put_digits(packer, packer->count + 1);
  }
  return WEFT_OK;
}

/* ---- The document ---- */

static void add_colour(struct weft_text *text, const char *name, uint32_t colour) {
  weft_text_addf(text, "\"%s\":\"#%06" PRIx32 "\",", name, colour);
}

static void add_theme(struct weft_text *text, bool dark) {
  const struct weft_palette *palette = weft_palette_of(dark);
  weft_text_add(text, dark ? "\"dark\":{" : "\"light\":{");
  add_colour(text, "background", palette->background);
  add_colour(text, "ink", palette->ink);
  add_colour(text, "inkFaint", palette->ink_faint);
  add_colour(text, "rule", palette->rule);
  add_colour(text, "memory", palette->memory);
  add_colour(text, "highlight", palette->highlight);
  weft_text_add(text, "\"ops\":[");
  for (unsigned op = 0; op < WEFT_OP_COUNT; op++) {
    weft_text_addf(text, "%s\"#%06" PRIx32 "\"", op > 0 ? "," : "", weft_palette_op(op, dark));
  }
  weft_text_add(text, "]}");
}

/* The compute ops of each stage, six digits each. */
static void add_stage_colours(struct weft_text *text, uint32_t stage_count, bool dark) {
  const uint32_t shown = stage_count < STAGE_COLOURS_MAX ? stage_count : STAGE_COLOURS_MAX;
  weft_text_add(text, dark ? ",\"stageDark\":\"" : ",\"stageLight\":\"");
  for (uint32_t i = 0; i < shown; i++) {
    const uint32_t stage = (uint32_t)((uint64_t)i * stage_count / shown);
    for (unsigned op = 0; op < WEFT_OP_COUNT; op++) {
      if (weft_op_info(op)->kind == WEFT_KIND_COMPUTE) {
        weft_text_addf(text, "%06" PRIx32, weft_palette_stage(stage, stage_count, op, dark));
      }
    }
  }
  weft_text_add(text, "\"");
}

/* For each edge its ends, and 1 if it carries gradients; and the stages' names, if they have
 * some; "" for a stage without one. */
static void add_graph(struct weft_text *text, const struct weft_graph *graph) {
  weft_text_add(text, ",\"edges\":[");
  for (uint32_t e = 0; e < weft_graph_edge_count(graph, 0); e++) {
    const struct weft_edge edge = weft_graph_edge(graph, e);
    weft_text_addf(text, "%s[%u,%u,%d]", e > 0 ? "," : "", edge.from, edge.to, edge.gradient);
  }
  weft_text_add(text, "]");
  for (uint32_t s = 0; weft_graph_has_names(graph) && s < graph->stage_count; s++) {
    const char *name = weft_graph_name(graph, s);
    weft_text_add(text, s == 0 ? ",\"stageNames\":[" : ",");
    weft_add_json_string(text, name != NULL ? name : "");
  }
  weft_text_add(text, weft_graph_has_names(graph) ? "]" : "");
}

static enum weft_status number_events(struct page_picture *page, struct weft_error *error) {
  const struct weft_simulation *simulation = page->picture->simulation;
  const uint64_t records = simulation->program->action_count;
  page->event_of = weft_arena_allocate(&page->arena, records, sizeof *page->event_of);
  WEFT_TRY(weft_arena_status(&page->arena, error));
  memset(page->event_of, 0xff, records * sizeof *page->event_of); /* WEFT_MATCH_NONE */
  for (uint64_t i = 0; i < simulation->event_count; i++) {
    const struct weft_event *event = &simulation->events[i];
    page->event_of[event->record] = (uint32_t)i;
    page->earliest = i == 0 || event->begin < page->earliest ? event->begin : page->earliest;
  }
  return WEFT_OK;
}

static enum weft_status add_picture_of(struct page_picture *page, struct weft_text *text,
                                       struct weft_error *error) {
  const struct weft_picture *picture = page->picture;
  const struct weft_program *program = picture->simulation->program;
  WEFT_TRY(weft_links_create(page->arena.allocator, program, &page->links, error));
  WEFT_TRY(number_events(page, error));
  weft_text_add(text, "{\"name\":");
  weft_add_json_string(text, picture->name != NULL ? picture->name : "");
  char room[WEFT_NOTE_SIZE];
  const char *note = weft_picture_note(picture, room);
  if (note[0] != '\0') {
    weft_text_add(text, ",\"note\":");
    weft_add_json_string(text, note);
  }
  weft_text_add(text, ",\"unit\":");
  weft_add_json_string(text, picture->costs != NULL ? picture->costs->unit : "");
  if (page->has_edges) {
    add_graph(text, program->graph);
  }
  add_stage_colours(text, program->stage_count, false);
  add_stage_colours(text, program->stage_count, true);
  weft_text_add(text, ",\"data\":\"");
  WEFT_TRY(pack_picture(&(struct packer){.text = text}, page, error));
  weft_text_add(text, "\"}");
  return weft_text_status(text, error);
}

static enum weft_status add_picture(const struct weft_picture *picture, struct weft_text *text,
                                    struct weft_error *error) {
  struct page_picture page = {.picture = picture,
                              .has_edges = weft_picture_names_edges(picture),
                              .arena = {.allocator = text->allocator},
                              .curve = {.allocator = text->allocator}};
  const enum weft_status status = add_picture_of(&page, text, error);
  weft_rank_curve_finish(&page.curve);
  weft_links_destroy(page.links);
  weft_arena_finish(&page.arena);
  return status;
}

static enum weft_status check_pictures(const struct weft_picture *pictures, size_t picture_count,
                                       struct weft_error *error) {
  uint64_t events = 0;
  if (picture_count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "", "a page needs at least one timeline");
  }
  for (size_t i = 0; i < picture_count; i++) {
    events += pictures[i].simulation->event_count;
  }
  if (events > EVENTS_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "draw a part of it, or fewer microbatches",
                     "a page of %" PRIu64 " events would not open; the most is %" PRIu64, events,
                     EVENTS_MAX);
  }
  for (size_t i = 0; i < picture_count; i++) {
    WEFT_TRY(weft_sim_require_events(pictures[i].simulation, error));
  }
  return WEFT_OK;
}

static enum weft_status add_page(const struct weft_picture *pictures, size_t picture_count,
                                 const struct weft_render_options *options, struct weft_text *text,
                                 struct weft_error *error) {
  const bool by_stage = options->colour_by == WEFT_COLOUR_BY_STAGE;
  weft_text_append(text, (const char *)weft_timeline_page_head, weft_timeline_page_head_size);
  weft_text_addf(text,
                 "{\"schema\":\"weft-timeline/1\",\"weft\":\"" WEFT_VERSION
                 "\",\"colourBy\":\"%s\",\"palette\":{",
                 by_stage ? "stage" : "op");
  add_theme(text, false);
  weft_text_add(text, ",");
  add_theme(text, true);
  weft_text_add(text, "},\"pictures\":[");
  for (size_t i = 0; i < picture_count; i++) {
    weft_text_add(text, i > 0 ? "," : "");
    WEFT_TRY(add_picture(&pictures[i], text, error));
  }
  weft_text_add(text, "]}");
  weft_text_append(text, (const char *)weft_timeline_page_tail, weft_timeline_page_tail_size);
  return weft_text_status(text, error);
}

enum weft_status weft_render_html(const struct weft_picture *pictures, size_t picture_count,
                                  const struct weft_render_options *options, struct weft_text *text,
                                  struct weft_error *error) {
  WEFT_NEED(text, error);
  if (picture_count > 0) {
    WEFT_NEED(pictures, error);
  }
  const struct weft_render_options standard = weft_render_options_default();
  WEFT_TRY(check_pictures(pictures, picture_count, error));
  return add_page(pictures, picture_count, options != NULL ? options : &standard, text, error);
}
