/* A transport that is nothing but states. */
#include "support_rank_states.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "run/hang/hang.h"

static struct rank_states *rank_states_of(struct weft_transport *transport) {
  return (struct rank_states *)(void *)transport; /* its first member */
}

static int64_t rank_states_now(struct weft_transport *transport) {
  return rank_states_of(transport)->now;
}

static struct weft_rank_status *rank_states_status(struct weft_transport *transport,
                                                   uint32_t rank) {
  assert(rank < transport->rank_count);
  return &rank_states_of(transport)->items[rank];
}

static bool rank_states_failed(struct weft_transport *transport, struct weft_failure *failure) {
  struct rank_states *states = rank_states_of(transport);
  if (states->has_failed) {
    *failure = states->failure;
  }
  return states->has_failed;
}

void rank_states_init(struct rank_states *states, uint32_t rank_count, const char *name) {
  *states = (struct rank_states){.now = INT64_C(100000000000)};
  states->ops = (struct weft_transport_ops){.name = name,
                                            .virtual_time = strstr(name, "loopback") != NULL,
                                            .now = rank_states_now,
                                            .rank_status = rank_states_status,
                                            .get_failure = rank_states_failed};
  states->transport = (struct weft_transport){.ops = &states->ops, .rank_count = rank_count};
  states->items = calloc(rank_count, sizeof *states->items);
  assert(states->items != NULL);
  for (uint32_t r = 0; r < rank_count; r++) {
    states->items[r].peer = UINT32_MAX;
  }
}

void rank_states_finish(struct rank_states *states) { free(states->items); }

void rank_states_diagnose(struct weft_transport *transport, const struct weft_program *program,
                          uint32_t first_rank, enum weft_send_model comm, uint32_t reporter,
                          struct weft_failure *failure) {
  const struct weft_hang hang = weft_hang_of(transport);
  (void)weft_hang_diagnose(&hang, program, first_rank, comm, reporter, failure);
}

uint64_t packed_action(const char *text) {
  struct weft_program *program = NULL;
  uint64_t bits = 0;
  if (text[0] == '\0') {
    return 0;
  }
  const enum weft_status status =
      weft_program_parse(NULL, text, strlen(text), "action", &program, NULL);
  assert(status == WEFT_OK);
  (void)status;
  memcpy(&bits, &program->actions[0], sizeof bits);
  weft_program_destroy(program);
  return bits;
}

void rank_state_set(struct rank_states *states, uint32_t rank, enum weft_rank_phase phase,
                    const char *action, uint32_t peer, const char *wants, int64_t ago) {
  struct weft_rank_status *status = &states->items[rank];
  status->phase = (uint32_t)phase;
  status->action = packed_action(action);
  status->peer = peer;
  status->wants = packed_action(wants);
  status->since = states->now - ago;
}

void rank_state_note(struct rank_states *states, uint32_t rank, const char *action, int64_t begin,
                     int64_t end) {
  struct weft_rank_status *status = &states->items[rank];
  status->recent[status->recent_count++ % WEFT_STATUS_RECENT] =
      (struct weft_recent_action){.action = packed_action(action), .begin = begin, .end = end};
}
