/* The timed run that simulation, makespan and period share. */
#ifndef ANALYZE_SIM_RUN_H
#define ANALYZE_SIM_RUN_H

#include "analyze/sim_ticks.h"
#include "base/memory.h"
#include "base/random.h"

#define WEFT_TIME_UNKNOWN INT64_MIN

/* The input of a (stage, microbatch) in one direction, on its way. */
struct weft_arrival {
  int64_t produced; /* end of the action that made it */
  int64_t start;    /* of its transfer */
  int64_t arrive;   /* WEFT_TIME_UNKNOWN until that is known */
};

/* What is written down about a rank besides its clock. */
struct weft_rank_record {
  int64_t busy;
  int64_t first_begin;
  int64_t idle[WEFT_IDLE_CAUSES];
  double activation; /* held now */
  double memory;     /* with parameters and gradients */
  double peak_activation;
  double peak_memory;
  int64_t peak_at;
  bool has_begun;
};

struct weft_rank_run {
  uint64_t at; /* record */
  uint64_t end;
  uint64_t event;                       /* of the record it stands at, when events are kept */
  int64_t clock;                        /* end of its last compute */
  int64_t stream;                       /* end of its last collective */
  const struct weft_arrival *waits_for; /* while it is stuck */
  bool queued;
};

/* A queue that transfers of one rank go through, where channels are shared. */
struct weft_transfer_queue {
  uint32_t head; /* into entries */
  uint32_t end;
  int64_t free; /* when its last transfer left it */
};

struct weft_sim_run {
  const struct weft_allocator *allocator;
  const struct weft_program *program;
  const struct weft_costs *costs;
  const struct weft_sim_options *options;
  struct weft_ticks ticks;
  struct weft_arena arena;          /* owns the arrays below */
  bool has_transfers;               /* SEND and RECV, not a table */
  uint32_t *rank_of;                /* [stage] */
  struct weft_arrival *activations; /* [stage][microbatch] input of F */
  struct weft_arrival *gradients;   /* [stage][microbatch] input of B and I */
  int64_t *edge_free;               /* [2 x stage] when the boundary's channel is free */
  int64_t *unsharded_at;            /* [stage] when its parameters are there */
  struct weft_rank_run *ranks;      /* [rank] */
  uint32_t *work;                   /* ranks to look at, a stack */
  uint32_t work_count;

  /* Shared channels only. */
  struct weft_transfer_queue *queues;
  uint32_t queue_count;
  uint32_t *entries;           /* records, queue after queue, in program order */
  uint32_t *queue_of_sender;   /* [edge] */
  uint32_t *queue_of_receiver; /* [edge] */
  uint32_t *queue_work;        /* queues to look at, a stack; may hold one more than once */
  uint32_t queue_work_count;

  /* A full simulation only; NULL otherwise. */
  struct weft_event *events;
  const uint64_t *event_begin;
  struct weft_rank_record *records; /* [rank] */
  bool *has_gradients;              /* [stage] its first backward has begun */
};

/* Everything but what belongs to a full simulation. */
enum weft_status weft_sim_run_init(struct weft_sim_run *run, const struct weft_allocator *allocator,
                                   const struct weft_program *program,
                                   const struct weft_costs *costs,
                                   const struct weft_sim_options *options,
                                   struct weft_error *error);
void weft_sim_run_finish(struct weft_sim_run *run);

/* Runs all ranks from the given start times (NULL: all 0). Channels are free at
 * the beginning. WEFT_ERR_INVALID when some rank cannot finish. */
enum weft_status weft_sim_run_all(struct weft_sim_run *run, const int64_t *starts,
                                  struct weft_error *error);

/* sim_queues.c: shared channels. */
enum weft_status weft_sim_queues_init(struct weft_sim_run *run, struct weft_error *error);
void weft_sim_queues_reset(struct weft_sim_run *run);
/* An action has made what goes over `edge`. */
void weft_sim_queues_produced(struct weft_sim_run *run, uint32_t edge);

/* A rank whose input may have come. */
void weft_sim_wake(struct weft_sim_run *run, uint32_t rank, const struct weft_arrival *arrival);

static inline struct weft_arrival *weft_sim_input(const struct weft_sim_run *run, bool forward,
                                                  uint32_t stage, uint32_t microbatch) {
  return &(forward ? run->activations
                   : run->gradients)[(uint64_t)stage * run->program->microbatch_count + microbatch];
}

#endif
