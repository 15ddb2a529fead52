/* One rank of the trainer, as a step function: what it does next. Ranks of one process
 * have this table of the world in common, which nobody writes while they run; all else
 * they tell each other. For trainer*.c alone.
 *
 *   trainer.c          the world, ranks made and driven
 *   trainer_outcome.c  what came of it
 *   trainer_plan.c     programs, the split, who has which stages and layers
 *   trainer_rank.c     the loop: batches, steps, evaluation
 *   trainer_update.c   what is told after a step; norms, AdamW
 *   trainer_gather.c   shards made whole: checkpoints, the hash, the model; events
 *   trainer_profile.c  times and costs
 *   trainer_search.c   what is asked of the planner
 *   trainer_tune.c     the schedule changed between steps */
#ifndef GPT_TRAINER_RANK_H
#define GPT_TRAINER_RANK_H

#include <weft/comm.h>

#include "gpt/train/autotune.h"
#include "gpt/train/bulletin.h"
#include "gpt/train/schedule_codec.h"
#include "gpt/train/trainer.h"

/* Of the actions of a stage. */
struct weft_gpt_stage_times {
  double total_ns[WEFT_OP_COUNT];
  uint64_t count[WEFT_OP_COUNT];
  double arrival_ns[2];              /* shortest RECV_F and RECV_B; 0: none yet */
  double unshard_ns, reduce_grad_ns; /* likewise; 0: none yet */
};

/* Means, as ranks tell them; NAN: none yet. */
struct weft_gpt_stage_means {
  float f, b, i, w;           /* ms */
  float arrival[2];           /* ms: shortest RECV_F and RECV_B; 0: none */
  float unshard, reduce_grad; /* ms; 0: none */
};

/* The same of a layer; 0: none. */
struct weft_gpt_layer_means {
  float f, i, w; /* ms */
};

/* A schedule in the place of the options'. */
struct weft_gpt_planned {
  struct weft_program *table; /* NULL: the options' */
  const char *schedule;       /* its name, on rank 0 */
  double memory;              /* MiB, of the rank with the most; on rank 0 */
};

/* Another one, from rank 0's plan to its first step. */
struct weft_gpt_retuning {
  struct weft_gpt_planned found; /* by rank 0 */
  double now, planned;           /* ms that the simulator says */
  double limit, seconds;
  uint8_t *letters; /* [letter_count], of which letters_told have been told */
  uint64_t letter_count, letters_told;
};

enum weft_gpt_rank_state {
  WEFT_GPT_RANK_TUNE,     /* decide about the schedule */
  WEFT_GPT_RANK_PLANNED,  /* told: how good rank 0's plan is */
  WEFT_GPT_RANK_LETTERS,  /* told: what it is */
  WEFT_GPT_RANK_NEXT,     /* begin a step, or end */
  WEFT_GPT_RANK_STEP,     /* the pipeline's */
  WEFT_GPT_RANK_NORMS,    /* told, with what else is of the step */
  WEFT_GPT_RANK_UPDATE,   /* then sharded updates are gathered: */
  WEFT_GPT_RANK_UPDATING, /* ... */
  WEFT_GPT_RANK_EVALUATE, /* begin an evaluation batch, or go on */
  WEFT_GPT_RANK_EVALUATING,
  WEFT_GPT_RANK_EVALUATED, /* told */
  WEFT_GPT_RANK_SAVE,      /* write own layers */
  WEFT_GPT_RANK_SAVED,     /* told */
  WEFT_GPT_RANK_COMMITTED, /* by rank 0 */
  WEFT_GPT_RANK_HASH,      /* own layers, at the end */
  WEFT_GPT_RANK_HASHED,    /* told */
  WEFT_GPT_RANK_MODEL,     /* gathered, if asked for */
  WEFT_GPT_RANK_EVENTS,    /* likewise */
  WEFT_GPT_RANK_DONE
};

/* What a rank has, of layers or stages; the same table on all ranks. */
struct weft_gpt_ownership {
  uint32_t *list;  /* rank after rank, ascending */
  uint32_t *begin; /* [pipeline ranks + 1] */
  uint32_t most;   /* of one rank */
};

/* A layer being made whole from its replicas' slices, and told to other ranks. */
enum { WEFT_GPT_GATHERED_MAX = 3 };
struct weft_gpt_gathering {
  struct weft_gpt_layer_state whole;     /* in place where it is whole, else in buffers */
  float *buffers[WEFT_GPT_GATHERED_MAX]; /* as long as the largest layer; NULL: not needed yet */
  struct weft_collective collectives[WEFT_GPT_GATHERED_MAX];
  uint32_t count, done;
  bool started;
  struct weft_collective spread; /* of the whole group */
  bool spreads;
};

struct weft_gpt_rank {
  struct weft_gpt_trainer *trainer;
  struct weft_transport *transport;
  struct weft_pipeline *pipeline;
  uint32_t replica, row;
  enum weft_gpt_rank_state state;
  uint64_t step; /* done */
  const uint32_t *own_layers, *own_stages;
  uint32_t own_layer_count, own_stage_count;
  bool has_first, has_last;

  struct weft_gpt_stage_context context;
  struct weft_gpt_rank_memory memory;
  struct weft_gpt_tie tie;
  struct weft_group *group;     /* of the replicas of its row; NULL: there is one */
  struct weft_group *tie_group; /* of the ranks with the first and the last stage */
  struct weft_group
      *pipeline_group;            /* of the first replica; NULL in the others, and if not needed */
  struct weft_gpt_stage **stages; /* [stage_count]; NULL: another rank's */
  struct weft_stage **bases;

  uint8_t *inputs, *targets; /* [batch][context] */
  struct weft_gpt_bulletin bulletin;
  bool told;          /* this time's `mine` is written */
  int64_t wait_since; /* for other ranks, outside the pipeline */
  bool waits;         /* ... so the transport must be waited for, not the pipeline */
  bool stop;

  /* Of the last step, over all ranks. */
  double *squares; /* [layer_count] of gradients */
  double loss, bubble, norm;
  struct weft_gpt_stage_means *means;       /* [stage_count] */
  struct weft_gpt_layer_means *layer_means; /* [layer_count] */
  /* Of this rank. */
  int64_t busy_ns, first_begin, last_end;
  struct weft_gpt_stage_times *times; /* [stage_count] */
  uint32_t eval_at;
  double eval_sum;

  struct weft_gpt_gathering gathering;
  uint32_t layer_at;                 /* of own layers, or of all */
  struct weft_gpt_layer_file *files; /* [layer_count] */
  uint64_t *hashes;                  /* [layer_count] */
  bool is_hashed, is_modelled;
  struct weft_gpt_layer_state *model; /* [layer_count] of rank 0, if asked for */

  struct weft_gpt_tuning tuning;
  struct weft_gpt_planned now, before; /* what runs, and what comes back if it is slower */
  struct weft_gpt_retuning retuning;
  struct weft_gpt_tuning_report tuning_report; /* of rank 0: the last one */
  bool has_tuned;                              /* there is one */
  int64_t pipeline_ns;                         /* of the last step: its own, then the longest */
  double room;                                 /* MiB: the least of all ranks' memory_free */

  const struct weft_program *program; /* of the last training step, and its events */
  uint64_t event_room;                /* of the longest row of any rank */
  struct weft_event *events;          /* [event_room] */
  struct weft_event *all_events;      /* [ranks][event_room]; NULL: not asked for */
  uint64_t event_count, all_event_count;
  struct weft_gpt_step_report report;  /* of rank 0 */
  int64_t step_begin_ns, run_begin_ns; /* of the clock */
};

struct weft_gpt_trainer {
  struct weft_gpt_trainer_options options; /* with all defaults filled in */
  const struct weft_allocator *allocator;
  struct weft_gpt_config config;
  uint32_t world_size, layer_count, stage_count;
  uint64_t sequences_max; /* of a microbatch */
  uint64_t configuration; /* hash of all that ranks must agree on */
  enum weft_placement_kind placement;
  struct weft_gpt_planned first; /* when the options' schedule needs too much memory */
  uint64_t floats_largest;       /* of a layer, padded */
  uint32_t *first_layers;        /* [stage_count + 1] */
  uint32_t *rank_of;             /* [stage_count] row */
  struct weft_gpt_ownership layers, stages;
  struct weft_boundary *boundaries;
  struct weft_threads *threads;
  struct weft_loopback *loopback;
  uint32_t first_local, local_count; /* ranks of the world that are here */
  struct weft_gpt_rank *ranks;       /* [local_count] */
};

/* The rank of the world; NULL: not in this process. */
struct weft_gpt_rank *weft_gpt_trainer_local(const struct weft_gpt_trainer *trainer,
                                             uint32_t world_rank);

/* ---- trainer_plan.c ---- */

enum weft_status weft_gpt_trainer_plan(void *context, uint32_t microbatches, bool training,
                                       struct weft_program **out, struct weft_error *error);
/* The same, of the schedule that the rank runs now; `context` is the rank. */
enum weft_status weft_gpt_rank_plan(void *context, uint32_t microbatches, bool training,
                                    struct weft_program **out, struct weft_error *error);
/* Lowers a table as the options need it. */
enum weft_status weft_gpt_trainer_lower(const struct weft_gpt_trainer *trainer,
                                        const struct weft_program *table, struct weft_program **out,
                                        struct weft_error *error);
/* Stages, split, ownership, and what else follows from the options. */
enum weft_status weft_gpt_trainer_lay_out(struct weft_gpt_trainer *trainer,
                                          struct weft_error *error);
void weft_gpt_trainer_clear_layout(struct weft_gpt_trainer *trainer);

/* ---- trainer_rank.c ---- */

/* Goes on as far as it can: WEFT_OK when training is over, WEFT_IN_PROGRESS when it has
 * to wait (weft_gpt_rank_wait), or an error that is the same on all ranks. */
enum weft_status weft_gpt_rank_advance(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_wait(struct weft_gpt_rank *rank, struct weft_error *error);

/* All ranks tell each other what is in the bulletin. */
enum weft_status weft_gpt_rank_meet(struct weft_gpt_rank *rank, struct weft_error *error);
/* WEFT_IN_PROGRESS, to be called where other ranks are waited for outside the pipeline; or
 * WEFT_ERR_STALLED when that has taken too long. */
enum weft_status weft_gpt_rank_await(struct weft_gpt_rank *rank, struct weft_error *error);
/* Reports the step, and goes on to the next. */
void weft_gpt_rank_tell(struct weft_gpt_rank *rank);
bool weft_gpt_rank_is_over(const struct weft_gpt_rank *rank);
static inline bool weft_gpt_rank_reports(const struct weft_gpt_rank *rank) {
  return rank->transport->rank == 0;
}

/* A layer that is on this rank. */
struct weft_gpt_stage *weft_gpt_rank_stage(const struct weft_gpt_rank *rank, uint32_t layer,
                                           uint32_t *k);

/* ---- States, one function each ---- */

enum weft_status weft_gpt_rank_norms(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_update(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_updating(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_save(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_saved(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_hash(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_hashed(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_model(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_events(struct weft_gpt_rank *rank, struct weft_error *error);

/* Bytes that ranks tell at most. */
uint64_t weft_gpt_rank_bulletin_bytes(const struct weft_gpt_trainer *trainer);

/* ---- trainer_tune.c ---- */

enum weft_status weft_gpt_rank_tune(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_planned(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_letters(struct weft_gpt_rank *rank, struct weft_error *error);
void weft_gpt_rank_end_tuning(const struct weft_allocator *allocator, struct weft_gpt_rank *rank);
/* Bytes that are told at a time. */
enum { WEFT_GPT_TUNING_PIECE = 1024 };

/* ---- trainer_search.c ---- */

/* The best table within `limit` MiB per rank (INFINITY: none), for costs with sizes as the
 * trainer has them (weft_gpt_trainer_add_sizes). WEFT_ERR_INVALID: there is none, and what
 * the least is. `rank` is kept alive meanwhile; NULL: the search is the same everywhere. */
enum weft_status weft_gpt_trainer_search(const struct weft_gpt_trainer *trainer,
                                         struct weft_gpt_rank *rank, const struct weft_costs *costs,
                                         double limit, struct weft_gpt_planned *out,
                                         struct weft_error *error);
/* MiB that a table or program needs on the rank with the most. NAN: no memory to tell. */
double weft_gpt_trainer_need(const struct weft_gpt_trainer *trainer,
                             const struct weft_program *program, const struct weft_costs *costs);
/* A first schedule within the options' limit. */
enum weft_status weft_gpt_trainer_fit(struct weft_gpt_trainer *trainer, struct weft_error *error);

/* ---- trainer_profile.c ---- */

/* Room for the events of the programs that there are. */
enum weft_status weft_gpt_rank_make_event_room(struct weft_gpt_rank *rank,
                                               struct weft_error *error);

/* Costs for the planner: times as measured, sizes as they are allocated. */
enum weft_status weft_gpt_rank_costs(const struct weft_gpt_rank *rank, struct weft_costs **out,
                                     struct weft_error *error);
/* The same before anything is measured, from estimated work. */
enum weft_status weft_gpt_trainer_estimate(const struct weft_gpt_trainer *trainer,
                                           struct weft_costs **out, struct weft_error *error);
/* Forgets the stages' times. */
void weft_gpt_rank_forget(struct weft_gpt_rank *rank);

/* Adds the last step's events to the stages' times; forgets those of the first step. */
void weft_gpt_rank_measure(struct weft_gpt_rank *rank);
struct weft_gpt_stage_means weft_gpt_rank_means(const struct weft_gpt_rank *rank, uint32_t stage);
struct weft_gpt_layer_means weft_gpt_rank_layer_means(const struct weft_gpt_rank *rank,
                                                      uint32_t layer);
/* Bubble ratio that the simulator predicts for the program from the means so far; NAN if
 * it cannot. */
double weft_gpt_rank_predict(const struct weft_gpt_rank *rank);

#endif
