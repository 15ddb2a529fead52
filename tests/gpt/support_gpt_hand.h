/* Training by hand: the model's parts called one after the other, without stage, pipeline
 * or rank, and replicas one after the other. What trainers are compared with. */
#ifndef SUPPORT_GPT_HAND_H
#define SUPPORT_GPT_HAND_H

#include "gpt/train/trainer.h"

/* A small model and some text, with one rank, and a batch that can be divided among two and
 * three replicas. */
enum { HAND_STEPS = 4, HAND_MICROBATCHES = 4 };
struct weft_gpt_corpus hand_corpus(void);
struct weft_gpt_trainer_options hand_options(const struct weft_gpt_corpus *corpus);

struct hand_part {
  float *kept, *scratch;
  float *x, *dx;  /* what the part reads, and its gradient */
  float *partial; /* gradients of one replica */
};

struct hand {
  struct weft_gpt_progress progress;
  const struct weft_gpt_corpus *corpus;
  uint32_t part_count;
  struct weft_gpt_part_state *parts; /* [part_count] */
  struct hand_part *work;
  uint8_t *inputs, *targets;
};

/* Room for microbatches of a whole batch; progress->microbatches may be changed later. */
void hand_init(struct hand *hand, const struct weft_gpt_progress *progress,
               const struct weft_gpt_corpus *corpus);
void hand_finish(struct hand *hand);

/* One step with the batch divided among `replicas`; returns its loss. Gradients are sums
 * over replicas, in order, of the sums over each one's microbatches, in order. */
double hand_step(struct hand *hand, uint64_t step, uint32_t replicas);
/* As weft_gpt_trainer_hash(); and likewise of gradients and both moments. */
uint64_t hand_hash(const struct hand *hand);
uint64_t hand_hash_state(const struct hand *hand);
/* The latter of a trainer, all of whose ranks are in this process. */
uint64_t hand_hash_state_of(const struct weft_gpt_trainer *trainer,
                            const struct weft_gpt_config *config);

#endif
