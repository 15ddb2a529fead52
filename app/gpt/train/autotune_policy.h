/* When a training changes its schedule: `--schedule auto` as a machine of its own, fed
 * with times of steps, the same on all ranks, so that all ranks decide the same.
 *
 *   warm up    a step that is not counted
 *   measure    some steps: what a step takes now, and what its actions take
 *   plan       somebody plans; the new schedule is tried if it promises to be faster
 *   warm up    again: other memory is touched
 *   try        as many steps: the new schedule stays if it is faster, else the one before
 *              comes back
 *   check      warms up and is measured again: if it takes longer now than the new one did,
 *              the machine has become slower in between, and the new one is tried once more
 *   settled    until steps take longer or less long than expected for a while: then what
 *              was measured is forgotten, and it begins again with `measure` */
#ifndef GPT_AUTOTUNE_POLICY_H
#define GPT_AUTOTUNE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum {
  WEFT_GPT_TUNING_SAMPLES = 3,        /* steps that are measured; their median counts */
  WEFT_GPT_TUNING_PATIENCE = 5,       /* steps in a row that are off before a new plan ... */
  WEFT_GPT_TUNING_PATIENCE_MAX = 1000 /* ... twice as many after one that brought nothing */
};
#define WEFT_GPT_TUNING_DRIFT 0.15 /* share of the expected time that a step is off by */
#define WEFT_GPT_TUNING_GAIN 0.01  /* share that must be promised: less is noise */

/* What is to be done between this step and the next. */
enum weft_gpt_tuning_move {
  WEFT_GPT_TUNING_GO_ON,
  WEFT_GPT_TUNING_PLAN,  /* then weft_gpt_tuning_planned() */
  WEFT_GPT_TUNING_KEEP,  /* nothing: the trial is over, and the new schedule stays */
  WEFT_GPT_TUNING_BACK,  /* the schedule before the trial comes back */
  WEFT_GPT_TUNING_RETRY, /* the one that was tried is tried again */
  WEFT_GPT_TUNING_FORGET /* what was measured of actions: their times have changed */
};

enum weft_gpt_tuning_phase {
  WEFT_GPT_TUNING_WARMING,
  WEFT_GPT_TUNING_MEASURING,
  WEFT_GPT_TUNING_PLANNING, /* planned() is awaited */
  WEFT_GPT_TUNING_REWARMING,
  WEFT_GPT_TUNING_TRYING,
  WEFT_GPT_TUNING_RETURNING, /* as rewarming */
  WEFT_GPT_TUNING_CHECKING,
  WEFT_GPT_TUNING_SETTLED
};

/* Times of a step in ms; NAN: not measured, as on a transport with virtual time, where a
 * plan is judged by its promise alone and nothing drifts. */
struct weft_gpt_tuning {
  enum weft_gpt_tuning_phase phase;
  double samples[WEFT_GPT_TUNING_SAMPLES];
  uint32_t sample_count;
  double before;        /* median that the last plan was measured against */
  double promised;      /* of the last plan: `before` times what the simulator thinks of the new
                        schedule over what it thinks of the one that was measured */
  double promised_gain; /* the same as a share that is saved */
  double after;         /* median of its trial; NAN: not over, or none */
  double gain;          /* share of a step's time that the last plan has saved: 0 when it was not
                        faster; NAN: not known yet */
  double expected;      /* of a step, when settled */
  uint32_t off;         /* steps in a row that were not as expected */
  uint32_t patience;    /* how many may be */
  bool has_retried;     /* the last plan */
  uint32_t plans, switches, returns;
};

void weft_gpt_tuning_init(struct weft_gpt_tuning *tuning);

/* After a step that took so long. */
enum weft_gpt_tuning_move weft_gpt_tuning_step(struct weft_gpt_tuning *tuning, double step_ms);

/* After WEFT_GPT_TUNING_PLAN: the simulator's times of the schedule that runs and of the
 * one that was planned, both from the costs that were measured; NAN: none was found. True:
 * the new one is to run from the next step on. */
bool weft_gpt_tuning_planned(struct weft_gpt_tuning *tuning, double now, double planned);

#endif
