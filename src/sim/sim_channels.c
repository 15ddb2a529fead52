/* What goes over the channels of a graph, in both directions of every edge: an action has one
 * message per edge to wait for, and hands one over to every edge that leads away. Chains have
 * their own, shorter way (sim_run.c), and use channels for shared queues only. */
#include <weft/support.h>

#include "sim/sim_run.h"

/* ---- Setting up ---- */

/* After the ranks comes one that never waits, for stages that no rank has. */
static uint32_t owner_of(const struct weft_sim_run *run, uint32_t stage) {
  const uint32_t rank = stage < run->program->stage_count ? run->rank_of[stage] : WEFT_RANK_NONE;
  return rank != WEFT_RANK_NONE ? rank : run->program->rank_count;
}

static int64_t *inputs_of(const struct weft_sim_run *run, uint32_t number, uint32_t to) {
  if (run->graph != NULL) {
    return &run->inputs[(size_t)number * run->program->microbatch_count];
  }
  return to < run->program->stage_count ? &run->inputs[weft_sim_input(run, number % 2 == 0, to, 0)]
                                        : NULL;
}

static int64_t occupancy_of(const struct weft_sim_run *run, uint32_t number) {
  if (run->graph == NULL) {
    return run->ticks.occupancy;
  }
  const struct weft_edge *edge = &run->graph->edges[number / 2];
  return weft_ticks_occupancy(&run->ticks, &run->costs->hop,
                              number % 2 == 0 ? edge->bytes : edge->gradient_bytes);
}

/* Of a message. In a chain nothing asks for it. */
static double bytes_of(const struct weft_sim_run *run, uint32_t number) {
  if (run->graph == NULL) {
    return 0;
  }
  const struct weft_edge *edge = &run->graph->edges[number / 2];
  const double bytes = number % 2 == 0 ? edge->bytes : edge->gradient_bytes;
  return bytes >= 0 ? bytes : run->costs->hop.bytes;
}

enum weft_status weft_sim_channels_init(struct weft_sim_run *run, struct weft_error *error) {
  const uint32_t count = weft_channel_count(run->graph, run->program->stage_count);
  run->channels = weft_arena_allocate(&run->arena, count, sizeof *run->channels);
  WEFT_TRY(weft_arena_status(&run->arena, error));
  for (uint32_t k = 0; k < count; k++) {
    uint32_t from, to;
    weft_channel_ends(run->graph, k, &from, &to);
    const uint32_t sender = owner_of(run, from), receiver = owner_of(run, to);
    const int64_t occupancy = occupancy_of(run, k);
    run->channels[k] =
        (struct weft_sim_channel){.inputs = inputs_of(run, k, to),
                                  .free = &run->channel_free[k],
                                  .occupancy = occupancy,
                                  .hop = sender != receiver ? run->ticks.latency + occupancy : 0,
                                  .bytes = bytes_of(run, k),
                                  .from = sender,
                                  .to = receiver};
  }
  return WEFT_OK;
}

/* ---- Looking up ---- */

/* Numbered by the edges that bring an action's input, or take its output away. */
static inline struct weft_sim_channel *channel_at(const struct weft_sim_run *run,
                                                  struct weft_action action, bool input,
                                                  uint32_t k) {
  const struct weft_edge_list *list = weft_action_edges(run->graph, action, input);
  return &run->channels[2 * list->edges[list->begin[action.stage] + k] + (action.op != WEFT_OP_F)];
}

const int64_t *weft_sim_edge_input(const struct weft_sim_run *run, struct weft_action action,
                                   uint32_t k, const struct weft_sim_channel **channel) {
  *channel = channel_at(run, action, true, k);
  return &(*channel)->inputs[action.microbatch];
}

/* ---- Running ---- */

const int64_t *weft_sim_await_edges(const struct weft_sim_run *run, struct weft_action action,
                                    int64_t *begin) {
  const uint32_t count = weft_sim_input_count(run, action);
  for (uint32_t k = 0; k < count; k++) {
    const int64_t *input = &channel_at(run, action, true, k)->inputs[action.microbatch];
    if (*input < 0) {
      return input;
    }
    *begin = *input > *begin ? *input : *begin;
  }
  return NULL;
}

static void cross(struct weft_sim_run *run, const struct weft_sim_channel *channel, int64_t *input,
                  int64_t produced) {
  const int64_t start = produced > *channel->free ? produced : *channel->free;
  *channel->free = start + channel->occupancy;
  weft_sim_deliver(run, channel, input, produced, start);
}

void weft_sim_publish_edges(struct weft_sim_run *run, uint32_t rank, struct weft_action action,
                            int64_t end) {
  const uint32_t count =
      weft_edge_list_count(weft_action_edges(run->graph, action, false), action.stage);
  for (uint32_t k = 0; k < count; k++) {
    const struct weft_sim_channel *channel = channel_at(run, action, false, k);
    int64_t *input = &channel->inputs[action.microbatch];
    if (channel->to == rank) {
      *input = end;
    } else if (!run->has_transfers) {
      cross(run, channel, input, end);
    } else {
      *input = ~end;
      if (run->queues != NULL) {
        weft_sim_queues_produced(run, (uint32_t)(channel - run->channels));
      }
    }
  }
}

void weft_sim_send_edge(struct weft_sim_run *run, struct weft_action send) {
  const struct weft_sim_channel *channel = weft_sim_channel_of(run, send);
  if (channel == NULL || run->queues != NULL) {
    return;
  }
  int64_t *input = &channel->inputs[send.microbatch];
  if (*input < 0 && *input != WEFT_TIME_UNKNOWN) { /* made, and not sent before */
    cross(run, channel, input, ~*input);
  }
}
