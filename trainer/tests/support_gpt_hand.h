/* Training by hand: the model's layers called one after the other, without stage, pipeline
 * or rank, and replicas one after the other. What trainers are compared with. */
#ifndef SUPPORT_GPT_HAND_H
#define SUPPORT_GPT_HAND_H

#include "trainer/train/trainer.h"

/* A small model and some text, with one rank, and a batch that can be divided among two and
 * three replicas. */
enum { HAND_STEPS = 4, HAND_MICROBATCHES = 4 };
struct weft_gpt_dataset hand_corpus(void);
struct weft_gpt_trainer_options hand_options(const struct weft_gpt_dataset *dataset);

struct hand_layer {
  float *saved, *scratch;
  float *x, *dx;  /* what the layer reads, and its gradient */
  float *y, *dy;  /* what it makes */
  float *partial; /* gradients of one replica */
};

struct hand {
  struct weft_gpt_training training;
  const struct weft_gpt_dataset *dataset;
  uint32_t layer_count;
  struct weft_gpt_layer_state *layers; /* [layer_count] */
  struct hand_layer *work;
  uint8_t *inputs, *targets[WEFT_GPT_HEADS_MAX];
  double second_loss; /* of the last step */
};

/* Room for microbatches of a whole batch; progress->microbatches may be changed later. */
void hand_init(struct hand *hand, const struct weft_gpt_training *training,
               const struct weft_gpt_dataset *dataset);
void hand_finish(struct hand *hand);

/* One step with the batch divided among `replicas`; returns its loss, of the first head. Gradients are sums
 * over replicas, in order, of the sums over each one's microbatches, in order. */
double hand_step(struct hand *hand, uint64_t step, uint32_t replicas);
/* As weft_gpt_trainer_hash(); and likewise of gradients and both moments. */
uint64_t hand_hash(const struct hand *hand);
uint64_t hand_hash_state(const struct hand *hand);
/* The latter of a trainer, all of whose ranks are in this process. */
uint64_t hand_hash_state_of(const struct weft_gpt_trainer *trainer,
                            const struct weft_gpt_config *config);

#endif
