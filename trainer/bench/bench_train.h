/* What `weft bench train` measures (bench_train.c, bench_train_model.c,
 * bench_train_block.c) and reports (bench_train_report.c). */
#ifndef GPT_BENCH_TRAIN_H
#define GPT_BENCH_TRAIN_H

#include "bench/bench.h"
#include "trainer/bench/flops.h"
#include "trainer/train/trainer.h"

enum {
  WEFT_BENCH_TRAIN_SCHEDULES = 5,
  WEFT_BENCH_TRAIN_RANKS = 2,
  WEFT_BENCH_TRAIN_STEPS_MAX = 8,
  WEFT_BENCH_TRAIN_MICROBATCHES = 8
};

weft_bench_measurement weft_bench_cmd_train;
weft_bench_measurement weft_bench_cmd_train_gpu; /* WEFT_CLI_UNAVAILABLE without a GPU */

/* `weft-train bench train`. */
int weft_train_cmd_bench(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);

/* ---- The fixed model, and its text ---- */

struct weft_gpt_training weft_bench_train_fixed_training(uint64_t steps);
/* On threads; all but callbacks and allocator. */
struct weft_gpt_trainer_options weft_bench_train_fixed_options(
    const struct weft_gpt_dataset *dataset, const struct weft_program *program, uint64_t steps);
/* Its bytes are to be given back with weft_gpt_free(). */
enum weft_status weft_bench_train_fixed_dataset(const struct weft_allocator *allocator,
                                                struct weft_gpt_dataset *dataset,
                                                struct weft_error *error);

/* ---- A block: a trainer made, a few steps, and what they took ---- */

struct weft_bench_train_block {
  uint64_t hash; /* of all parameters at the end */
  double first_loss, last_loss;
  uint32_t sample_count;
  uint64_t samples_ns[WEFT_BENCH_TRAIN_STEPS_MAX]; /* of all steps but the first */
  double mean_ms;                                  /* of the same */
  double simulated_ms;     /* of the program, with the costs that its stages had here */
  double busy_ms;          /* of all its computes, with the same costs */
  uint64_t trainer_bytes;  /* what the trainer says it has allocated */
  uint64_t counted_bytes;  /* the most that went through the allocator */
  uint64_t resident_bytes; /* by which the process grew; 0: unknown */
};

/* The first step is a warm-up. `options` has all but the allocator, and of callbacks `on_rank`
 * and `between_steps` alone, with their context; `program`, with the same stages, is what is
 * simulated; NULL: the trainer's own. OK, or another exit status after printing why. */
int weft_bench_train_block_run(const struct weft_cli *cli,
                               const struct weft_gpt_trainer_options *options,
                               const struct weft_program *program,
                               struct weft_bench_train_block *block);

/* All stages of a program on one rank, each stage's microbatches in the same order; to be
 * destroyed (bench_train_order.c). */
enum weft_status weft_bench_train_on_one_rank(const struct weft_allocator *allocator,
                                              const struct weft_program *program,
                                              struct weft_program **out, struct weft_error *error);

/* ---- Results ---- */

struct weft_bench_train_prediction {
  double step_ms; /* of a step on all ranks, simulated */
  double reached; /* the measured speed-up by the predicted one */
};

struct weft_bench_train_measurement {
  const char *schedule;
  uint32_t stage_count;
  double one_ms, all_ms; /* of a step: one rank in the same order, and all ranks */
  /* From the costs that stages have on one rank alone, and from those that they have
   * while all ranks work. */
  struct weft_bench_train_prediction alone, together;
};

struct weft_bench_train_results {
  struct weft_gpt_training training;
  uint64_t parameters;
  uint64_t processors;
  const char *core_wanted; /* OPENBLAS_CORETYPE that OpenBLAS needs; NULL: none */
  uint64_t steps;          /* measured, of each */
  double operations;       /* of a step's products */
  double bare_ms;          /* those products alone, one thread */
  double bare_all_ms;      /* when two threads do them at once, each all of them */
  double step_ms;          /* of a step on one rank, over all orders */
  double first_loss, last_loss;
  struct weft_bench_train_block memory; /* 1F1B on all ranks, the first thing that ran */
  struct weft_bench_train_measurement schedules[WEFT_BENCH_TRAIN_SCHEDULES];
};

void weft_bench_add_train_text(struct weft_text *text,
                               const struct weft_bench_train_results *results);
void weft_bench_add_train_json(struct weft_json *json,
                               const struct weft_bench_train_results *results);

#endif
