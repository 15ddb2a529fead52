/* The report of `weft bench mpi`: tables, or JSON. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_clock.h"
#include "bench/bench_mpi.h"

static const char *progress_name(enum weft_comm_progress progress) {
  return progress == WEFT_COMM_PROGRESS_THREAD ? "thread" : "calls";
}

static double quotient(uint64_t a, uint64_t b) { return b > 0 ? (double)a / (double)b : 0; }

/* ---- Steps, summed up ---- */

struct sums {
  double threads_ms, processes_ms;
  double ratio, low_ratio, high_ratio;
  double fastest_ratio;
  double threads_over, processes_over;
};

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Of an even number, the mean of the middle two. */
static double median_real(const double *from, size_t count) {
  double values[WEFT_CLI_MPI_PAIRS_MAX];
  if (count == 0) {
    return 0;
  }
  memcpy(values, from, count * sizeof values[0]);
  qsort(values, count, sizeof values[0], compare);
  return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* Each pair has a ratio, of two that were measured one right after the other: whatever makes
 * the machine slower for a while slows both. */
static void sum_up_pairs(const struct weft_cli_mpi_steps *steps, struct sums *sums) {
  double ratios[WEFT_CLI_MPI_PAIRS_MAX];
  const size_t count = steps->pair_count;
  for (size_t k = 0; k < count; k++) {
    ratios[k] = quotient(steps->pairs[k].processes_ns, steps->pairs[k].threads_ns);
  }
  if (count > 0) {
    qsort(ratios, count, sizeof ratios[0], compare);
    sums->ratio = median_real(ratios, count);
    sums->low_ratio = ratios[count / 4];
    sums->high_ratio = ratios[count - 1 - count / 4];
  }
}

static struct sums sum_up(const struct weft_cli_mpi_steps *steps) {
  struct weft_cli_mpi_samples threads = steps->threads, processes = steps->processes;
  struct sums sums = {.threads_ms = (double)weft_cli_median(threads.ns, threads.count) / 1e6,
                      .processes_ms = (double)weft_cli_median(processes.ns, processes.count) / 1e6};
  if (threads.count > 0 && processes.count > 0) { /* they are sorted now */
    sums.fastest_ratio = quotient(processes.ns[0], threads.ns[0]);
  }
  sum_up_pairs(steps, &sums);
  sums.threads_over = median_real(steps->threads_over, steps->round_count);
  sums.processes_over = median_real(steps->processes_over, steps->round_count);
  return sums;
}

/* ---- Text ---- */

static void add_size(struct weft_text *text, const struct weft_cli_mpi_way *way,
                     const struct weft_cli_mpi_size *size) {
  weft_text_addf(text, "%-8s %-7s %-8s %9" PRIu64 " %10.3f %10.3f %10.3f %9.1f %7.1f %% %8.1f %%\n",
                 way->mpi, way->over, progress_name(way->progress), size->bytes,
                 (double)size->bare_ns / 1e3, (double)size->start_ns / 1e3,
                 (double)size->weft_ns / 1e3, 1e3 * quotient(size->bytes, size->weft_ns),
                 100 * quotient(size->bare_ns, size->weft_ns),
                 100 * quotient(size->start_ns, size->weft_ns));
}

static void add_sizes(struct weft_text *text, const struct weft_cli_mpi_results *results) {
  weft_text_addf(text, "%-8s %-7s %-8s %9s %10s %10s %10s %9s %9s %10s\n", "messages", "over",
                 "progress", "bytes", "bare us", "started us", "weft us", "weft MB/s", "of bare",
                 "of started");
  for (size_t k = 0; k < results->way_count; k++) {
    for (int i = 0; i < WEFT_CLI_MPI_SIZES; i++) {
      add_size(text, &results->ways[k], &results->ways[k].sizes[i]);
    }
  }
  weft_text_add(text,
                "  Half of a round trip: MPI_Send and MPI_Recv alone; MPI_Isend, MPI_Irecv and "
                "MPI_Test\n  with 16 bytes of header; and the transport, in turns; the median of "
                "the calmest block\n  of each.\n\n");
}

static void add_overlap(struct weft_text *text, const struct weft_cli_mpi_way *way) {
  const struct weft_cli_mpi_overlap *overlap = &way->overlap;
  weft_text_addf(
      text, "%-8s %-7s %-9s %9.2f %8.0f %% %8.0f %% %8.0f %% %8.0f %% %10" PRIu64 "\n", way->mpi,
      way->over, progress_name(way->progress), (double)overlap->receiver[0].transfer_ns / 1e6,
      100 * weft_cli_mpi_cost(overlap, &overlap->receiver[WEFT_CLI_MPI_BOTH]),
      100 * weft_cli_mpi_cost(overlap, &overlap->sender[WEFT_CLI_MPI_BOTH]),
      100 * weft_cli_mpi_cost(overlap, &overlap->receiver[WEFT_CLI_MPI_RECEIVER]),
      100 * weft_cli_mpi_cost(overlap, &overlap->sender[WEFT_CLI_MPI_SENDER]), way->stolen_ms);
}

static void add_overlaps(struct weft_text *text, const struct weft_cli_mpi_results *results) {
  weft_text_addf(text, "%-8s %-7s %-9s %9s %21s %21s\n", "", "", "", "", "both compute",
                 "one computes");
  weft_text_addf(text, "%-8s %-7s %-9s %9s %10s %10s %10s %10s %10s\n", "overlap", "over",
                 "progress", "alone ms", "receiver", "sender", "receiver", "sender", "stolen ms");
  for (size_t k = 0; k < results->way_count; k++) {
    add_overlap(text, &results->ways[k]);
  }
  weft_text_addf(text,
                 "  %" PRIu64
                 " KiB beside a compute that takes as long: by what part of the transfer's own\n"
                 "  time a rank is longer busy than with the compute alone. Medians.\n",
                 results->ways[0].overlap.bytes >> 10);
}

static void add_steps_note(struct weft_text *text, const struct weft_cli_mpi_results *results) {
  char cores[WEFT_CLI_CORES_TEXT];
  weft_cli_cores_write(&results->cores, cores);
  weft_text_addf(
      text,
      "  Two ranks, eight microbatches, %" PRIu64
      " rounds; the median step of each. Threads and processes\n  take turns, step by "
      "step with the GPT, else every 12: the ratio is the median of the\n  ratios of such "
      "pairs, with their middle half. Over simulated: a step by the simulation\n  from "
      "its own computes, however long those took. The GPT is that of 'weft bench train',"
      "\n  and its parameters are the same bit for bit. ",
      results->rounds);
  if (results->cores.count > 0) {
    weft_text_addf(text, "Ranks are bound to processors %s of %" PRIu64 ".\n", cores,
                   results->processors);
  } else {
    weft_text_addf(text, "Not all ranks were bound to a core; %" PRIu64 " processors.\n",
                   results->processors);
  }
}

static void add_steps(struct weft_text *text, const struct weft_cli_mpi_results *results) {
  if (results->step_count == 0) {
    return;
  }
  weft_text_addf(text, "\n%97s\n", "over simulated");
  weft_text_addf(text, "%-8s %-8s %-6s %-13s %10s %8s %7s %13s %8s %7s %10s\n", "steps", "progress",
                 "stages", "schedule", "threads ms", "mpi ms", "ratio", "middle half", "threads",
                 "mpi", "stolen ms");
  for (size_t k = 0; k < results->step_count; k++) {
    const struct weft_cli_mpi_steps *at = &results->steps[k];
    const struct sums sums = sum_up(at);
    weft_text_addf(
        text, "%-8s %-8s %-6s %-13s %10.3f %8.3f %7.4f %6.3f-%6.3f %8.4f %7.4f %10" PRIu64 "\n",
        at->mpi, progress_name(at->progress), at->kind == WEFT_CLI_MPI_GPT ? "gpt" : "spin",
        at->schedule, sums.threads_ms, sums.processes_ms, sums.ratio, sums.low_ratio,
        sums.high_ratio, sums.threads_over, sums.processes_over, at->stolen_ms);
  }
  add_steps_note(text, results);
}

void weft_cli_bench_add_mpi_text(struct weft_text *text,
                                 const struct weft_cli_mpi_results *results) {
  weft_text_addf(text, "weft %s, bench mpi: checked: every message arrives as it was sent\n\n",
                 weft_version());
  add_sizes(text, results);
  add_overlaps(text, results);
  add_steps(text, results);
}

/* ---- JSON ---- */

static void add_times(struct weft_json *json, const char *key,
                      const struct weft_cli_mpi_overlap *overlap,
                      const struct weft_cli_mpi_times *times) {
  weft_json_open(json, key, '{');
  weft_json_number(json, "transfer_ns", times->transfer_ns);
  weft_json_number(json, "compute_ns", times->compute_ns);
  weft_json_number(json, "both_ns", times->both_ns);
  weft_json_real(json, "cost", weft_cli_mpi_cost(overlap, times));
  weft_json_close(json, '}');
}

static void add_cases(struct weft_json *json, const struct weft_cli_mpi_overlap *overlap) {
  static const char *const computes[WEFT_CLI_MPI_CASES] = {"both", "receiver", "sender"};
  weft_json_number(json, "overlap_bytes", overlap->bytes);
  weft_json_open(json, "overlap", '[');
  for (int k = 0; k < WEFT_CLI_MPI_CASES; k++) {
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "computes", computes[k]);
    add_times(json, "receiver", overlap, &overlap->receiver[k]);
    add_times(json, "sender", overlap, &overlap->sender[k]);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

static void add_way(struct weft_json *json, const struct weft_cli_mpi_way *way) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "mpi", way->mpi);
  weft_json_string(json, "over", way->over);
  weft_json_string(json, "progress", progress_name(way->progress));
  weft_json_number(json, "stolen_ms", way->stolen_ms);
  weft_json_open(json, "messages", '[');
  for (int k = 0; k < WEFT_CLI_MPI_SIZES; k++) {
    weft_json_open(json, NULL, '{');
    weft_json_number(json, "bytes", way->sizes[k].bytes);
    weft_json_number(json, "bare_ns", way->sizes[k].bare_ns);
    weft_json_number(json, "weft_ns", way->sizes[k].weft_ns);
    weft_json_number(json, "bare_started_ns", way->sizes[k].start_ns);
    weft_json_real(json, "of_bare", quotient(way->sizes[k].bare_ns, way->sizes[k].weft_ns));
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  add_cases(json, &way->overlap);
  weft_json_close(json, '}');
}

static void add_step_row(struct weft_json *json, const struct weft_cli_mpi_steps *at) {
  const struct sums sums = sum_up(at);
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "mpi", at->mpi);
  weft_json_string(json, "progress", progress_name(at->progress));
  weft_json_string(json, "stages", at->kind == WEFT_CLI_MPI_GPT ? "gpt" : "spin");
  weft_json_string(json, "schedule", at->schedule);
  weft_json_real(json, "threads_step_ms", sums.threads_ms);
  weft_json_real(json, "mpi_step_ms", sums.processes_ms);
  weft_json_real(json, "ratio", sums.ratio);
  weft_json_open(json, "ratio_middle_half", '[');
  weft_json_real(json, NULL, sums.low_ratio);
  weft_json_real(json, NULL, sums.high_ratio);
  weft_json_close(json, ']');
  weft_json_real(json, "fastest_ratio", sums.fastest_ratio);
  weft_json_real(json, "threads_over_simulated", sums.threads_over);
  weft_json_real(json, "mpi_over_simulated", sums.processes_over);
  weft_json_number(json, "stolen_ms", at->stolen_ms);
  weft_json_open(json, "pairs", '[');
  for (size_t k = 0; k < at->pair_count; k++) {
    weft_json_open(json, NULL, '{');
    weft_json_real(json, "threads_step_ms", (double)at->pairs[k].threads_ns / 1e6);
    weft_json_real(json, "mpi_step_ms", (double)at->pairs[k].processes_ns / 1e6);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

void weft_cli_bench_add_mpi_json(struct weft_json *json,
                                 const struct weft_cli_mpi_results *results) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-mpi/1");
  weft_json_string(json, "version", weft_version());
  weft_json_number(json, "rounds", results->rounds);
  weft_json_open(json, "ways", '[');
  for (size_t k = 0; k < results->way_count; k++) {
    add_way(json, &results->ways[k]);
  }
  weft_json_close(json, ']');
  weft_json_open(json, "rank_processors", '[');
  for (uint32_t r = 0; r < results->cores.count; r++) {
    weft_json_number(json, NULL, results->cores.processors[r]);
  }
  weft_json_close(json, ']');
  weft_json_open(json, "steps", '[');
  for (size_t k = 0; k < results->step_count; k++) {
    add_step_row(json, &results->steps[k]);
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}
