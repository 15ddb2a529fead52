/* Writes the snapshot of all ranks as JSON, a line per rank, with what it means in sentences:
 * hang_explain.c has nothing to work out. */
#include <inttypes.h>

#include <weft/support.h>

#include "run/hang/diagnosis_text.h"
#include "run/rank_status.h"

#define NOBODY UINT32_MAX

/* ---- What a rank does, as a sentence ---- */

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

/* "waits in 2RECV_F5 for rank 2 (1SEND_F5), since 31.2 s; step 7, cell 12; before that 2F4". */
static void add_sentence(struct weft_text *text, const struct weft_hang *hang, uint32_t number) {
  const struct weft_hang_rank *rank = &hang->ranks[number];
  const struct weft_rank_state *state = &rank->state;
  const uint64_t elapsed = weft_diagnosis_elapsed(hang->now, state->since);
  const char *process = weft_diagnosis_flags(state->flags);
  char word[WEFT_DIAGNOSIS_WORD];
  const bool dead = (state->flags & WEFT_RANK_DEAD) != 0;
  weft_text_add(text, process != NULL ? process : "");
  weft_text_add(text, dead ? "; its last status: " : process != NULL ? "; " : "");
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

static void write_member(void *context, uint32_t rank) { weft_json_number(context, NULL, rank); }

static void write_diagnosis(struct weft_json *json, const struct weft_hang *hang) {
  const struct diagnosis diagnosis = diagnose(hang);
  const struct weft_failure *failure = &diagnosis.failure;
  weft_json_open(json, "diagnosis", '{');
  if (diagnosis.end.cycle_length > 0 || failure->rank == NOBODY) {
    weft_json_null(json, "culprit");
  } else {
    weft_json_number(json, "culprit", failure->rank);
  }
  weft_json_open(json, "cycle", '[');
  weft_wait_graph_cycle(hang, &diagnosis.end, write_member, json);
  weft_json_close(json, ']');
  weft_json_string(json, "message", failure->error.message);
  weft_json_string(json, "hint", failure->error.hint);
  weft_json_close(json, '}');
}

/* ---- The snapshot ---- */

static void write_action(struct weft_json *json, const char *key, struct weft_action action) {
  char word[WEFT_DIAGNOSIS_WORD];
  if (action.op == WEFT_OP_IDLE) {
    weft_json_null(json, key);
  } else {
    weft_json_string(json, key, weft_diagnosis_action(action, word));
  }
}

/* JSON readers use signed numbers, and a rank's status may hold any. */
static void write_count(struct weft_json *json, const char *key, uint64_t count) {
  weft_json_number(json, key, count < INT64_MAX ? count : INT64_MAX);
}

static void write_rank_or_null(struct weft_json *json, const char *key, uint32_t rank,
                               uint32_t rank_count) {
  if (rank < rank_count) {
    weft_json_number(json, key, rank);
  } else {
    weft_json_null(json, key);
  }
}

/* `sentence` is empty, and keeps its memory from rank to rank. */
static void write_rank(struct weft_json *json, const struct weft_hang *hang, uint32_t number,
                       struct weft_text *sentence) {
  const struct weft_hang_rank *rank = &hang->ranks[number];
  const struct weft_rank_state *state = &rank->state;
  const char *process = weft_diagnosis_flags(state->flags);
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "rank", number);
  sentence->size = 0;
  add_sentence(sentence, hang, number);
  weft_json_string(json, "says", sentence->failed ? "" : sentence->data);
  weft_json_string(json, "phase", weft_diagnosis_phase(state->phase));
  if (process != NULL) {
    weft_json_string(json, "process", process);
  }
  if (state->on_device) {
    weft_json_boolean(json, "on_device", true);
    write_count(json, "gpu", state->gpu);
  }
  write_count(json, "step", state->step);
  write_count(json, "cell", state->cell);
  write_action(json, "action", state->action);
  write_rank_or_null(json, "waits_for", state->peer, hang->rank_count);
  write_action(json, "wants", state->wants);
  weft_json_integer(json, "since", state->since);
  weft_json_open(json, "recent", '[');
  for (uint32_t k = 0; k < rank->recent_count; k++) {
    weft_json_open(json, NULL, '{');
    write_action(json, "action", weft_action_unpack(rank->recent[k].action));
    weft_json_integer(json, "begin", rank->recent[k].begin);
    weft_json_integer(json, "end", rank->recent[k].end);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
  weft_text_add(json->text, "\n");
}

static void write_failure(struct weft_json *json, const struct weft_hang *hang) {
  const struct weft_failure *failure = &hang->failure;
  if (!hang->has_failure) {
    weft_json_null(json, "error");
    return;
  }
  weft_json_open(json, "error", '{');
  weft_json_string(json, "status", weft_status_name(failure->error.status));
  write_rank_or_null(json, "rank", failure->rank, hang->rank_count);
  weft_json_string(json, "message", failure->error.message);
  weft_json_string(json, "hint", failure->error.hint);
  weft_json_close(json, '}');
}

static void write_hang(struct weft_json *json, const struct weft_hang *hang,
                       struct weft_text *sentence) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", WEFT_HANG_SCHEMA);
  weft_json_string(json, "time", hang->nanoseconds ? "ns" : "ticks");
  weft_json_integer(json, "now", hang->now);
  write_failure(json, hang);
  write_diagnosis(json, hang);
  weft_json_open(json, "ranks", '[');
  weft_text_add(json->text, "\n");
  for (uint32_t r = 0; r < hang->rank_count; r++) {
    write_rank(json, hang, r, sentence);
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
  weft_json_finish(json);
}

enum weft_status weft_hang_dump(struct weft_transport *transport, struct weft_text *text,
                                struct weft_error *error) {
  WEFT_NEED(transport, error);
  WEFT_NEED(text, error);
  struct weft_hang hang;
  struct weft_text sentence = {.allocator = text->allocator};
  weft_hang_refresh(transport);
  WEFT_TRY(weft_hang_take(text->allocator, transport, &hang, error));
  write_hang(&(struct weft_json){.text = text}, &hang, &sentence);
  const enum weft_status status = weft_text_status(&sentence, error);
  weft_text_finish(&sentence);
  weft_hang_finish(&hang);
  return status < 0 ? status : weft_text_status(text, error);
}
