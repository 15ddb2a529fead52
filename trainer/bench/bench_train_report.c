/* The report of `weft bench train`: tables, or JSON. */
#include "cli/cli.h"

#include <assert.h>
#include <inttypes.h>

#include "trainer/bench/bench_train.h"

#define MIB 1048576.0

static double tokens_per_s(const struct weft_bench_train_results *results, double step_ms) {
  const struct weft_gpt_training *training = &results->training;
  return (double)(training->batch * training->config.context) / step_ms * 1e3;
}

static double gflops(const struct weft_bench_train_results *results, double ms) {
  return results->operations / ms / 1e6;
}

static double speed_up(const struct weft_bench_train_measurement *at) {
  return at->one_ms / at->all_ms;
}

/* ---- Text ---- */

static void add_model(struct weft_text *text, const struct weft_bench_train_results *results) {
  const struct weft_gpt_training *training = &results->training;
  const struct weft_gpt_config *config = &training->config;
  weft_text_addf(text,
                 "weft %s, bench train: checked: %d ranks and one come to the same parameters, "
                 "bit for bit\n\n",
                 weft_version(), WEFT_BENCH_TRAIN_RANKS);
  weft_text_addf(text,
                 "model: %" PRIu32 " blocks, dim %" PRIu32 ", %" PRIu32 " heads, context %" PRIu32
                 ", %.2f M parameters\n"
                 "step:  %" PRIu64 " sequences in %" PRIu32 " microbatches, %" PRIu64
                 " tokens, AdamW; loss %.4f, then %.4f\n"
                 "on:    %" PRIu64 " processors, a thread per rank, each with one BLAS thread\n",
                 config->blocks, config->dim, config->heads, config->context,
                 (double)results->parameters / 1e6, training->batch, training->microbatches,
                 training->batch * config->context, results->first_loss, results->last_loss,
                 results->processors);
  if (results->core_wanted != NULL) {
    weft_text_addf(
        text,
        "       OpenBLAS does not know this processor: with OPENBLAS_CORETYPE=%s in the\n"
        "       environment all of this is several times as fast\n",
        results->core_wanted);
  }
  weft_text_add(text, "\n");
}

static void add_schedules(struct weft_text *text, const struct weft_bench_train_results *results) {
  weft_text_addf(text, "%-16s %6s %9s %9s %9s %9s %8s %18s\n", "", "", "one rank", "2 ranks",
                 "one rank", "2 ranks", "", "measured/predicted");
  weft_text_addf(text, "%-16s %6s %9s %9s %9s %9s %8s %9s %8s\n", "schedule", "stages", "ms", "ms",
                 "tokens/s", "tokens/s", "speed-up", "alone", "both");
  for (int k = 0; k < WEFT_BENCH_TRAIN_SCHEDULES; k++) {
    const struct weft_bench_train_measurement *at = &results->schedules[k];
    weft_text_addf(text, "%-16s %6" PRIu32 " %9.1f %9.1f %9.0f %9.0f %8.3f %9.3f %8.3f\n",
                   at->schedule, at->stage_count, at->one_ms, at->all_ms,
                   tokens_per_s(results, at->one_ms), tokens_per_s(results, at->all_ms),
                   speed_up(at), at->alone.reached, at->together.reached);
  }
  weft_text_addf(text,
                 "  Medians of %" PRIu64
                 " whole steps, measured in turns; one rank does the same "
                 "in the same order.\n"
                 "  The speed-up divided by the one simulated from measured costs: those of "
                 "one rank\n"
                 "  alone, and those that stages have while both ranks work.\n\n",
                 results->steps);
}

static void add_products(struct weft_text *text, const struct weft_bench_train_results *results) {
  weft_text_addf(text,
                 "products of a step: %.2f GFLOP; a step on one rank %.1f GFLOP/s, the same "
                 "products alone %.1f\n"
                 "  share %.1f %%; alone they are sgemm's, in a step the trainer's own if there is "
                 "AVX-512;\n"
                 "  two threads at once take %.3f times as long as one\n\n",
                 results->operations / 1e9, gflops(results, results->step_ms),
                 gflops(results, results->bare_ms), 100 * results->bare_ms / results->step_ms,
                 results->bare_all_ms / results->bare_ms);
}

static void add_memory(struct weft_text *text, const struct weft_bench_train_results *results) {
  const struct weft_bench_train_block *memory = &results->memory;
  weft_text_addf(text,
                 "memory of %s on 2 ranks: the trainer's own account %.1f MiB; all that it "
                 "allocates %.1f MiB\n",
                 results->schedules[0].schedule, (double)memory->trainer_bytes / MIB,
                 (double)memory->counted_bytes / MIB);
  if (memory->resident_bytes > 0) {
    weft_text_addf(text, "  the process grew by %.1f MiB\n", (double)memory->resident_bytes / MIB);
  }
}

void weft_bench_add_train_text(struct weft_text *text,
                               const struct weft_bench_train_results *results) {
  assert(text != NULL && results != NULL);
  add_model(text, results);
  add_schedules(text, results);
  add_products(text, results);
  add_memory(text, results);
}

/* ---- JSON ---- */

static void add_model_object(struct weft_json *json,
                             const struct weft_bench_train_results *results) {
  const struct weft_gpt_training *training = &results->training;
  weft_json_open(json, "model", '{');
  weft_json_number(json, "layers", training->config.blocks);
  weft_json_number(json, "dim", training->config.dim);
  weft_json_number(json, "heads", training->config.heads);
  weft_json_number(json, "context", training->config.context);
  weft_json_number(json, "vocabulary", training->config.vocabulary);
  weft_json_number(json, "parameters", results->parameters);
  weft_json_close(json, '}');
  weft_json_number(json, "batch", training->batch);
  weft_json_number(json, "microbatches", training->microbatches);
  weft_json_number(json, "tokens_per_step", training->batch * training->config.context);
  weft_json_number(json, "ranks", WEFT_BENCH_TRAIN_RANKS);
  weft_json_number(json, "blas_threads_per_rank", 1);
  weft_json_number(json, "processors", results->processors);
  weft_json_string(json, "openblas_core_wanted", results->core_wanted);
  weft_json_number(json, "steps_measured", results->steps);
  weft_json_boolean(json, "checked", true);
  weft_json_exact(json, "first_loss", results->first_loss);
  weft_json_exact(json, "last_loss", results->last_loss);
}

static void add_schedule_object(struct weft_json *json,
                                const struct weft_bench_train_results *results,
                                const struct weft_bench_train_measurement *at) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schedule", at->schedule);
  weft_json_number(json, "stages", at->stage_count);
  weft_json_exact(json, "one_rank_step_ms", at->one_ms);
  weft_json_exact(json, "two_rank_step_ms", at->all_ms);
  weft_json_exact(json, "one_rank_tokens_per_s", tokens_per_s(results, at->one_ms));
  weft_json_exact(json, "two_rank_tokens_per_s", tokens_per_s(results, at->all_ms));
  weft_json_exact(json, "speed_up", speed_up(at));
  weft_json_exact(json, "predicted_step_ms_from_costs_alone", at->alone.step_ms);
  weft_json_exact(json, "predicted_step_ms_from_costs_together", at->together.step_ms);
  weft_json_exact(json, "speed_up_of_predicted_alone", at->alone.reached);
  weft_json_exact(json, "speed_up_of_predicted_together", at->together.reached);
  weft_json_close(json, '}');
}

static void add_memory_object(struct weft_json *json, const struct weft_bench_train_block *memory) {
  weft_json_open(json, "memory", '{');
  weft_json_number(json, "trainer_bytes", memory->trainer_bytes);
  weft_json_number(json, "allocated_peak_bytes", memory->counted_bytes);
  weft_json_optional(json, "resident_growth_bytes", memory->resident_bytes > 0,
                     memory->resident_bytes);
  weft_json_close(json, '}');
}

void weft_bench_add_train_json(struct weft_json *json,
                               const struct weft_bench_train_results *results) {
  assert(results != NULL);
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-train/1");
  weft_json_string(json, "version", weft_version());
  add_model_object(json, results);
  weft_json_open(json, "schedules", '[');
  for (int k = 0; k < WEFT_BENCH_TRAIN_SCHEDULES; k++) {
    add_schedule_object(json, results, &results->schedules[k]);
  }
  weft_json_close(json, ']');
  weft_json_open(json, "products", '{');
  weft_json_exact(json, "flop_per_step", results->operations);
  weft_json_exact(json, "step_flop_per_s", gflops(results, results->step_ms) * 1e9);
  weft_json_exact(json, "bare_flop_per_s", gflops(results, results->bare_ms) * 1e9);
  weft_json_exact(json, "share_of_bare", results->bare_ms / results->step_ms);
  weft_json_exact(json, "two_threads_by_one", results->bare_all_ms / results->bare_ms);
  weft_json_close(json, '}');
  add_memory_object(json, &results->memory);
  weft_json_close(json, '}');
}
