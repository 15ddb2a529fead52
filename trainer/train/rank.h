/* One rank of a training, and the tables of the world that the ranks of a process share and
 * do not change while they run. Everything else ranks exchange by messages. For train/ only.
 *
 *   loop.c             the training loop
 *   trainer_world.c    the world: ranks created, run and destroyed
 *   trainer_layout.c   what follows from the options: programs, stages, ownership
 *   trainer_query.c    results, for the caller
 *   rank.c             a rank's groups, stages, memory and pipeline
 *   step_stats.c       loss, gradient norm and times of a step, gathered from all ranks
 *   optimizer_step.c   AdamW on the rank's shards
 *   optimizer_exchange.c  the same on GPUs of several processes
 *   gather_layer.c     layers gathered from their shards
 *   snapshot.c         checkpoints, and the hash, the model and the events at the end
 *   profile.c          times of stages and layers, and the costs made from them
 *   layer_times.c      times of layers on GPUs
 *   schedule_search.c  requests to the planner
 *   autotune.c         the schedule replaced between two steps */
#ifndef GPT_RANK_H
#define GPT_RANK_H

#include <stdint.h>

#include <weft/comm.h>
#include <weft/ir.h>
#include <weft/support.h>

#include "trainer/train/autotune_policy.h"
#include "trainer/train/trainer.h"

/* ---- Profile ---- */

/* Actions of a stage since the last reset. */
struct weft_gpt_stage_times {
  double total_ns[WEFT_OP_COUNT];
  uint64_t count[WEFT_OP_COUNT];
  double shortest_ns[WEFT_OP_COUNT]; /* of RECV_F, RECV_B, UNSHARD, REDUCE_GRAD; 0: none yet */
};

/* Means in ms by op, as ranks exchange them. Of a stage, compute: NAN when not measured; transfers
 * and collectives: the shortest, 0 when there was none. Of a layer, F, I and W: 0 when not
 * measured. */
struct weft_gpt_op_means {
  _Alignas(8) float ms[WEFT_OP_COUNT];
};

struct weft_gpt_profile {
  /* Of this rank. */
  struct weft_gpt_stage_times *times;     /* [stage_count] */
  int64_t busy_ns, first_begin, last_end; /* compute of the last step */
  /* Of all ranks, means over replicas. */
  struct weft_gpt_op_means *means;       /* [stage_count] */
  struct weft_gpt_op_means *layer_means; /* [layer_count] */
  /* The last training step. */
  const struct weft_program *program; /* the pipeline's */
  struct weft_arena event_arena;      /* of the events, which a longer program replaces */
  struct weft_event *events;          /* [event_capacity] of this rank */
  uint64_t event_capacity;            /* actions of the longest row of any program so far */
  uint64_t event_count;
  struct weft_event *all_events; /* [pipeline ranks][event_capacity]; NULL: not gathered */
  uint64_t all_event_count;
};

/* ---- Auto-tuning ---- */

/* A schedule that replaces the options' one. */
struct weft_gpt_planned {
  struct weft_program *table; /* NULL: the options' */
  const char *schedule;       /* its name; on rank 0 only */
  double memory;              /* MiB that the rank with the most needs; on rank 0 only */
};

struct weft_gpt_autotune {
  struct weft_gpt_tuning policy;
  struct weft_gpt_planned current, previous; /* previous comes back if current is slower */
  double memory_limit, planning_seconds;     /* of the last search, on rank 0 */
};

/* ---- The rank ---- */

/* Of the last step, the same on all ranks. */
struct weft_gpt_step_stats {
  double loss;          /* of the first head, mean over the batch */
  double second_loss;   /* of the second one, without its weight; 0: there is one */
  double gradient_norm; /* before clipping */
  double bubble;
  int64_t pipeline_ns; /* of the slowest rank */
  double memory_free;  /* MiB, the least of all ranks; INFINITY: not known */
};

/* Buffers in which a layer is gathered from the shards of its replicas. */
enum { WEFT_GPT_GATHERED_MAX = 3 }; /* parameters and two moments */
struct weft_gpt_gather {
  float *buffers[WEFT_GPT_GATHERED_MAX]; /* [floats_largest]; NULL: not allocated yet */
  struct weft_collective collectives[WEFT_GPT_GATHERED_MAX];
};

struct weft_gpt_rank {
  struct weft_gpt_trainer *trainer;
  struct weft_transport *transport;
  struct weft_pipeline *pipeline;
  struct weft_arena arena; /* of the arrays below, but for events */
  uint32_t replica, row;
  const uint32_t *own_layers, *own_stages; /* ascending */
  uint32_t own_layer_count, own_stage_count;
  bool has_first, has_last; /* stage */
  char eager_reason[640];   /* why the last step was not replayed */
  bool has_head;            /* any: a loss */

  struct weft_group *replica_group;  /* the same row of all replicas; NULL: one replica */
  struct weft_group *tie_group;      /* ranks with the first and the last stage, if they differ */
  struct weft_group *pipeline_group; /* the first replica; NULL in others, and if not needed */
  struct weft_gpt_compute *compute;
  struct weft_gpt_stage_context context;
  struct weft_gpt_rank_memory memory;
  struct weft_gpt_tie tie;
  struct weft_gpt_stage **stages; /* [stage_count]; NULL: another rank's */
  struct weft_stage **bases;
  struct weft_gpt_gather gather;
  struct {
    struct weft_stream *stream;
    struct weft_device_event *event;
  } exchange; /* of optimizer_exchange.c, with process_per_rank */

  char *inputs, *targets[WEFT_GPT_HEADS_MAX]; /* [batch][context] */
  uint64_t step;                              /* done */
  bool stop;                                  /* a rank was interrupted: all finish this step */
  enum weft_gpt_divergence divergence;
  uint64_t skipped; /* steps */
  int64_t run_begin_ns;
  struct weft_gpt_step_stats stats;
  unsigned char *stats_sent, *stats_received; /* records of step_stats.c */
  struct weft_gpt_profile profile;
  struct weft_gpt_autotune autotune;

  /* After the last step. */
  uint64_t hash;                      /* of all parameters; 0: not yet */
  struct weft_gpt_layer_state *model; /* [layer_count] on rank 0, if asked for */
  bool has_model;
};

/* The layers or stages of each row. */
struct weft_gpt_ownership {
  uint32_t *list;  /* row after row, ascending */
  uint32_t *begin; /* [pipeline ranks + 1] */
  uint32_t most;   /* of one row */
};

struct weft_gpt_trainer {
  struct weft_gpt_trainer_options options; /* with all defaults filled in */
  const struct weft_allocator *allocator;
  struct weft_arena arena; /* of the arrays below */
  struct weft_gpt_config config;
  const struct weft_gpt_compute_ops *compute_ops;
  uint32_t world_size, layer_count, stage_count;
  uint64_t sequences_max; /* of a microbatch */
  uint64_t configuration; /* hash of everything that ranks must agree on */
  enum weft_placement_kind placement;
  struct weft_gpt_planned first; /* when the options' schedule needs too much memory */
  uint64_t floats_largest;       /* of a layer, padded */
  uint32_t *first_layers;        /* [stage_count + 1] */
  uint32_t *rank_of;             /* [stage_count] row */
  struct weft_gpt_tie *ties;     /* [replicas] of all ranks, where they compute on GPUs */
  double *sums; /* where work is enqueued: squares of gradients, [replicas][layers], and sums of
                   losses, [replicas][heads]; memory of the host that all GPUs access. The first
                   rank of the process allocates it */
  struct weft_gpt_ownership layers, stages;
  struct weft_graph *graph;           /* of stages; NULL: a chain */
  struct weft_program *graph_program; /* the options' program with the graph; NULL: as it is */
  struct weft_boundary *boundaries;   /* of the edges, then of the losses */
  uint32_t boundary_count, edge_count;
  struct weft_comm *comm; /* opened here; NULL: options.endpoint */
  bool virtual_time;
  int64_t stall_limit;               /* 0: none, as in virtual time */
  uint32_t first_local, local_count; /* ranks of the world in this process */
  bool process_per_rank;             /* ranks compute on GPUs, each in a process of its own */
  struct weft_gpt_rank *ranks;       /* [local_count] */
};

/* The rank of the world; NULL: not in this process. */
struct weft_gpt_rank *weft_gpt_trainer_local(const struct weft_gpt_trainer *trainer,
                                             uint32_t world_rank);

/* Of a replica's heads, in `sums`. */
static inline double *weft_gpt_trainer_losses(const struct weft_gpt_trainer *trainer,
                                              uint32_t replica) {
  return trainer->sums + (uint64_t)trainer->options.replicas * trainer->layer_count +
         (uint64_t)replica * weft_gpt_head_count(&trainer->config);
}

static inline const struct weft_gpt_training *weft_gpt_rank_training(
    const struct weft_gpt_rank *rank) {
  return &rank->trainer->options.training;
}
static inline bool weft_gpt_rank_reports(const struct weft_gpt_rank *rank) {
  return rank->transport->rank == 0;
}
static inline bool weft_gpt_rank_is_over(const struct weft_gpt_rank *rank) {
  return rank->stop || rank->divergence != WEFT_GPT_NOT_DIVERGED ||
         rank->step >= weft_gpt_rank_training(rank)->total_steps;
}

/* ---- rank.c ---- */

enum weft_status weft_gpt_rank_init(struct weft_gpt_rank *rank, struct weft_gpt_trainer *trainer,
                                    struct weft_transport *transport, struct weft_error *error);
void weft_gpt_rank_finish(struct weft_gpt_rank *rank);
/* The stage of this rank that has the layer, as its layer *k; NULL: another rank's. */
struct weft_gpt_stage *weft_gpt_rank_find_layer(const struct weft_gpt_rank *rank, uint32_t layer,
                                                uint32_t *k);

/* ---- loop.c ---- */

/* Trains to the last step, or until interrupted. Blocks. */
enum weft_status weft_gpt_rank_train(struct weft_gpt_rank *rank, struct weft_error *error);

/* ---- step_stats.c ---- */

uint64_t weft_gpt_step_stats_bytes(const struct weft_gpt_trainer *trainer); /* of a record */
/* Gathers what ranks know of the step: rank->stats, stop, and the profile's means. `losses`
 * [WEFT_GPT_HEADS_MAX] are those of the replica's heads that this rank has, else 0; `pipeline_ns`
 * is this rank's. */
enum weft_status weft_gpt_rank_gather_stats(struct weft_gpt_rank *rank, const double *losses,
                                            int64_t pipeline_ns, struct weft_error *error);

/* This replica's slice of the gradients of an own layer. */
struct weft_gpt_floats weft_gpt_rank_slice_gradients(const struct weft_gpt_rank *rank,
                                                     uint32_t layer);

/* The sum of a number of each rank, the same on all. */
enum weft_status weft_gpt_rank_sum(struct weft_gpt_rank *rank, double number, double *sum,
                                   struct weft_error *error);

/* ---- optimizer_step.c ---- */

/* Clips, updates this rank's shards, and gathers the parameters of sharded gradients. */
enum weft_status weft_gpt_rank_optimizer_step(struct weft_gpt_rank *rank, double learning_rate,
                                              struct weft_error *error);

/* The same where work is enqueued: before the step, what differs by step; and as the end of the
 * pipeline's step (weft_pipeline_options.finish), with the rank as context. */
void weft_gpt_rank_set_step(const struct weft_gpt_rank *rank, double learning_rate);
enum weft_status weft_gpt_rank_finish_step(void *context, uint32_t pass, struct weft_stream *stream,
                                           struct weft_error *error);

/* ---- optimizer_exchange.c ---- */

/* The same where ranks with GPUs are processes: after the pipeline's step, in its place. Blocks. */
enum weft_status weft_gpt_exchange_end_step(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_exchange_init(struct weft_gpt_rank *rank, struct weft_error *error);
void weft_gpt_exchange_finish(struct weft_gpt_rank *rank);

/* The learning rate of step `step` (from 0): rises linearly to `rate` over the first `warmup` steps, then
 * falls along half a cosine to `rate_min` at `total`, and stays there. */
double weft_gpt_learning_rate(uint64_t step, double rate, double rate_min, uint64_t warmup,
                              uint64_t total);

/* ---- gather_layer.c ---- */

/* Blocks until the collective is done; fails with WEFT_ERR_STALLED after the stall limit. */
enum weft_status weft_gpt_rank_wait_collective(struct weft_gpt_rank *rank, struct weft_group *group,
                                               struct weft_collective *collective,
                                               struct weft_error *error);
/* An own layer, unsharded and on the host: its parameters and, if wanted, moments. Arrays are the
 * stage's, or the gather buffers'. All replicas of the rank call it. */
enum weft_status weft_gpt_rank_gather_layer(struct weft_gpt_rank *rank, uint32_t layer,
                                            bool moments, struct weft_gpt_layer_state *gathered,
                                            struct weft_error *error);
/* The n-th gather buffer. */
enum weft_status weft_gpt_rank_gather_buffer(struct weft_gpt_rank *rank, uint32_t n, float **out,
                                             struct weft_error *error);
void weft_gpt_rank_free_gather_buffers(struct weft_gpt_rank *rank);

/* ---- snapshot.c ---- */

enum weft_status weft_gpt_rank_save_checkpoint(struct weft_gpt_rank *rank,
                                               struct weft_error *error);
enum weft_status weft_gpt_rank_hash(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_gather_model(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_gather_events(struct weft_gpt_rank *rank, struct weft_error *error);

/* ---- trainer_layout.c ---- */

/* Programs as struct weft_pipeline_options wants them: of the options' schedule (`context`: the
 * trainer), and of the schedule that a rank runs now (`context`: the rank). */
enum weft_status weft_gpt_trainer_source(void *context, uint32_t microbatches, bool training,
                                         struct weft_program **out, struct weft_error *error);
enum weft_status weft_gpt_rank_source(void *context, uint32_t microbatches, bool training,
                                      struct weft_program **out, struct weft_error *error);
/* Lowers a table as the options need it. */
enum weft_status weft_gpt_trainer_lower(const struct weft_gpt_trainer *trainer,
                                        const struct weft_program *table, struct weft_program **out,
                                        struct weft_error *error);
/* Stages, split, graph, ownership, and what else follows from the options. */
enum weft_status weft_gpt_trainer_lay_out(struct weft_gpt_trainer *trainer,
                                          struct weft_error *error);

/* ---- profile.c ---- */

enum weft_status weft_gpt_profile_init(struct weft_gpt_rank *rank, struct weft_error *error);
void weft_gpt_profile_finish(struct weft_gpt_rank *rank);
/* Allocates room for the events of all programs so far. */
enum weft_status weft_gpt_profile_reserve(struct weft_gpt_rank *rank, struct weft_error *error);
/* Adds the last step's events to the times; the first step of a run is a warm-up and is not
 * counted. */
void weft_gpt_profile_add_step(struct weft_gpt_rank *rank);
/* Forgets all times. */
void weft_gpt_profile_reset(struct weft_gpt_rank *rank);
struct weft_gpt_op_means weft_gpt_profile_stage_means(const struct weft_gpt_rank *rank,
                                                      uint32_t stage);
struct weft_gpt_op_means weft_gpt_profile_layer_means(const struct weft_gpt_rank *rank,
                                                      uint32_t layer);
/* The bubble ratio that the simulator predicts from the means; NAN if it cannot. */
double weft_gpt_profile_predict_bubble(const struct weft_gpt_rank *rank);
/* Costs for the planner: times as measured, sizes as allocated. */
enum weft_status weft_gpt_profile_planner_costs(const struct weft_gpt_rank *rank,
                                                struct weft_costs **out, struct weft_error *error);
/* The same with one part per layer, and stages that take the times of their layers. */
enum weft_status weft_gpt_profile_layer_costs(const struct weft_gpt_rank *rank,
                                              struct weft_costs **out, struct weft_error *error);
/* The costs of stages before anything is measured, from estimated work. */
enum weft_status weft_gpt_trainer_estimate_costs(const struct weft_gpt_trainer *trainer,
                                                 struct weft_costs **out, struct weft_error *error);

/* ---- layer_times.c ---- */

/* Measures this rank's layers where work is enqueued, if the options ask for it. Its stages and
 * their memory exist, and nothing runs. */
enum weft_status weft_gpt_rank_time_layers(const struct weft_gpt_rank *rank,
                                           struct weft_error *error);

/* ---- schedule_search.c ---- */

/* The best table within `limit` MiB per rank (INFINITY: none), for costs of profile.c.
 * WEFT_ERR_INVALID: none fits, and the message says what the least is. The rank keeps
 * communicating meanwhile; NULL: every process finds the same table. */
enum weft_status weft_gpt_trainer_search(const struct weft_gpt_trainer *trainer,
                                         struct weft_gpt_rank *rank, const struct weft_costs *costs,
                                         double limit, struct weft_gpt_planned *out,
                                         struct weft_error *error);
/* Finds a first schedule within the options' memory limit, if there is one. */
enum weft_status weft_gpt_trainer_fit(struct weft_gpt_trainer *trainer, struct weft_error *error);

/* ---- autotune.c ---- */

/* After a step: measures, plans or switches, as the policy says. */
enum weft_status weft_gpt_rank_autotune(struct weft_gpt_rank *rank, struct weft_error *error);
void weft_gpt_autotune_finish(struct weft_gpt_autotune *autotune);

/* Whether every stage is on its rank, rank_of[stage_count], and takes the microbatches of each op in
 * ascending order, as all named schedules but LoopedBFS do; a table with overlaps does not. */
bool weft_gpt_schedule_keeps_order(const struct weft_program *table, const uint32_t *rank_of,
                                   uint32_t stage_count);

#endif
