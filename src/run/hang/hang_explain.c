/* Explains a dump: a line for each rank, then the diagnosis; or the diagnosis as JSON. */
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "run/hang/diagnosis_text.h"
#include "run/rank_status.h"

#define NOBODY UINT32_MAX

/* ---- A line for each rank ---- */

static void add_phase(struct weft_text *text, const struct weft_rank_state *state) {
  char word[WEFT_DIAGNOSIS_WORD];
  if (state->on_device && state->phase != WEFT_PHASE_IDLE) {
    weft_text_addf(text, "GPU %" PRIu64 " ", state->gpu);
  }
  switch (state->phase) {
    case WEFT_PHASE_IDLE: weft_text_add(text, "is idle"); return;
    case WEFT_PHASE_DONE: weft_text_add(text, "has done its part"); return;
    case WEFT_PHASE_FAILED: weft_text_add(text, "has failed"); return;
    case WEFT_PHASE_COMPUTE:
      if (state->wants.op != WEFT_OP_IDLE) { /* a collective */
        weft_text_addf(text, "waits for its %s", weft_diagnosis_action(state->wants, word));
      } else {
        weft_text_addf(text, "is in %s", weft_diagnosis_action(state->action, word));
      }
      return;
    default: break;
  }
  weft_text_addf(text, "waits%s", weft_diagnosis_place(state, word));
  if (state->peer != NOBODY) {
    weft_text_addf(text, " for rank %" PRIu32, state->peer);
  }
  if (state->wants.op != WEFT_OP_IDLE) {
    weft_text_addf(text, " (%s)", weft_diagnosis_action(state->wants, word));
  }
}

/* "rank 3: waits in 2RECV_F5 for rank 2 (1SEND_F5), since 31.2 s; step 7, cell 12; before
 * that 2F4". */
static void add_rank(struct weft_text *text, const struct weft_hang *hang, uint32_t number) {
  const struct weft_hang_rank *rank = &hang->ranks[number];
  const struct weft_rank_state *state = &rank->state;
  const uint64_t elapsed = weft_diagnosis_elapsed(hang->now, state->since);
  const char *process = weft_diagnosis_flags(state->flags);
  char word[WEFT_DIAGNOSIS_WORD];
  const bool dead = (state->flags & WEFT_RANK_DEAD) != 0;
  weft_text_addf(text, "rank %" PRIu32 ": %s%s", number, process != NULL ? process : "",
                 dead              ? "; its last status: "
                 : process != NULL ? "; "
                                   : "");
  add_phase(text, state);
  if (state->phase != WEFT_PHASE_IDLE || rank->recent_count > 0 || state->step > 0) {
    weft_text_addf(text, ", since %s; step %" PRIu64 ", cell %" PRIu64,
                   weft_diagnosis_time(elapsed, hang->nanoseconds, word), state->step, state->cell);
    if (rank->recent_count > 0 && !state->on_device) { /* those are what it enqueued last */
      const struct weft_action last =
          weft_action_unpack(rank->recent[rank->recent_count - 1].action);
      weft_text_addf(text, "; before that %s", weft_diagnosis_action(last, word));
    }
  }
  weft_text_add(text, "\n");
}

/* ---- The diagnosis ---- */

/* The rank that has waited longest; NOBODY: none waits. */
static uint32_t longest_waiter(const struct weft_hang *hang) {
  uint32_t longest = NOBODY;
  for (uint32_t r = 0; r < hang->rank_count; r++) {
    const struct weft_rank_state *state = &hang->ranks[r].state;
    const bool waits = state->phase == WEFT_PHASE_RECEIVE || state->phase == WEFT_PHASE_SEND ||
                       state->phase == WEFT_PHASE_HANDSHAKE;
    if (waits && (longest == NOBODY || state->since < hang->ranks[longest].state.since)) {
      longest = r;
    }
  }
  return longest;
}

struct diagnosis {
  struct weft_wait_graph_end end;
  struct weft_failure failure;
};

/* The ranks' agreed error comes first: some ranks may have moved on since. Without one, the
 * wait graph is all there is. */
static struct diagnosis diagnose(const struct weft_hang *hang) {
  struct diagnosis diagnosis = {
      .end = {.culprit = NOBODY},
      .failure = {.rank = NOBODY,
                  .error = {.message = "no rank waits for another",
                            .hint = "if this was no hang, there is nothing to do"}}};
  const uint32_t reporter =
      hang->has_failure && hang->failure.rank != NOBODY ? hang->failure.rank : longest_waiter(hang);
  if (reporter != NOBODY) {
    diagnosis.end = weft_hang_diagnose(hang, reporter, &diagnosis.failure);
  }
  if (hang->has_failure) {
    diagnosis.failure = hang->failure;
  }
  return diagnosis;
}

static void add_line(struct weft_text *text, const char *label, const char *words) {
  weft_text_add(text, label);
  weft_text_add_escaped(text, words, strlen(words));
  weft_text_add(text, "\n");
}

static void add_member(void *context, uint32_t rank) { weft_text_addf(context, " %" PRIu32, rank); }

static void add_diagnosis(struct weft_text *text, const struct weft_hang *hang) {
  const struct diagnosis diagnosis = diagnose(hang);
  const struct weft_failure *failure = &diagnosis.failure;
  add_line(text, "verdict: ", failure->error.message);
  if (diagnosis.end.cycle_length > 0) {
    weft_text_add(text, "cycle: ranks");
    weft_wait_graph_cycle(hang, &diagnosis.end, add_member, text);
    weft_text_add(text, "\n");
  } else if (failure->rank == NOBODY) {
    weft_text_add(text, "culprit: unknown\n");
  } else {
    weft_text_addf(text, "culprit: rank %" PRIu32 "\n", failure->rank);
  }
  if (failure->error.hint[0] != '\0') {
    add_line(text, "hint: ", failure->error.hint);
  }
}

static void write_member(void *context, uint32_t rank) { weft_json_number(context, NULL, rank); }

static void write_diagnosis(struct weft_text *text, const struct weft_hang *hang) {
  const struct diagnosis diagnosis = diagnose(hang);
  const struct weft_failure *failure = &diagnosis.failure;
  struct weft_json json = {.text = text};
  weft_json_open(&json, NULL, '{');
  weft_json_string(&json, "schema", "weft-explain-hang/1");
  if (diagnosis.end.cycle_length > 0 || failure->rank == NOBODY) {
    weft_json_null(&json, "culprit");
  } else {
    weft_json_number(&json, "culprit", failure->rank);
  }
  weft_json_open(&json, "cycle", '[');
  weft_wait_graph_cycle(hang, &diagnosis.end, write_member, &json);
  weft_json_close(&json, ']');
  weft_json_string(&json, "message", failure->error.message);
  weft_json_string(&json, "hint", failure->error.hint);
  weft_json_close(&json, '}');
  weft_json_finish(&json);
}

enum weft_status weft_hang_explain(const struct weft_allocator *allocator, const char *dump,
                                   size_t size, const char *name, struct weft_text *text,
                                   struct weft_error *error) {
  WEFT_NEED(text, error);
  if (size > 0) {
    WEFT_NEED(dump, error);
  }
  struct weft_hang hang;
  WEFT_TRY(weft_hang_read(allocator, dump, size, name, &hang, error));
  for (uint32_t r = 0; r < hang.rank_count; r++) {
    add_rank(text, &hang, r);
  }
  weft_text_add(text, "\n");
  add_diagnosis(text, &hang);
  weft_hang_finish(&hang);
  return weft_text_status(text, error);
}

enum weft_status weft_hang_explain_json(const struct weft_allocator *allocator, const char *dump,
                                        size_t size, const char *name, struct weft_text *text,
                                        struct weft_error *error) {
  WEFT_NEED(text, error);
  if (size > 0) {
    WEFT_NEED(dump, error);
  }
  struct weft_hang hang;
  WEFT_TRY(weft_hang_read(allocator, dump, size, name, &hang, error));
  write_diagnosis(text, &hang);
  weft_hang_finish(&hang);
  return weft_text_status(text, error);
}
