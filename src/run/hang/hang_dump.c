/* Writes the snapshot of all ranks as JSON, a line per rank. hang_reader.c reads it. */
#include <weft/support.h>

#include "run/hang/diagnosis_text.h"
#include "run/rank_status.h"

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

static void write_rank(struct weft_json *json, const struct weft_hang *hang, uint32_t number) {
  const struct weft_hang_rank *rank = &hang->ranks[number];
  const struct weft_rank_state *state = &rank->state;
  const char *process = weft_diagnosis_flags(state->flags);
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "rank", number);
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

enum weft_status weft_hang_dump(struct weft_transport *transport, struct weft_text *text,
                                struct weft_error *error) {
  WEFT_NEED(transport, error);
  WEFT_NEED(text, error);
  struct weft_hang hang;
  struct weft_json json = {.text = text};
  weft_hang_refresh(transport);
  WEFT_TRY(weft_hang_take(text->allocator, transport, &hang, error));
  weft_json_open(&json, NULL, '{');
  weft_json_string(&json, "schema", "weft-hang/1");
  weft_json_string(&json, "time", hang.nanoseconds ? "ns" : "ticks");
  weft_json_integer(&json, "now", hang.now);
  write_failure(&json, &hang);
  weft_json_open(&json, "ranks", '[');
  weft_text_add(text, "\n");
  for (uint32_t r = 0; r < hang.rank_count; r++) {
    write_rank(&json, &hang, r);
  }
  weft_json_close(&json, ']');
  weft_json_close(&json, '}');
  weft_json_finish(&json);
  weft_hang_finish(&hang);
  return weft_text_status(text, error);
}
