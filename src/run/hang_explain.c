/* A dump in words: a line for each rank, then what follows from them; and what
 * follows as JSON, for programs. */
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "run/diagnosis_text.h"
#include "run/hang_reader.h"
#include "run/wait_graph.h"

#define NOBODY UINT32_MAX

static void say_where(struct weft_text *text, const struct weft_hang_rank *rank) {
  char word[WEFT_DIAGNOSIS_WORD];
  if (rank->phase == WEFT_PHASE_HANDSHAKE) {
    weft_text_add(text, " in the handshake");
  } else if (rank->action.op != WEFT_OP_IDLE) {
    weft_text_addf(text, " %s %s", weft_hang_preposition(rank->action),
                   weft_hang_action(rank->action, word));
  }
}

static void say_wait(struct weft_text *text, const struct weft_hang_rank *rank) {
  char word[WEFT_DIAGNOSIS_WORD];
  weft_text_add(text, "waits");
  say_where(text, rank);
  if (rank->peer != NOBODY) {
    weft_text_addf(text, " for rank %" PRIu32, rank->peer);
  }
  if (rank->wants.op != WEFT_OP_IDLE) {
    weft_text_addf(text, " (%s)", weft_hang_action(rank->wants, word));
  }
}

static void say_phase(struct weft_text *text, const struct weft_hang_rank *rank) {
  char word[WEFT_DIAGNOSIS_WORD];
  switch (rank->phase) {
    case WEFT_PHASE_IDLE: weft_text_add(text, "is away"); break;
    case WEFT_PHASE_COMPUTE:
      if (rank->wants.op != WEFT_OP_IDLE) { /* a collective */
        weft_text_addf(text, "waits for its %s", weft_hang_action(rank->wants, word));
      } else {
        weft_text_addf(text, "is in %s", weft_hang_action(rank->action, word));
      }
      break;
    case WEFT_PHASE_DONE: weft_text_add(text, "has done its part"); break;
    case WEFT_PHASE_FAILED: weft_text_add(text, "has failed"); break;
    default: say_wait(text, rank);
  }
}

/* "rank 3: waits in 2RECV_F5 for rank 2 (1SEND_F5), since 31.2 s; step 7, cell 12; before
 * that 2F4". */
static void say_rank(struct weft_text *text, const struct weft_hang *hang, uint32_t number) {
  const struct weft_hang_rank *rank = &hang->ranks[number];
  char word[WEFT_DIAGNOSIS_WORD];
  const char *process = weft_hang_flags_name(rank->flags);
  weft_text_addf(text, "rank %" PRIu32 ": %s%s", number, process != NULL ? process : "",
                 process != NULL ? "; " : "");
  say_phase(text, rank);
  if (rank->phase == WEFT_PHASE_IDLE && rank->recent_count == 0 && rank->step == 0) {
    weft_text_add(text, "\n"); /* it never came */
    return;
  }
  weft_text_addf(text, ", since %s; step %" PRIu64 ", cell %" PRIu64,
                 weft_hang_time(weft_hang_elapsed(hang->now, rank->since), hang->nanoseconds, word),
                 rank->step, rank->cell);
  if (rank->recent_count > 0) {
    const struct weft_action last =
        weft_hang_action_of(rank->recent[rank->recent_count - 1].action);
    weft_text_addf(text, "; before that %s", weft_hang_action(last, word));
  }
  weft_text_add(text, "\n");
}

/* ---- The verdict ---- */

static bool is_waiting(const struct weft_hang_rank *rank) {
  return rank->phase == WEFT_PHASE_RECEIVE || rank->phase == WEFT_PHASE_SEND ||
         rank->phase == WEFT_PHASE_HANDSHAKE;
}

/* The rank that has waited longest; NOBODY: none waits. */
static uint32_t longest_waiter(const struct weft_hang *hang) {
  uint32_t longest = NOBODY;
  for (uint32_t r = 0; r < hang->rank_count; r++) {
    if (is_waiting(&hang->ranks[r]) &&
        (longest == NOBODY || hang->ranks[r].since < hang->ranks[longest].since)) {
      longest = r;
    }
  }
  return longest;
}

static void say_member(void *context, uint32_t rank) { weft_text_addf(context, " %" PRIu32, rank); }

static void say_circle(struct weft_text *text, const struct weft_hang *hang,
                       const struct weft_wait_graph_end *verdict) {
  weft_text_add(text, "circle: ranks");
  weft_wait_graph_cycle(hang, verdict, say_member, text);
  weft_text_add(text, "\n");
}

static void say_culprit(struct weft_text *text, uint32_t rank) {
  if (rank == NOBODY) {
    weft_text_add(text, "culprit: nobody that is known\n");
  } else {
    weft_text_addf(text, "culprit: rank %" PRIu32 "\n", rank);
  }
}

static void say_line(struct weft_text *text, const char *label, const char *words) {
  weft_text_add(text, label);
  weft_text_add_escaped(text, words, strlen(words));
  weft_text_add(text, "\n");
}

static void say_hint(struct weft_text *text, const char *hint) {
  if (hint[0] != '\0') {
    say_line(text, "hint: ", hint);
  }
}

/* What a dump comes to. */
struct conclusion {
  struct weft_wait_graph_end verdict;
  struct weft_failure seen;        /* by following the boards */
  const struct weft_failure *said; /* by the ranks themselves, else what was seen */
};

/* An error that the ranks agreed on was said when the boards still showed why;
 * some may have gone on since. Without one, the boards are all there is. */
static void conclude(const struct weft_hang *hang, struct conclusion *conclusion) {
  const uint32_t waiter = longest_waiter(hang);
  const uint32_t reporter =
      hang->has_failure && hang->failure.rank != NOBODY ? hang->failure.rank : waiter;
  *conclusion = (struct conclusion){
      .verdict = {.culprit = NOBODY},
      .seen = {.rank = NOBODY,
               .error = {.message = "no rank waits for another",
                         .hint = "if this was no hang, there is nothing to do"}}};
  if (reporter != NOBODY) {
    conclusion->verdict = weft_wait_graph_follow(hang, reporter, &conclusion->seen);
  }
  conclusion->said = hang->has_failure ? &hang->failure : &conclusion->seen;
}

static void say_verdict(struct weft_text *text, const struct weft_hang *hang) {
  struct conclusion conclusion;
  conclude(hang, &conclusion);
  say_line(text, "verdict: ", conclusion.said->error.message);
  if (conclusion.verdict.cycle_length > 0) {
    say_circle(text, hang, &conclusion.verdict);
  } else {
    say_culprit(text, conclusion.said->rank);
  }
  say_hint(text, conclusion.said->error.hint);
}

/* ---- For programs ---- */

struct list {
  struct weft_text *text;
  bool has_members;
};

static void add_member(void *context, uint32_t rank) {
  struct list *list = context;
  weft_text_addf(list->text, "%s%" PRIu32, list->has_members ? "," : "", rank);
  list->has_members = true;
}

static void add_document(struct weft_text *text, const struct weft_hang *hang) {
  struct conclusion conclusion;
  struct list list = {.text = text};
  conclude(hang, &conclusion);
  const bool circle = conclusion.verdict.cycle_length > 0;
  weft_text_add(text, "{\"schema\":\"weft-explain-hang/1\",\"culprit\":");
  if (circle || conclusion.said->rank == NOBODY) {
    weft_text_add(text, "null");
  } else {
    weft_text_addf(text, "%" PRIu32, conclusion.said->rank);
  }
  weft_text_add(text, ",\"cycle\":[");
  if (circle) {
    weft_wait_graph_cycle(hang, &conclusion.verdict, add_member, &list);
  }
  weft_text_add(text, "],\"message\":");
  weft_hang_add_string(text, conclusion.said->error.message);
  weft_text_add(text, ",\"hint\":");
  weft_hang_add_string(text, conclusion.said->error.hint);
  weft_text_add(text, "}\n");
}

enum weft_status weft_hang_explain(const struct weft_allocator *allocator, const char *dump,
                                   size_t size, const char *name, struct weft_text *text,
                                   struct weft_error *error) {
  struct weft_hang hang;
  WEFT_TRY(weft_hang_read(allocator, dump, size, name, &hang, error));
  for (uint32_t r = 0; r < hang.rank_count; r++) {
    say_rank(text, &hang, r);
  }
  weft_text_add(text, "\n");
  say_verdict(text, &hang);
  weft_hang_finish(&hang);
  return weft_text_status(text, error);
}

enum weft_status weft_hang_explain_json(const struct weft_allocator *allocator, const char *dump,
                                        size_t size, const char *name, struct weft_text *text,
                                        struct weft_error *error) {
  struct weft_hang hang;
  WEFT_TRY(weft_hang_read(allocator, dump, size, name, &hang, error));
  add_document(text, &hang);
  weft_hang_finish(&hang);
  return weft_text_status(text, error);
}
