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

/* What keeps a collective from ending that a rank waits in; the first one that is so. */
enum weft_flight_hold_kind {
  WEFT_FLIGHT_HOLD_NONE,
  WEFT_FLIGHT_HOLD_PROCESS, /* that rank has not started it */
  WEFT_FLIGHT_HOLD_NO_DUMP, /* there is no dump of that rank */
  WEFT_FLIGHT_HOLD_DEVICE,  /* that rank waits for a transfer first */
  WEFT_FLIGHT_HOLD_UNKNOWN  /* nothing that is known */
};

struct weft_flight_hold {
  enum weft_flight_hold_kind kind;
  const struct weft_flight_group *group; /* of the collective */
  uint32_t number;                       /* of that rank in the job */
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
  struct weft_flight_hold hold;
  bool is_behind; /* others wait for it to start a collective */
};

/* The ranks of a job: those of pipeline k from position k * rank_count of the program on, in the
 * order of its rows, then those that are in none. */
struct weft_flight_ranks {
  uint32_t pipelines;
  uint32_t count;
  uint32_t *numbers;   /* [count] in the job */
  uint32_t *positions; /* [WEFT_RANKS_MAX] the opposite; UINT32_MAX: it is not here */
  struct weft_flight_record *records; /* [count] */
};

/* Divides the ranks into pipelines: those that exchange messages, or are in one process group of
 * messages. Numbers the ranks and peers of records by rows. WEFT_ERR_INVALID, WEFT_ERR_USAGE. */
enum weft_status weft_flight_ranks_find(struct weft_arena *arena, uint32_t rank_count,
                                        struct weft_flight_record *records, size_t count,
                                        struct weft_flight_ranks *ranks, struct weft_error *error);

struct weft_flight_job {
  const struct weft_program *program;
  struct weft_flight_ranks ranks;
  struct weft_flight_row *rows;     /* [ranks.count] */
  struct weft_flight_state *states; /* [ranks.count] */
};

struct weft_flight_verdict {
  uint32_t culprit;      /* a position; UINT32_MAX: none */
  uint32_t *cycle;       /* [cycle_length] positions, each waits for the next: a deadlock */
  uint32_t cycle_length; /* 0: there is none */
  uint32_t *suspects;    /* [suspect_count] where the waits end, if there is neither */
  uint32_t suspect_count;
  bool hangs; /* some rank waits */
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

/* Whether a rank has not started the collective with this number of another rank's group. */
bool weft_flight_is_behind(const struct weft_flight_record *record,
                           const struct weft_flight_group *group, uint64_t number);

void weft_flight_find_holds(struct weft_flight_job *job);

/* Follows the waits of all ranks. A rank without a dump is where its peers' dumps have it. Makes
 * the state of a rank that waits for a batch what holds the batch up, and the culprit's what its
 * process, not its device, is at. Allocates from the arena. */
enum weft_status weft_flight_judge(struct weft_arena *arena, struct weft_flight_job *job,
                                   struct weft_flight_verdict *verdict, struct weft_error *error);

#endif
