/* Decides when `--schedule auto` changes the schedule: a state machine whose input is the time of
 * each step. The times are the same on all ranks, so all ranks decide the same.
 *
 *   warm up    a step that is not measured
 *   measure    some steps: the time of a step and of its actions
 *   plan       the caller plans; the new schedule is tried if it is predicted to be faster
 *   warm up    again, because the new schedule uses other memory
 *   try        as many steps: a faster schedule stays, else the previous one comes back
 *   check      the previous schedule warms up and is measured again: if it is slower now than the
 *              new one was, the machine has become slower, and the new one is tried once more
 *   settled    until some steps in a row differ from the expected time: then the measurements are
 *              dropped, and it continues with `measure` */
#ifndef GPT_AUTOTUNE_POLICY_H
#define GPT_AUTOTUNE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum {
  WEFT_GPT_TUNING_SAMPLES = 3,     /* measured steps, of which the median counts */
  WEFT_GPT_TUNING_OFF = 5,         /* steps in a row that may drift before a new plan ... */
  WEFT_GPT_TUNING_OFF_LIMIT = 1000 /* ... doubled after a plan without a gain, up to this */
};
#define WEFT_GPT_TUNING_DRIFT 0.15 /* difference from the expected time, as a share of it */
#define WEFT_GPT_TUNING_GAIN 0.01  /* least predicted gain; less is noise */

/* What the caller does before the next step. */
enum weft_gpt_tuning_move {
  WEFT_GPT_TUNING_GO_ON,
  WEFT_GPT_TUNING_PLAN,  /* then weft_gpt_tuning_planned() */
  WEFT_GPT_TUNING_KEEP,  /* nothing: the trial is over and the new schedule stays */
  WEFT_GPT_TUNING_BACK,  /* the schedule before the trial comes back */
  WEFT_GPT_TUNING_RETRY, /* the one that was tried is tried again */
  WEFT_GPT_TUNING_FORGET /* drop the measured times of actions: they have changed */
};

enum weft_gpt_tuning_phase {
  WEFT_GPT_TUNING_WARMING,
  WEFT_GPT_TUNING_MEASURING,
  WEFT_GPT_TUNING_PLANNING, /* until weft_gpt_tuning_planned() */
  WEFT_GPT_TUNING_REWARMING,
  WEFT_GPT_TUNING_TRYING,
  WEFT_GPT_TUNING_RETURNING, /* warms up */
  WEFT_GPT_TUNING_CHECKING,
  WEFT_GPT_TUNING_SETTLED
};

/* Times of a step in ms; NAN: not measured, as in virtual time, where a plan is accepted on its
 * prediction and nothing drifts. */
struct weft_gpt_tuning {
  enum weft_gpt_tuning_phase phase;
  double samples[WEFT_GPT_TUNING_SAMPLES];
  uint32_t sample_count;
  double before;        /* median before the last plan */
  double promised;      /* `before` x predicted time of the plan / predicted time before it */
  double promised_gain; /* 1 - promised / before */
  double after;         /* median of the trial; NAN: not over, or none */
  double gain;          /* share of a step's time that the last plan saves; 0: it is not faster;
                           NAN: not known yet */
  double expected;      /* when settled */
  uint32_t off;         /* steps in a row that differ from it */
  uint32_t off_max;     /* how many may */
  bool has_retried;     /* the last plan */
  uint32_t plans, switches, returns;
};

void weft_gpt_tuning_init(struct weft_gpt_tuning *tuning);

/* After each step, with its time. */
enum weft_gpt_tuning_move weft_gpt_tuning_step(struct weft_gpt_tuning *tuning, double step_ms);

/* After WEFT_GPT_TUNING_PLAN: the simulator's times of the current and the planned schedule, from
 * the same measured costs; NAN: none was found. True: the new schedule runs from the next step
 * on. */
bool weft_gpt_tuning_planned(struct weft_gpt_tuning *tuning, double now, double planned);

#endif
