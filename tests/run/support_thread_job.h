/* A trial's job (support_trial.h) on the threads transport, in real time. */
#ifndef TESTS_SUPPORT_THREAD_JOB_H
#define TESTS_SUPPORT_THREAD_JOB_H

#include "support_trial.h"

#define THREAD_JOB_RANKS_MAX 8u

struct thread_job;

struct thread_job_rank {
  enum weft_status status;
  struct weft_error error;
  uint32_t steps_done;
  const char *complaint; /* wrong results; NULL: none */
};

struct thread_job {
  /* in */
  const struct trial_setup *setup;
  int64_t stall_limit;      /* ns */
  int64_t stage_time_max;   /* ns */
  int64_t delay_max;        /* ns, of messages; 0: no fault injection */
  uint32_t steps;           /* 0: the setup's; more: they are not compared */
  uint32_t leaving_rank;    /* UINT32_MAX: none */
  enum weft_status leaving; /* what it returns instead of its step; WEFT_OK: silently */
  bool (*interrupted)(void *context);
  void *interrupted_context;
  /* Before the ranks begin and after they have ended, or NULL. */
  void (*on_start)(void *context, struct weft_comm *world);
  void (*on_end)(void *context);
  void *on_context;

  /* out */
  struct thread_job_rank ranks[THREAD_JOB_RANKS_MAX];

  struct fault_stage stages[TRIAL_STAGES_MAX]; /* may be set to fail, after init */
  struct weft_stage *bases[TRIAL_STAGES_MAX];
  struct weft_named_source named;
  struct weft_fixed_source fixed;
  struct weft_tensor inputs, targets;
};

void thread_job_init(struct thread_job *job, const struct trial_setup *setup);
/* Runs it to its end: the agreed error, or WEFT_OK. */
enum weft_status thread_job_run(struct thread_job *job, struct weft_error *error);
/* What is wrong with how it ended, given the agreed status and error; NULL:
 * nothing. */
const char *thread_job_judge(const struct thread_job *job, enum weft_status status,
                             const struct weft_error *error);

#endif
