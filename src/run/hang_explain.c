/* A dump in words: a line for each rank, then what follows from them. Ends in
 * lines that begin with "verdict:", "culprit:" or "circle:", and "hint:"; the
 * command reads these. */
#include <inttypes.h>
#include <string.h>

#include "base/fail.h"
#include "run/hang_board.h"
#include "run/hang_reader.h"
#include "run/hang_words.h"

#define NOBODY UINT32_MAX

static void say_where(struct weft_text *text, const struct weft_hang_rank *rank) {
  char word[WEFT_HANG_WORD];
  if (rank->phase == WEFT_PHASE_GREETING) {
    weft_text_add(text, " in the handshake");
  } else if (rank->action.op != WEFT_OP_IDLE) {
    weft_text_addf(text, " %s %s", weft_hang_preposition(rank->action),
                   weft_hang_action(rank->action, word));
  }
}

static void say_wait(struct weft_text *text, const struct weft_hang_rank *rank) {
  char word[WEFT_HANG_WORD];
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
  char word[WEFT_HANG_WORD];
  switch (rank->phase) {
    case WEFT_PHASE_AWAY: weft_text_add(text, "is away"); break;
    case WEFT_PHASE_COMPUTE:
      weft_text_addf(text, "is in %s", weft_hang_action(rank->action, word));
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
  char word[WEFT_HANG_WORD];
  weft_text_addf(text, "rank %" PRIu32 ": ", number);
  say_phase(text, rank);
  if (rank->phase == WEFT_PHASE_AWAY && rank->recent_count == 0 && rank->step == 0) {
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
         rank->phase == WEFT_PHASE_GREETING;
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
                       const struct weft_hang_verdict *verdict) {
  weft_text_add(text, "circle: ranks");
  weft_hang_circle(hang, verdict, say_member, text);
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

/* An error that the ranks agreed on was said when the boards still showed why;
 * ranks have given up since. Without one, the boards are all there is. */
static void say_verdict(struct weft_text *text, const struct weft_hang *hang) {
  const uint32_t waiter = longest_waiter(hang);
  const uint32_t reporter =
      hang->has_failure && hang->failure.rank != NOBODY ? hang->failure.rank : waiter;
  struct weft_hang_verdict verdict = {.culprit = NOBODY};
  struct weft_failure seen = {.rank = NOBODY,
                              .error = {.message = "no rank waits for another",
                                        .hint = "if this was no hang, there is nothing to do"}};
  if (reporter != NOBODY) {
    verdict = weft_hang_judge(hang, reporter, &seen);
  }
  const struct weft_failure *said = hang->has_failure ? &hang->failure : &seen;
  say_line(text, "verdict: ", said->error.message);
  if (verdict.circle_length > 0) {
    say_circle(text, hang, &verdict);
  } else {
    say_culprit(text, said->rank);
  }
  say_hint(text, said->error.hint);
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
