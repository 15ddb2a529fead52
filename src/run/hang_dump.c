/* The dump: a picture of all ranks as JSON, a line per rank. hang_reader.c reads
 * it back. Written by hand rather than by a JSON library, so that all memory is
 * the text's. */
#include <inttypes.h>

#include <weft/support.h>

#include "run/diagnosis_text.h"

void weft_hang_add_string(struct weft_text *text, const char *string) {
  struct weft_text safe = {.allocator = text->allocator};
  size_t size = 0;
  while (string[size] != '\0') {
    size++;
  }
  weft_text_add_escaped(&safe, string, size);
  weft_text_add(text, "\"");
  for (size_t i = 0; i < safe.size; i++) {
    if (safe.data[i] == '"' || safe.data[i] == '\\') {
      weft_text_append(text, "\\", 1);
    }
    weft_text_append(text, &safe.data[i], 1);
  }
  weft_text_add(text, "\"");
  text->failed = text->failed || safe.failed;
  weft_text_finish(&safe);
}

static void write_action(struct weft_text *text, const char *key, struct weft_action action) {
  char word[WEFT_DIAGNOSIS_WORD];
  if (action.op == WEFT_OP_IDLE) {
    weft_text_addf(text, "\"%s\": null", key);
  } else {
    weft_text_addf(text, "\"%s\": \"%s\"", key, weft_hang_action(action, word));
  }
}

/* JSON readers count in signed numbers; a board may hold anything. */
static void write_count(struct weft_text *text, const char *key, uint64_t count) {
  weft_text_addf(text, "\"%s\": %" PRIu64 ", ", key, count < INT64_MAX ? count : INT64_MAX);
}

static void write_rank_or_null(struct weft_text *text, const char *key, uint32_t rank,
                               uint32_t rank_count) {
  if (rank < rank_count) {
    weft_text_addf(text, "\"%s\": %" PRIu32 ", ", key, rank);
  } else {
    weft_text_addf(text, "\"%s\": null, ", key);
  }
}

static void write_recent(struct weft_text *text, const struct weft_hang_rank *rank) {
  weft_text_add(text, "\"recent\": [");
  for (uint32_t k = 0; k < rank->recent_count; k++) {
    const struct weft_recent_action *entry = &rank->recent[k];
    weft_text_add(text, k > 0 ? ", {" : "{");
    write_action(text, "action", weft_hang_action_of(entry->action));
    weft_text_addf(text, ", \"begin\": %" PRId64 ", \"end\": %" PRId64 "}", entry->begin,
                   entry->end);
  }
  weft_text_add(text, "]");
}

static void write_rank(struct weft_text *text, const struct weft_hang *hang, uint32_t number) {
  const struct weft_hang_rank *rank = &hang->ranks[number];
  const char *process = weft_hang_flags_name(rank->flags);
  weft_text_addf(text, "    {\"rank\": %" PRIu32 ", \"phase\": \"%s\", ", number,
                 weft_hang_phase_name(rank->phase));
  if (process != NULL) {
    weft_text_addf(text, "\"process\": \"%s\", ", process);
  }
  write_count(text, "step", rank->step);
  write_count(text, "cell", rank->cell);
  write_action(text, "action", rank->action);
  weft_text_add(text, ", ");
  write_rank_or_null(text, "waits_for", rank->peer, hang->rank_count);
  write_action(text, "wants", rank->wants);
  weft_text_addf(text, ", \"since\": %" PRId64 ", ", rank->since);
  write_recent(text, rank);
  weft_text_add(text, number + 1 < hang->rank_count ? "},\n" : "}\n");
}

static void write_error(struct weft_text *text, const struct weft_hang *hang) {
  if (!hang->has_failure) {
    weft_text_add(text, "null");
    return;
  }
  const struct weft_failure *failure = &hang->failure;
  weft_text_addf(text, "{\"status\": \"%s\", ", weft_status_name(failure->error.status));
  write_rank_or_null(text, "rank", failure->rank, hang->rank_count);
  weft_text_add(text, "\"message\": ");
  weft_hang_add_string(text, failure->error.message);
  weft_text_add(text, ", \"hint\": ");
  weft_hang_add_string(text, failure->error.hint);
  weft_text_add(text, "}");
}

enum weft_status weft_hang_dump(struct weft_transport *transport, struct weft_text *text,
                                struct weft_error *error) {
  struct weft_hang hang;
  weft_hang_refresh(transport);
  WEFT_TRY(weft_hang_take(text->allocator, transport, &hang, error));
  weft_text_addf(text,
                 "{\n  \"schema\": \"weft-hang/1\",\n  \"time\": \"%s\",\n  \"now\": %" PRId64
                 ",\n  \"error\": ",
                 hang.nanoseconds ? "ns" : "ticks", hang.now);
  write_error(text, &hang);
  weft_text_add(text, ",\n  \"ranks\": [\n");
  for (uint32_t r = 0; r < hang.rank_count; r++) {
    write_rank(text, &hang, r);
  }
  weft_text_add(text, "  ]\n}\n");
  weft_hang_finish(&hang);
  return weft_text_status(text, error);
}
