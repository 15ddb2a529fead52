/* Writes what all ranks are doing as JSON, a line per rank, with what it means in sentences:
 * hang_explain.c has nothing to work out. */
#include <inttypes.h>

#include <weft/support.h>

#include "comm/rank_status.h"
#include "run/hang/hang.h"

#define NOBODY UINT32_MAX

/* ---- What a rank does, as a sentence ---- */

struct rank {
  uint32_t number;
  struct weft_rank_state state;
  uint32_t recent_count; /* oldest first */
  struct weft_recent_action recent[WEFT_STATUS_RECENT];
};

static void read_rank(const struct weft_hang *hang, uint32_t number, struct rank *rank) {
  const struct weft_rank_status *status =
      hang->transport->ops->rank_status(hang->transport, number);
  const uint64_t count = WEFT_STATUS_LOAD(status->recent_count);
  rank->number = number;
  rank->recent_count = count < WEFT_STATUS_RECENT ? (uint32_t)count : WEFT_STATUS_RECENT;
  for (uint32_t k = 0; k < rank->recent_count; k++) {
    const struct weft_recent_action *entry =
        &status->recent[(count - rank->recent_count + k) % WEFT_STATUS_RECENT];
    rank->recent[k] = (struct weft_recent_action){.action = WEFT_STATUS_LOAD(entry->action),
                                                  .begin = WEFT_STATUS_LOAD(entry->begin),
                                                  .end = WEFT_STATUS_LOAD(entry->end)};
  }
  weft_hang_read(hang, number, &rank->state);
}

static void add_phase(struct weft_text *text, const struct rank *rank) {
  const struct weft_rank_state *state = &rank->state;
  char word[WEFT_HANG_WORD], wait[WEFT_HANG_WAIT];
  if (state->on_device && state->phase != WEFT_PHASE_IDLE) {
    weft_text_addf(text, "GPU %" PRIu64 " ", state->gpu);
  }
  switch (state->phase) {
    case WEFT_PHASE_IDLE: weft_text_add(text, "is idle"); break;
    case WEFT_PHASE_DONE: weft_text_add(text, "has done its part"); break;
    case WEFT_PHASE_FAILED: weft_text_add(text, "has failed"); break;
    case WEFT_PHASE_COMPUTE:
      if (state->wants.op != WEFT_OP_IDLE) { /* a collective */
        weft_text_addf(text, "waits for its %s", weft_hang_action(state->wants, word));
      } else {
        weft_text_addf(text, "is in %s", weft_hang_action(state->action, word));
      }
      break;
    default: weft_text_add(text, weft_hang_wait(state, rank->number, state->peer, wait));
  }
}

/* From a rank's flags; NULL: nothing is known. */
static const char *name_flags(uint64_t flags) {
  if ((flags & WEFT_RANK_DEAD) != 0) {
    return "dead";
  }
  if ((flags & WEFT_RANK_STOPPED) != 0) {
    return "stopped";
  }
  return (flags & WEFT_RANK_SILENT) != 0 ? "silent" : NULL;
}

/* "waits in 2RECV_F5 for rank 2 (1SEND_F5), since 31.2 s; step 7, cell 12; before that 2F4". */
static void add_sentence(struct weft_text *text, const struct weft_hang *hang,
                         const struct rank *rank) {
  const struct weft_rank_state *state = &rank->state;
  const char *process = name_flags(state->flags);
  char word[WEFT_HANG_WORD];
  const bool dead = (state->flags & WEFT_RANK_DEAD) != 0;
  weft_text_add(text, process != NULL ? process : "");
  weft_text_add(text, dead ? "; its last status: " : process != NULL ? "; " : "");
  add_phase(text, rank);
  if (state->phase != WEFT_PHASE_IDLE || rank->recent_count > 0 || state->step > 0) {
    weft_text_addf(text, ", since %s; step %" PRIu64 ", cell %" PRIu64,
                   weft_hang_time(hang, state->since, word), state->step, state->cell);
    if (rank->recent_count > 0 && !state->on_device) { /* those are what it enqueued last */
      const struct weft_action last =
          weft_action_unpack(rank->recent[rank->recent_count - 1].action);
      weft_text_addf(text, "; before that %s", weft_hang_action(last, word));
    }
  }
}

/* ---- The diagnosis ---- */

/* The rank that has waited longest; NOBODY: none waits. */
static uint32_t longest_waiter(const struct weft_hang *hang) {
  uint32_t longest = NOBODY;
  int64_t since = INT64_MAX;
  for (uint32_t r = 0; r < hang->transport->rank_count; r++) {
    struct weft_rank_state state;
    weft_hang_read(hang, r, &state);
    const bool waits = state.phase == WEFT_PHASE_RECEIVE || state.phase == WEFT_PHASE_SEND ||
                       state.phase == WEFT_PHASE_HANDSHAKE;
    if (waits && (longest == NOBODY || state.since < since)) {
      longest = r;
      since = state.since;
    }
  }
  return longest;
}

static void write_member(void *context, uint32_t rank) { weft_json_number(context, NULL, rank); }

/* The ranks' agreed error comes first: some ranks may have moved on since. Without one, the
 * waits are all there is. */
static void write_diagnosis(struct weft_json *json, const struct weft_hang *hang) {
  struct weft_waits_end end = {.culprit = NOBODY};
  struct weft_failure failure = {.rank = NOBODY,
                                 .error = {.message = "no rank waits for another",
                                           .hint = "if this was no hang, there is nothing to do"}};
  const uint32_t reporter =
      hang->has_failure && hang->failure.rank != NOBODY ? hang->failure.rank : longest_waiter(hang);
  if (reporter != NOBODY) {
    end = weft_hang_diagnose(hang, NULL, 0, WEFT_COMM_POSTED, reporter, &failure);
  }
  if (hang->has_failure) {
    failure = hang->failure;
  }
  weft_json_open(json, "diagnosis", '{');
  weft_json_optional(json, "culprit", end.cycle_length == 0 && failure.rank != NOBODY,
                     failure.rank);
  weft_json_open(json, "cycle", '[');
  weft_waits_cycle(hang, &end, write_member, json);
  weft_json_close(json, ']');
  weft_json_string(json, "message", failure.error.message);
  weft_json_string(json, "hint", failure.error.hint);
  weft_json_close(json, '}');
}

/* ---- The dump ---- */

static void write_action(struct weft_json *json, const char *key, struct weft_action action) {
  char word[WEFT_HANG_WORD];
  weft_json_string(json, key, action.op == WEFT_OP_IDLE ? NULL : weft_hang_action(action, word));
}

/* JSON readers use signed numbers, and a rank's status may hold any. */
static void write_count(struct weft_json *json, const char *key, uint64_t count) {
  weft_json_number(json, key, count < INT64_MAX ? count : INT64_MAX);
}

/* `sentence` is empty, and keeps its memory from rank to rank. */
static void write_rank(struct weft_json *json, const struct weft_hang *hang, uint32_t number,
                       struct weft_text *sentence) {
  static const char *const phases[WEFT_PHASE_COUNT] = {"away", "greeting", "compute", "receive",
                                                       "send", "done",     "failed"};
  struct rank rank;
  read_rank(hang, number, &rank);
  const struct weft_rank_state *state = &rank.state;
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "rank", number);
  sentence->size = 0;
  add_sentence(sentence, hang, &rank);
  weft_json_string(json, "says", sentence->failed ? "" : sentence->data);
  weft_json_string(json, "phase", phases[state->phase]);
  if (state->flags != 0) {
    weft_json_string(json, "process", name_flags(state->flags));
  }
  if (state->on_device) {
    weft_json_boolean(json, "on_device", true);
    write_count(json, "gpu", state->gpu);
  }
  write_count(json, "step", state->step);
  write_count(json, "cell", state->cell);
  write_action(json, "action", state->action);
  weft_json_optional(json, "waits_for", state->peer < hang->transport->rank_count, state->peer);
  write_action(json, "wants", state->wants);
  weft_json_integer(json, "since", state->since);
  weft_json_open(json, "recent", '[');
  for (uint32_t k = 0; k < rank.recent_count; k++) {
    weft_json_open(json, NULL, '{');
    write_action(json, "action", weft_action_unpack(rank.recent[k].action));
    weft_json_integer(json, "begin", rank.recent[k].begin);
    weft_json_integer(json, "end", rank.recent[k].end);
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
  weft_json_optional(json, "rank", failure->rank < hang->transport->rank_count, failure->rank);
  weft_json_string(json, "message", failure->error.message);
  weft_json_string(json, "hint", failure->error.hint);
  weft_json_close(json, '}');
}

enum weft_status weft_hang_dump(struct weft_transport *transport, struct weft_text *text,
                                struct weft_error *error) {
  WEFT_NEED(transport, error);
  WEFT_NEED(text, error);
  WEFT_SCOPED_TEXT sentence = {.allocator = text->allocator};
  weft_hang_refresh(transport);
  const struct weft_hang hang = weft_hang_of(transport);
  struct weft_json json = weft_json_begin(text, WEFT_HANG_SCHEMA);
  weft_json_string(&json, "time", transport->ops->virtual_time ? "ticks" : "ns");
  weft_json_integer(&json, "now", hang.now);
  write_failure(&json, &hang);
  write_diagnosis(&json, &hang);
  weft_json_open(&json, "ranks", '[');
  weft_text_add(text, "\n");
  for (uint32_t r = 0; r < transport->rank_count; r++) {
    write_rank(&json, &hang, r, &sentence);
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
  WEFT_TRY(weft_text_status(&sentence, error));
  return weft_text_status(text, error);
}
