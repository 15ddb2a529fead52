/* The fixed model and text of the training benchmarks. */
#include <assert.h>

#include "bench/bench.h"

#include <weft/support.h>

#include "trainer/bench/bench_train.h"
#include "trainer/model/aligned_memory.h"

enum { LAYERS = 8, DIM = 256, HEADS = 8, CONTEXT = 128, BATCH = 16, TEXT_BYTES = 65536 };

/* Letters with different frequencies, so that there is something to learn. */
static void write_text(uint8_t *bytes) {
  uint32_t state = 1;
  for (uint32_t k = 0; k < TEXT_BYTES; k++) {
    state = state * UINT32_C(1664525) + UINT32_C(1013904223);
    const uint32_t a = (state >> 24) % 26, b = (state >> 16) % 26;
    bytes[k] = (uint8_t)('a' + (a < b ? a : b));
  }
}

enum weft_status weft_bench_train_fixed_dataset(const struct weft_allocator *allocator,
                                                struct weft_gpt_dataset *dataset,
                                                struct weft_error *error) {
  uint8_t *bytes = weft_gpt_allocate(allocator, TEXT_BYTES, 1);
  if (bytes == NULL) {
    return weft_fail_memory(error, TEXT_BYTES);
  }
  write_text(bytes);
  *dataset = (struct weft_gpt_dataset){
      .bytes = bytes, .size = TEXT_BYTES, .train_size = TEXT_BYTES / 10 * 9, .hash = 1};
  return WEFT_OK;
}

struct weft_gpt_training weft_bench_train_fixed_training(uint64_t steps) {
  return (struct weft_gpt_training){.config = {.blocks = LAYERS,
                                               .dim = DIM,
                                               .heads = HEADS,
                                               .context = CONTEXT,
                                               .vocabulary = WEFT_GPT_VOCABULARY,
                                               .seed = 1},
                                    .data_hash = 1,
                                    .data_seed = 1,
                                    .batch = BATCH,
                                    .microbatches = WEFT_BENCH_TRAIN_MICROBATCHES,
                                    .rate = 1e-3,
                                    .rate_min = 1e-4,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .epsilon = 1e-8,
                                    .decay = 0.1,
                                    .clip = 1,
                                    .total_steps = steps};
}

struct weft_gpt_trainer_options weft_bench_train_fixed_options(
    const struct weft_gpt_dataset *dataset, const struct weft_program *program, uint64_t steps) {
  assert(program != NULL);
  return (struct weft_gpt_trainer_options){.training = weft_bench_train_fixed_training(steps),
                                           .dataset = dataset,
                                           .program = program,
                                           .transport = "threads",
                                           .stall_limit = INT64_C(60000000000)};
}
