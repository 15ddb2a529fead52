/* The learning rate over the steps of a run. */
#ifndef GPT_LEARNING_RATE_H
#define GPT_LEARNING_RATE_H

#include <stdint.h>

/* Of step `step` (from 0): rises linearly to `rate` over the first `warmup` steps, then
 * falls along half a cosine to `rate_min` at `total`, and stays there. */
double weft_gpt_learning_rate(uint64_t step, double rate, double rate_min, uint64_t warmup,
                              uint64_t total);

#endif
