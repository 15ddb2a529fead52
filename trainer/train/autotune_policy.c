/* See autotune_policy.h. */
#include "trainer/train/autotune_policy.h"

#include <assert.h>
#include <math.h>

void weft_gpt_tuning_init(struct weft_gpt_tuning *tuning) {
  *tuning = (struct weft_gpt_tuning){.phase = WEFT_GPT_TUNING_WARMING,
                                     .before = NAN,
                                     .promised = NAN,
                                     .promised_gain = NAN,
                                     .after = NAN,
                                     .gain = NAN,
                                     .expected = NAN,
                                     .off_max = WEFT_GPT_TUNING_OFF};
}

/* ---- Samples ---- */

/* Kept in ascending order. */
static bool add_sample(struct weft_gpt_tuning *tuning, double value) {
  uint32_t k = tuning->sample_count++;
  for (; k > 0 && tuning->samples[k - 1] > value; k--) {
    tuning->samples[k] = tuning->samples[k - 1];
  }
  tuning->samples[k] = value;
  return tuning->sample_count == WEFT_GPT_TUNING_SAMPLES;
}

static double take_median(struct weft_gpt_tuning *tuning) {
  tuning->sample_count = 0;
  return tuning->samples[WEFT_GPT_TUNING_SAMPLES / 2];
}

/* ---- Phases ---- */

static void begin_watch(struct weft_gpt_tuning *tuning, double expected, bool was_of_use) {
  const uint32_t off_max = was_of_use ? WEFT_GPT_TUNING_OFF : 2 * tuning->off_max;
  tuning->phase = WEFT_GPT_TUNING_SETTLED;
  tuning->expected = expected;
  tuning->off = 0;
  tuning->off_max = off_max < WEFT_GPT_TUNING_OFF_LIMIT ? off_max : WEFT_GPT_TUNING_OFF_LIMIT;
}

static enum weft_gpt_tuning_move end_trial(struct weft_gpt_tuning *tuning) {
  tuning->after = take_median(tuning);
  if (!(tuning->after > tuning->before)) {
    tuning->gain = 1 - tuning->after / tuning->before;
    begin_watch(tuning, tuning->promised, true); /* what is far from it was not understood */
    return WEFT_GPT_TUNING_KEEP;
  }
  tuning->returns++;
  tuning->gain = 0;
  if (tuning->has_retried) {
    begin_watch(tuning, tuning->before, false);
  } else {
    tuning->phase = WEFT_GPT_TUNING_RETURNING;
  }
  return WEFT_GPT_TUNING_BACK;
}

static void begin_trial(struct weft_gpt_tuning *tuning, double before) {
  tuning->before = before;
  tuning->promised = before * (1 - tuning->promised_gain);
  tuning->after = tuning->gain = NAN;
  tuning->switches++;
  tuning->phase = WEFT_GPT_TUNING_REWARMING;
}

static enum weft_gpt_tuning_move end_check(struct weft_gpt_tuning *tuning) {
  const double median = take_median(tuning);
  if (median > tuning->after) {
    tuning->has_retried = true;
    begin_trial(tuning, median);
    return WEFT_GPT_TUNING_RETRY;
  }
  begin_watch(tuning, median, false);
  return WEFT_GPT_TUNING_GO_ON;
}

/* After a step that warms up. */
static enum weft_gpt_tuning_move go_to(struct weft_gpt_tuning *tuning,
                                       enum weft_gpt_tuning_phase phase) {
  tuning->phase = phase;
  return WEFT_GPT_TUNING_GO_ON;
}

static enum weft_gpt_tuning_move watch(struct weft_gpt_tuning *tuning, double step_ms) {
  const bool is_off = fabs(step_ms - tuning->expected) > WEFT_GPT_TUNING_DRIFT * tuning->expected;
  tuning->off = is_off ? tuning->off + 1 : 0;
  if (tuning->off < tuning->off_max) {
    return WEFT_GPT_TUNING_GO_ON;
  }
  tuning->phase = WEFT_GPT_TUNING_MEASURING;
  return WEFT_GPT_TUNING_FORGET;
}

enum weft_gpt_tuning_move weft_gpt_tuning_step(struct weft_gpt_tuning *tuning, double step_ms) {
  switch (tuning->phase) {
    case WEFT_GPT_TUNING_WARMING: return go_to(tuning, WEFT_GPT_TUNING_MEASURING);
    case WEFT_GPT_TUNING_REWARMING: return go_to(tuning, WEFT_GPT_TUNING_TRYING);
    case WEFT_GPT_TUNING_RETURNING: return go_to(tuning, WEFT_GPT_TUNING_CHECKING);
    case WEFT_GPT_TUNING_MEASURING:
      if (!add_sample(tuning, step_ms)) {
        return WEFT_GPT_TUNING_GO_ON;
      }
      tuning->phase = WEFT_GPT_TUNING_PLANNING;
      return WEFT_GPT_TUNING_PLAN;
    case WEFT_GPT_TUNING_TRYING:
      return add_sample(tuning, step_ms) ? end_trial(tuning) : WEFT_GPT_TUNING_GO_ON;
    case WEFT_GPT_TUNING_CHECKING:
      return add_sample(tuning, step_ms) ? end_check(tuning) : WEFT_GPT_TUNING_GO_ON;
    case WEFT_GPT_TUNING_SETTLED: return watch(tuning, step_ms);
    case WEFT_GPT_TUNING_PLANNING: break;
  }
  return WEFT_GPT_TUNING_GO_ON;
}

bool weft_gpt_tuning_planned(struct weft_gpt_tuning *tuning, double now, double planned) {
  assert(tuning->phase == WEFT_GPT_TUNING_PLANNING);
  const double median = take_median(tuning);
  tuning->plans++;
  if (!(planned < (1 - WEFT_GPT_TUNING_GAIN) * now)) { /* nor when one is not known */
    tuning->gain = 0;
    begin_watch(tuning, median, false);
    return false;
  }
  tuning->promised_gain = 1 - planned / now;
  tuning->has_retried = false;
  begin_trial(tuning, median);
  return true;
}
