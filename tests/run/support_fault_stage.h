/* A stage around another one that takes time, fails or never ends, on request. */
#ifndef TESTS_SUPPORT_FAULT_STAGE_H
#define TESTS_SUPPORT_FAULT_STAGE_H

#include <weft/run.h>

#include <weft/support.h>

/* Something under way on the stage: a computation, or a collective beside it. */
struct fault_stage_work {
  bool begun; /* its time runs */
  bool inner; /* the stage inside has answered WEFT_IN_PROGRESS */
  int64_t until;
};

struct fault_stage {
  struct weft_stage stage;   /* put first */
  struct weft_stage *inside; /* NULL: nothing is computed */
  struct weft_random random;
  int64_t time_max;  /* every call takes 0 ... time_max of call->now's time */
  bool is_quiet;     /* does not say when it will be done: the executor has to ask */
  uint64_t fail_at;  /* the n-th call (from 1) fails; 0: none */
  uint64_t never_at; /* the n-th call never ends; 0: none */
  uint64_t long_at;  /* the n-th call takes long_time; 0: none */
  int64_t long_time;
  uint64_t calls;     /* so far, polls not counted */
  const char *misuse; /* what is wrong with how it was called; NULL: nothing */
  bool is_whole;      /* unsharded */
  bool knows_shards;  /* has been unsharded before, so that compute needs it whole */
  struct fault_stage_work compute, collective;
};

void fault_stage_init(struct fault_stage *stage, struct weft_stage *inside, uint64_t seed);

#endif
