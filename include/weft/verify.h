/* Weft verify: is this schedule right, can it hang, and where.
 *
 * The proof needs the table or program alone, never the schedule's name, and
 * takes time linear in its size. */
#ifndef WEFT_VERIFY_H
#define WEFT_VERIFY_H

#include <weft/channel_models.h>
#include <weft/ir.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every rule has a stable id; weft/rules.def lists them from most basic
 * to least, and docs/rules.md is made from it. */
enum weft_rule {
#define WEFT_RULE(NAME, id, summary) WEFT_RULE_##NAME,
#include <weft/rules.def>
#undef WEFT_RULE
  WEFT_RULE_COUNT
};

/* "order.receive", "deadlock", ...; static storage. */
WEFT_API const char *weft_rule_id(enum weft_rule rule);

/* A cell or record of a program. step counts cells from 0; an overlap part has the step
 * of its overlap. */
struct weft_location {
  uint32_t rank;
  uint64_t step;
  const struct weft_action *action; /* into the verified program; NULL: the row */
};

struct weft_finding {
  enum weft_rule rule;
  struct weft_location location;
  const char *message; /* a sentence to act on */
  /* For a deadlock: each member waits for the next, the last for the first. No other finding has
   * a member of a shorter cycle. */
  const struct weft_location *cycle;
  const char *const
      *cycle_waits;    /* what each member waits for: "rank 1 to do 1RECV_F1 (step 4): ..." */
  size_t cycle_length; /* 0 for other rules */
};

/* One action that is done when ranks take turns, and what it waited for last; or that never is. */
struct weft_turn {
  struct weft_location location;
  uint32_t after_rank; /* that had to do `after` first; WEFT_RANK_NONE: it waited for nothing */
  struct weft_action after; /* of that rank */
};

struct weft_report {
  bool ok;               /* no finding at all */
  bool liveness_checked; /* false when basic findings made it meaningless */
  bool has_backward;     /* false: a forward-only table */
  uint32_t stage_count;  /* as understood */
  uint32_t microbatch_count;
  const struct weft_finding *findings; /* most basic first, then by rank and step */
  size_t finding_count;
  uint64_t findings_left_out; /* over findings_max */
  /* After a deadlock: the smallest capacity of the channels without one, the rest of the model
   * unchanged; WEFT_CAPACITY_UNLIMITED: every capacity has one. Otherwise that of the model. */
  uint32_t least_capacity;
  /* With options.trace, how the program goes: every rank does one action in its turn if it can, in
   * the order of ranks; then what is left, where ranks wait forever. None where actions are not where
   * they belong: on wrong ranks, over boundaries that do not exist, twice. */
  const struct weft_turn *moves;
  uint64_t move_count;
  const struct weft_turn *waits;
  uint64_t wait_count;
};

struct weft_verify_options {
  struct weft_comm_model model; /* for programs with communication */
  uint32_t stage_count;         /* 0: inferred from the table; with a graph: 0, or the graph's */
  uint32_t microbatch_count;    /* 0: inferred */
  size_t findings_max;          /* default 100; at least one of every rule that fired is kept */
  bool trace;                   /* also report moves */
};

WEFT_API struct weft_verify_options weft_verify_options_default(void);

/* NULL options: default. The report borrows `program` until it is destroyed.
 * WEFT_OK also when there are findings: look at report->ok. WEFT_ERR_USAGE for another number of
 * stages than the program's graph has. */
WEFT_API enum weft_status weft_verify(const struct weft_allocator *allocator,
                                      const struct weft_program *program,
                                      const struct weft_verify_options *options,
                                      struct weft_report **out, struct weft_error *error);
WEFT_API void weft_report_destroy(struct weft_report *report);

#ifdef __cplusplus
}
#endif
#endif
