/* A block of steps: creates a trainer, runs it and measures it. */
#include "bench/bench_clock.h"
#include "cli/io/error_message.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <weft/weft.h>

#include "trainer/bench/bench_train.h"

/* ---- Memory ---- */

/* Counts bytes for several threads. */
struct byte_counter {
  struct weft_allocator allocator;
  const struct weft_allocator *inner;
  uint64_t now, peak;
};

static void *count(void *context, void *pointer, size_t old_size, size_t new_size) {
  struct byte_counter *counter = context;
  void *result = counter->inner->reallocate(counter->inner->context, pointer, old_size, new_size);
  if (result == NULL && new_size > 0) {
    return NULL;
  }
  const uint64_t more = (uint64_t)new_size - (pointer != NULL ? old_size : 0);
  const uint64_t now = __atomic_add_fetch(&counter->now, more, __ATOMIC_RELAXED);
  uint64_t peak = __atomic_load_n(&counter->peak, __ATOMIC_RELAXED);
  while (now > peak && !__atomic_compare_exchange_n(&counter->peak, &peak, now, true,
                                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return result;
}

/* Of this process, in memory; 0 where the system has no such file. */
static uint64_t resident_bytes(void) {
  char text[128];
  const int file = open("/proc/self/statm", O_RDONLY);
  const ssize_t size = file >= 0 ? read(file, text, sizeof text - 1) : -1;
  if (file >= 0) {
    (void)close(file);
  }
  if (size <= 0) {
    return 0;
  }
  text[size] = '\0';
  char *rest;
  (void)strtoull(text, &rest, 10);
  const long page = sysconf(_SC_PAGESIZE);
  return strtoull(rest, NULL, 10) * (uint64_t)(page > 0 ? page : 0);
}

/* ---- Steps ---- */

struct watch {
  struct weft_bench_train_block *block;
  const struct weft_gpt_trainer_options *options; /* as given */
  uint64_t last_ns, resident;
};

static void on_rank(void *context, uint32_t rank) {
  const struct watch *watch = context;
  if (watch->options->on_rank != NULL) {
    watch->options->on_rank(watch->options->context, rank);
  }
}

static void between_steps(void *context, uint32_t rank, uint64_t step) {
  const struct watch *watch = context;
  if (watch->options->between_steps != NULL) {
    watch->options->between_steps(watch->options->context, rank, step);
  }
}

static void on_step(void *context, const struct weft_gpt_step_report *report) {
  struct watch *watch = context;
  struct weft_bench_train_block *block = watch->block;
  const uint64_t now = weft_bench_now_ns();
  if (watch->last_ns == 0) {
    block->first_loss = report->loss;
  } else if (block->sample_count < WEFT_BENCH_TRAIN_STEPS_MAX) {
    block->samples_ns[block->sample_count++] = now - watch->last_ns;
  }
  block->last_loss = report->loss;
  watch->resident = report->step == report->steps ? resident_bytes() : 0;
  watch->last_ns = weft_bench_now_ns();
}

static double mean_ms(const struct weft_bench_train_block *block) {
  double sum = 0;
  for (uint32_t k = 0; k < block->sample_count; k++) {
    sum += (double)block->samples_ns[k] / 1e6;
  }
  return block->sample_count > 0 ? sum / block->sample_count : 0;
}

static enum weft_status predict(const struct weft_gpt_trainer *trainer,
                                const struct weft_program *program,
                                struct weft_bench_train_block *block, struct weft_error *error) {
  struct weft_costs *costs;
  struct weft_simulation *simulation;
  enum weft_status status = weft_gpt_trainer_costs(trainer, &costs, error);
  if (status < 0) {
    return status;
  }
  program = program != NULL ? program : weft_gpt_trainer_program(trainer);
  status = weft_simulate(NULL, program, costs, NULL, &simulation, error);
  if (status == WEFT_OK) {
    block->simulated_ms = simulation->makespan;
    block->busy_ms =
        (1 - simulation->bubble_ratio) * simulation->makespan * (double)program->rank_count;
    weft_simulation_destroy(simulation);
  }
  weft_costs_destroy(costs);
  return status;
}

static enum weft_status train(struct weft_gpt_trainer *trainer, const struct weft_program *program,
                              struct weft_bench_train_block *block, struct weft_error *error) {
  enum weft_status status = weft_gpt_trainer_run(trainer, error);
  if (status == WEFT_OK) {
    status = predict(trainer, program, block, error);
  }
  block->hash = weft_gpt_trainer_hash(trainer);
  block->trainer_bytes = weft_gpt_trainer_bytes(trainer);
  block->mean_ms = mean_ms(block);
  return status;
}

int weft_bench_train_block_run(const struct weft_cli *cli,
                               const struct weft_gpt_trainer_options *options,
                               const struct weft_program *program,
                               struct weft_bench_train_block *block) {
  assert(cli != NULL && options != NULL);
  struct byte_counter counter = {.allocator = {.reallocate = count, .context = &counter},
                                 .inner = cli->allocator};
  struct watch watch = {.block = block, .options = options};
  struct weft_gpt_trainer_options own = *options;
  struct weft_gpt_trainer *trainer;
  struct weft_error error;
  own.allocator = &counter.allocator;
  own.on_step = on_step;
  own.on_rank = on_rank;
  own.between_steps = between_steps;
  own.context = &watch;
  *block = (struct weft_bench_train_block){.sample_count = 0};
  const uint64_t before = resident_bytes();
  enum weft_status status = weft_gpt_trainer_create(&own, &trainer, &error);
  if (status == WEFT_OK) {
    status = train(trainer, program, block, &error);
    weft_gpt_trainer_destroy(trainer);
  }
  block->counted_bytes = counter.peak;
  block->resident_bytes = watch.resident > before ? watch.resident - before : 0;
  return status < 0 ? weft_cli_fail(cli, NULL, &error) : WEFT_CLI_OK;
}
