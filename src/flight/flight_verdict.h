/* Who waits for whom, and the culprit. */
#ifndef FLIGHT_VERDICT_H
#define FLIGHT_VERDICT_H

#include "flight/flight_align.h"

enum weft_flight_phase {
  WEFT_FLIGHT_MISSING, /* there is no dump */
  WEFT_FLIGHT_WAITING, /* its oldest transfer that is not done */
  WEFT_FLIGHT_COMPUTING,
  WEFT_FLIGHT_BETWEEN /* it has done the transfers of whole steps */
};

/* A transfer that a rank waits for. */
struct weft_flight_wait {
  uint32_t peer;   /* UINT32_MAX: it waits for none */
  bool sends;      /* it is its send that the peer must receive */
  uint64_t number; /* on its channel since training began */
};

struct weft_flight_state {
  enum weft_flight_phase phase;
  uint64_t step;                         /* from 1, since training began; 0: not known */
  const struct weft_action *action;      /* that it waits in or computes; NULL: not known */
  const struct weft_action *action_end;  /* after the last one that it can be in: several actions
                                          * between two transfers cannot be told apart */
  struct weft_flight_wait device;        /* the oldest transfer that is not done */
  struct weft_flight_wait process;       /* the last one started, if it is a receive and not done */
  bool ended_step;                       /* the transfers that it has started are whole steps */
  const struct weft_action *next_action; /* after the last transfer that it has started */
  const struct weft_action *next_action_end;
  uint64_t next_step;
};

struct weft_flight_verdict {
  uint32_t culprit;      /* UINT32_MAX: none */
  uint32_t *cycle;       /* [cycle_length], each waits for the next */
  uint32_t cycle_length; /* 0: there is none */
  bool hangs;            /* some rank waits */
};

/* Iterates over the actions that a rank can be in: the first one, if `before` is NULL, or the next
 * one; NULL: there is none. */
const struct weft_action *weft_flight_next_action(const struct weft_flight_state *state,
                                                  const struct weft_action *before);

/* What a rank does, by its record and its row, which are aligned. `record->name` is NULL where
 * there is no dump. */
struct weft_flight_state weft_flight_state_of(const struct weft_program *program, uint32_t rank,
                                              const struct weft_flight_record *record,
                                              const struct weft_flight_row *row);

/* Follows the waits of all ranks. A rank without a dump is where its peers' dumps have it. Makes
 * the state of a rank that waits for a batch what holds the batch up, and the culprit's what its
 * process, not its device, is at. Allocates from the arena. */
enum weft_status weft_flight_judge(struct weft_arena *arena, const struct weft_program *program,
                                   const struct weft_flight_record *records,
                                   struct weft_flight_row *rows, struct weft_flight_state *states,
                                   struct weft_flight_verdict *verdict, struct weft_error *error);

#endif
