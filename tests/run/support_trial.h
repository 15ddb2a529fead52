/* Trials of the whole runtime: a random job on the loopback transport with one
 * fault in it, all of it a function of the seed. support_trial_draw.c draws one,
 * support_trial.c runs it; what must come of it is test_run_faults.c's. */
#ifndef TESTS_SUPPORT_TRIAL_H
#define TESTS_SUPPORT_TRIAL_H

#include <weft/comm.h>
#include <weft/run.h>
#include <weft/weft.h>

#include "support_fault_stage.h"
#include "support_linear_model.h"
#include "support_linear_stage.h"
#include "support_memory.h"

#define TRIAL_RANKS_MAX 6u
#define TRIAL_STAGES_MAX 24u
#define TRIAL_STEPS_MAX 3u

enum trial_fault {
  FAULT_NONE,
  FAULT_DELAY,              /* messages are held back, all over */
  FAULT_SLOW_WITHIN,        /* a rank sees everything late, within the stall limit */
  FAULT_SLOW_BEYOND,        /* ... and beyond it */
  FAULT_SLOW_STAGE,         /* one call of a stage takes longer than the limit */
  FAULT_HEADER,             /* a bit of a header or shape flips */
  FAULT_PAYLOAD,            /* a bit of a payload flips; payloads are checked */
  FAULT_DEATH,              /* a rank goes silent */
  FAULT_FROZEN,             /* a rank stops and looks alive */
  FAULT_ABSENT,             /* a rank never begins */
  FAULT_STAGE_FAILS,        /* a stage's function fails */
  FAULT_STAGE_NEVER_ENDS,   /* a stage's function answers "in progress" forever */
  FAULT_MEMORY_ONCE,        /* one allocation fails; the rank broadcasts it */
  FAULT_MEMORY_SILENT,      /* ... or just ends */
  FAULT_MEMORY_GONE,        /* from one allocation on all fail */
  FAULT_CONFIGURATION,      /* a rank has another configuration */
  FAULT_PROGRAM,            /* a rank has another program */
  FAULT_INTERRUPTED,        /* a rank is asked to stop */
  FAULT_OTHER_MICROBATCHES, /* a rank's step has another number of microbatches */
  FAULT_COUNT
};

const char *trial_fault_name(enum trial_fault fault);

/* What is run. */
struct trial_setup {
  uint64_t seed;
  char name[96];
  struct weft_named_source named; /* schedule NULL: a hand-made program */
  struct weft_lower_options lower;
  struct weft_program *program;       /* what the ranks run */
  struct weft_program *other_program; /* the odd rank's */
  uint32_t rank_of[TRIAL_STAGES_MAX];
  uint32_t steps;
  bool is_eval[TRIAL_STEPS_MAX]; /* a step that is forward only */
  enum weft_send_model comm;
  uint32_t slots; /* of slots:K */
  struct weft_comm_options network;
  int64_t stall_limit;
  int64_t stage_time_max;
  bool is_quiet; /* stages do not say when they will be done */
  bool has_cost_stages;
  int64_t cost_times[WEFT_OP_COUNT];
  bool checks_payloads;
  struct linear_model model;
  float *parameters[TRIAL_STAGES_MAX];            /* in the beginning */
  struct linear_result expected[TRIAL_STEPS_MAX]; /* by step */

  enum trial_fault fault;
  uint32_t victim; /* rank */
  uint32_t victim_stage;
  uint64_t when; /* the how-manieth call, message, allocation ...; from 1 */
  int64_t amount;
  uint32_t other_microbatches;
};

/* Reproduces for a seed; `fault` FAULT_COUNT: drawn too. */
void trial_draw(struct trial_setup *setup, uint64_t seed, enum trial_fault fault);
/* A job of a named schedule with no fault, on as many ranks as fit
 * TRIAL_STAGES_MAX. False when there is no such schedule. */
bool trial_draw_schedule(struct trial_setup *setup, const struct weft_named_source *named,
                         uint32_t m, uint64_t seed);
void trial_setup_finish(struct trial_setup *setup);
/* Parameters learn from gradients, so that no step repeats another. */
void trial_learn(struct test_linear_stage *stage, const float *gradients);

/* How a rank ended. */
struct trial_rank {
  struct trial *trial;
  uint32_t rank;
  struct weft_transport *transport;
  struct weft_pipeline *pipeline;
  bool runs;
  bool is_lost; /* dead, frozen, absent, or ended without telling */
  enum weft_status status;
  struct weft_error error;
  uint32_t steps_done;
  uint64_t advances;
  uint64_t questions; /* of options.interrupted */
  uint64_t actions;   /* when last looked at */
  int64_t progress;   /* when they last became more */
};

/* What happened. */
struct trial {
  const struct trial_setup *setup;
  struct test_memory memory;
  struct weft_allocator allocator; /* of the runtime: `memory`, which may run out */
  uint64_t allocations;
  uint32_t at_work; /* the rank that is created, or begins or advances a step */
  bool was_out_of_memory;
  uint32_t starved; /* who was it, the first time */
  struct weft_named_source named;
  struct weft_fixed_source fixed, other;
  struct weft_tensor inputs, targets;
  struct weft_comm *world;
  struct fault_stage stages[TRIAL_STAGES_MAX];
  struct weft_cost_stage costs[TRIAL_STAGES_MAX];
  struct weft_stage *bases[TRIAL_STAGES_MAX];
  struct trial_rank ranks[TRIAL_RANKS_MAX];
  uint32_t rank_count;
  uint64_t turns;
  int64_t longest_wait;
  uint64_t hash; /* of who did what when */
  bool has_failure;
  struct weft_failure failure;
  char complaint[1024]; /* what can never be right; "": nothing */
};

/* `stall_limit` instead of the setup's, when not negative. */
void trial_run(struct trial *trial, const struct trial_setup *setup, int64_t stall_limit);

#endif
