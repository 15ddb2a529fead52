/* `weft bench gpu`: what the runtime costs on a GPU, and how near it comes to its simulation. The
 * answer comes first: losses and gradients of linear stages must have the host's bits. Each
 * measurement is a table, which prints itself as text or JSON. */
#include "bench/gpu/bench_gpu.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/gen.h>

#include "cli/io/error_message.h"

enum {
  COLUMNS_MAX = 8,
  ROWS_MAX = 40,
  PARTITIONS = 4,
  RANKS = 8,
  MICROBATCHES = 8,
  STEPS = 40,
  REPLAYS = 200
};

struct table {
  const char *key, *title, *note;
  const char *columns[COLUMNS_MAX]; /* names as JSON has them */
  char labels[ROWS_MAX][64];
  double values[ROWS_MAX][COLUMNS_MAX]; /* NAN: not measured */
  size_t row_count;
};

struct bench {
  const struct weft_cli *cli;
  const struct weft_cli_arguments *arguments;
  struct weft_text *text;
  struct weft_json *json; /* NULL: as text */
  struct weft_cuda *cuda; /* keeps the GPU's context, which takes long to make */
  struct weft_cuda_gpu_info gpu;
  uint32_t partition_sms;
  char no_products[640]; /* why there are none; "": there are */
};

/* ---- Tables ---- */

static double *add_row(struct table *table, const char *label) {
  assert(table->row_count < ROWS_MAX);
  const size_t row = table->row_count++;
  (void)snprintf(table->labels[row], sizeof table->labels[row], "%s", label);
  for (size_t c = 0; c < COLUMNS_MAX; c++) {
    table->values[row][c] = NAN;
  }
  return table->values[row];
}

static void print_text(const struct table *table, struct weft_text *text) {
  weft_text_addf(text, "\n%-34s", table->title);
  for (size_t c = 0; c < COLUMNS_MAX && table->columns[c] != NULL; c++) {
    weft_text_addf(text, " %14s", table->columns[c]);
  }
  weft_text_add(text, "\n");
  for (size_t row = 0; row < table->row_count; row++) {
    weft_text_addf(text, "%-34s", table->labels[row]);
    for (size_t c = 0; c < COLUMNS_MAX && table->columns[c] != NULL; c++) {
      const double value = table->values[row][c];
      if (isnan(value)) {
        weft_text_addf(text, " %14s", "-");
      } else {
        weft_text_addf(text, " %14.*f", fabs(value) < 10 ? 4 : fabs(value) < 1000 ? 2 : 0, value);
      }
    }
    weft_text_add(text, "\n");
  }
  weft_text_addf(text, "  %s\n", table->note);
}

static void print_table(const struct bench *bench, const struct table *table) {
  if (bench->json == NULL) {
    print_text(table, bench->text);
    return;
  }
  weft_json_open(bench->json, table->key, '[');
  for (size_t row = 0; row < table->row_count; row++) {
    weft_json_open(bench->json, NULL, '{');
    weft_json_string(bench->json, "case", table->labels[row]);
    for (size_t c = 0; c < COLUMNS_MAX && table->columns[c] != NULL; c++) {
      if (isnan(table->values[row][c])) {
        weft_json_null(bench->json, table->columns[c]);
      } else {
        weft_json_exact(bench->json, table->columns[c], table->values[row][c]);
      }
    }
    weft_json_close(bench->json, '}');
  }
  weft_json_close(bench->json, ']');
}

/* ---- Cases ---- */

static uint32_t number(const struct bench *bench, enum weft_cli_option_id option,
                       uint32_t otherwise) {
  return (uint32_t)weft_cli_number(bench->arguments, option, otherwise);
}

static int run_case(const struct bench *bench, const struct weft_bench_gpu_case *at,
                    struct weft_bench_gpu_result *result) {
  struct weft_error error;
  if (bench->cli->messages_terminal) {
    weft_cli_print(bench->cli, NULL, "bench: %s, p = %" PRIu32 ", m = %" PRIu32, at->schedule,
                   at->ranks, at->microbatches);
  }
  return weft_bench_gpu_run(at, result, &error) < 0 ? weft_cli_fail(bench->cli, NULL, &error)
                                                    : WEFT_CLI_OK;
}

/* The k-th schedule that trains, or NULL. */
static const char *schedule_at(size_t k) {
  for (size_t at = 0; at < weft_schedule_count(); at++) {
    const struct weft_schedule_info *info = weft_schedule_at(at);
    if (info->trains && !info->fixed && k-- == 0) {
      return info->name;
    }
  }
  return NULL;
}

/* ---- The answer ---- */

static int check_schedule(const struct bench *bench, const char *schedule, uint32_t ranks,
                          uint32_t *runs) {
  struct weft_bench_gpu_result host, found;
  struct weft_error error;
  struct weft_bench_gpu_case at = {.schedule = schedule,
                                   .ranks = ranks,
                                   .microbatches = 2 * ranks,
                                   .kind = WEFT_BENCH_GPU_LINEAR,
                                   .on_host = true};
  if (weft_bench_gpu_run(&at, &host, &error) < 0) {
    return error.status == WEFT_ERR_USAGE ? WEFT_CLI_OK /* it does not have this shape */
                                          : weft_cli_fail(bench->cli, NULL, &error);
  }
  at.on_host = false;
  for (int k = 0; k < (ranks == PARTITIONS ? 4 : 2); k++) {
    at.eager = k % 2 == 0;
    at.partitions = k < 2 ? 0 : PARTITIONS;
    const int status = run_case(bench, &at, &found);
    if (status != WEFT_CLI_OK) {
      return status;
    }
    if (found.checksum != host.checksum) {
      weft_cli_print(bench->cli, "this is a bug; nothing was measured",
                     "bench: %s with %" PRIu32 " ranks, %s, %" PRIu32
                     " partitions: losses or gradients of linear stages differ from the host's",
                     schedule, ranks, at.eager ? "eager" : "graph", at.partitions);
      return WEFT_CLI_FOUND_BAD;
    }
    ++*runs;
  }
  return WEFT_CLI_OK;
}

static int check(struct bench *bench, uint32_t *runs) {
  static const uint32_t all[] = {2, 4, 8};
  int status = WEFT_CLI_OK;
  for (size_t k = 0; schedule_at(k) != NULL && status == WEFT_CLI_OK; k++) {
    if (bench->arguments->given[WEFT_CLI_OPTION_RANKS]) {
      status = check_schedule(bench, schedule_at(k), number(bench, WEFT_CLI_OPTION_RANKS, 2), runs);
      continue;
    }
    for (size_t r = 0; r < WEFT_ARRAY_LENGTH(all) && status == WEFT_CLI_OK; r++) {
      status = check_schedule(bench, schedule_at(k), all[r], runs);
    }
  }
  return status;
}

/* ---- 1: an action ---- */

struct slope {
  double us, compute, transfers, receives;
};

/* What more microbatches add to a step. */
static int measure_slope(const struct bench *bench, uint32_t ranks, bool no_events,
                         struct slope *slope) {
  struct weft_bench_gpu_result few, many;
  struct weft_bench_gpu_case at = {.schedule = "1F1B",
                                   .ranks = ranks,
                                   .microbatches = 2 * ranks,
                                   .eager = true,
                                   .no_events = no_events,
                                   .steps = number(bench, WEFT_CLI_OPTION_REPEATS, STEPS)};
  int status = run_case(bench, &at, &few);
  at.microbatches = 2 * ranks + 8 * number(bench, WEFT_CLI_OPTION_MICROBATCHES, 16);
  if (status == WEFT_CLI_OK) {
    status = run_case(bench, &at, &many);
  }
  if (status == WEFT_CLI_OK) {
    *slope = (struct slope){many.wall_us - few.wall_us, (double)(many.compute - few.compute),
                            (double)(many.transfers - few.transfers),
                            (double)(many.receives - few.receives)};
  }
  return status;
}

static int measure_actions(const struct bench *bench) {
  struct table table = {
      .key = "actions",
      .title = "host time, null stages, eager",
      .note =
          "Microseconds per action: what more microbatches add to a step of 1F1B. Compute: on one\n"
          "  rank; SEND or RECV: on several, less that. Driver: a compute records an event, and "
          "with\n"
          "  the log one that has a time; nobody reads it here. A RECV waits for one.",
      .columns = {"us", "driver_us", "difference_us"}};
  struct weft_bench_gpu_calls calls;
  struct weft_error error;
  struct slope one, all, logged;
  if (weft_bench_gpu_calls(weft_cuda_device(bench->cuda, 0), &calls, &error) < 0) {
    return weft_cli_fail(bench->cli, NULL, &error);
  }
  int status = measure_slope(bench, 1, true, &one);
  if (status == WEFT_CLI_OK) {
    status = measure_slope(bench, number(bench, WEFT_CLI_OPTION_RANKS, RANKS), true, &all);
  }
  if (status == WEFT_CLI_OK) {
    status = measure_slope(bench, 1, false, &logged);
  }
  if (status != WEFT_CLI_OK) {
    return status;
  }
  const double compute = one.us / one.compute;
  const struct {
    const char *name;
    double us, driver_ns;
  } rows[] = {
      {"compute", compute, calls.record},
      {"SEND or RECV", (all.us - all.compute * compute) / all.transfers,
       calls.wait * all.receives / all.transfers},
      {"compute, with the event log", logged.us / logged.compute, calls.timed_record},
      {"driver: event record", NAN, calls.record},
      {"driver: record of one with a time", NAN, calls.timed_record},
      {"driver: time of an event", NAN, calls.elapsed},
      {"driver: event query", NAN, calls.query},
      {"driver: stream wait", NAN, calls.wait},
      {"driver: launch of a kernel", NAN, calls.launch},
  };
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(rows); k++) {
    double *row = add_row(&table, rows[k].name);
    row[0] = rows[k].us;
    row[1] = rows[k].driver_ns / 1e3;
    row[2] = row[0] - row[1];
  }
  print_table(bench, &table);
  return WEFT_CLI_OK;
}

/* ---- 2: a step as a graph ---- */

static int measure_replay(const struct bench *bench) {
  struct table table = {
      .key = "replay",
      .title = "a step as a graph, null stages",
      .note =
          "Microseconds of a step, one after the other; of them the GPU's own, from the first to\n"
          "  the last kernel of the graph by its clock; host: the rest, of the median step and of "
          "the\n"
          "  fastest. Bare: cuGraphLaunch of a graph with the same nodes, and its launch and wait "
          "less\n"
          "  the GPU's own time. In brackets the partitions.",
      .columns = {"step_us", "gpu_us", "host_us", "fastest_us", "bare_launch_us", "bare_host_us"}};
  const uint32_t ranks = number(bench, WEFT_CLI_OPTION_RANKS, RANKS);
  const char *schedule;
  for (size_t k = 0; (schedule = schedule_at(k / 2)) != NULL; k++) {
    struct weft_bench_gpu_result result;
    struct weft_error error;
    char label[64];
    struct weft_bench_gpu_case at = {
        .schedule = schedule,
        .ranks = ranks,
        .microbatches = number(bench, WEFT_CLI_OPTION_MICROBATCHES, MICROBATCHES),
        .partitions = k % 2 == 0 ? 0 : PARTITIONS,
        .steps = number(bench, WEFT_CLI_OPTION_REPEATS, REPLAYS),
        .noted = 5};
    if (strcmp(schedule, "DualPipeV") == 0 && at.microbatches < 2 * ranks) {
      at.microbatches = 2 * ranks; /* the fewest that it has */
    }
    const int status = run_case(bench, &at, &result);
    if (status != WEFT_CLI_OK) {
      return status;
    }
    (void)snprintf(label, sizeof label, "%s, m = %" PRIu32 " [%" PRIu32 "]", at.schedule,
                   at.microbatches, at.partitions);
    double *row = add_row(&table, label);
    if (weft_bench_gpu_graph(&at, result.cells, &row[4], &row[5], &error) < 0) {
      return weft_cli_fail(bench->cli, NULL, &error);
    }
    row[0] = result.wall_us;
    row[1] = result.gpu_us;
    row[2] = row[0] - row[1];
    row[3] = result.fastest_us - row[1];
  }
  print_table(bench, &table);
  return WEFT_CLI_OK;
}

/* ---- 3 to 6: products ---- */

/* In the small form, which -p asks for, products are small. */
static struct weft_bench_gpu_case products_case(const struct bench *bench, const char *schedule,
                                                uint32_t ranks, uint64_t width, uint32_t layers) {
  width = bench->arguments->given[WEFT_CLI_OPTION_RANKS] ? 8 + width / 256 : width;
  return (struct weft_bench_gpu_case){
      .schedule = schedule,
      .ranks = ranks,
      .microbatches = number(bench, WEFT_CLI_OPTION_MICROBATCHES, MICROBATCHES),
      .kind = WEFT_BENCH_GPU_PRODUCTS,
      .rows = width,
      .width = width,
      .wide = width,
      .layers = layers,
      .steps = number(bench, WEFT_CLI_OPTION_REPEATS, STEPS / 4),
      .noted = 5};
}

static int measure_launch_bound(const struct bench *bench) {
  struct table table = {
      .key = "launch_bound",
      .title = "products of 512, 4 partitions",
      .note =
          "Microseconds of a step; 4 products in F, in I and in W. Simulated from "
          "the graph's own\n  profile.",
      .columns = {"eager_us", "graph_us", "eager/graph", "simulated_us"}};
  static const char *const schedules[] = {"1F1B", "ZBVZeroBubble"};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(schedules); k++) {
    struct weft_bench_gpu_result eager, graph;
    struct weft_bench_gpu_case at =
        products_case(bench, schedules[k], PARTITIONS, 512, k == 0 ? 2 : 1);
    at.partitions = PARTITIONS;
    at.sms = bench->partition_sms;
    at.eager = at.no_events = true; /* reading times would slow it down */
    at.noted = 0;
    int status = run_case(bench, &at, &eager);
    at.eager = at.no_events = false;
    at.noted = 5;
    if (status == WEFT_CLI_OK) {
      status = run_case(bench, &at, &graph);
    }
    if (status != WEFT_CLI_OK) {
      return status;
    }
    double *row = add_row(&table, schedules[k]);
    row[0] = eager.wall_us;
    row[1] = graph.wall_us;
    row[2] = row[0] / row[1];
    row[3] = graph.simulated_us;
    if (eager.checksum != graph.checksum) {
      weft_cli_print(bench->cli, NULL, "bench: %s: gradients of eager and graph steps differ",
                     schedules[k]);
      return WEFT_CLI_FOUND_BAD;
    }
  }
  print_table(bench, &table);
  return WEFT_CLI_OK;
}

static int measure_partitions(const struct bench *bench) {
  struct table table = {
      .key = "partitions",
      .title = "products on 4 partitions, graph",
      .note =
          "Milliseconds of a step: by the host's clock, by the GPU's, and simulated from the "
          "means\n"
          "  of what the run's own actions took. 4 products in each of F, I and W of a rank.",
      .columns = {"step_ms", "gpu_ms", "simulated_ms", "step/simulated", "gpu/simulated"}};
  struct table memory = {
      .key = "memory",
      .title = "memory of the GPU",
      .note =
          "MiB of all ranks: weights, gradients and activations that stages hold, and the "
          "simulator's\n"
          "  peak of the same; all, with messages, batch and workspaces of cublasLt; allocations "
          "by\n"
          "  steps but the first; what the driver took for the graph, in step two, and after it.",
      .columns = {"stages", "simulated", "ratio", "all", "allocations", "graph", "later"}};
  static const char *const schedules[] = {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"};
  static const uint64_t widths[] = {2048, 4096};
  for (size_t k = 0; k < 2 * WEFT_ARRAY_LENGTH(schedules); k++) {
    struct weft_bench_gpu_result result;
    char label[64];
    const char *schedule = schedules[k % WEFT_ARRAY_LENGTH(schedules)];
    const uint64_t width = widths[k / WEFT_ARRAY_LENGTH(schedules)];
    struct weft_bench_gpu_case at =
        products_case(bench, schedule, PARTITIONS, width, strcmp(schedule, "1F1B") == 0 ? 2 : 1);
    at.partitions = PARTITIONS;
    const int status = run_case(bench, &at, &result);
    if (status != WEFT_CLI_OK) {
      return status;
    }
    (void)snprintf(label, sizeof label, "%s, %" PRIu64, schedule, width);
    double *row = add_row(&table, label);
    row[0] = result.wall_us / 1e3;
    row[1] = result.gpu_us / 1e3;
    row[2] = result.simulated_us / 1e3;
    row[3] = row[0] / row[2];
    row[4] = row[1] / row[2];
    row = add_row(&memory, label);
    row[0] = (double)result.stage_bytes / 1048576;
    row[1] = result.simulated_bytes / 1048576;
    row[2] = row[0] / row[1];
    row[3] = (double)result.memory_bytes / 1048576;
    row[4] = (double)result.allocations;
    row[5] = (double)result.graph_bytes / 1048576;
    row[6] = (double)result.later_bytes / 1048576;
  }
  print_table(bench, &table);
  print_table(bench, &memory);
  return WEFT_CLI_OK;
}

static int measure_sharing(const struct bench *bench) {
  struct table table = {
      .key = "sharing",
      .title = "ranks that share the GPU, 1F1B",
      .note =
          "Milliseconds of a step as a graph. The same 16 products in F, in I and "
          "in W, divided\n  among the ranks.",
      .columns = {"step_ms", "step(p)/step(1)"}};
  static const uint64_t widths[] = {2048, 4096};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(widths); k++) {
    double alone = 0;
    for (uint32_t ranks = 1; ranks <= 8; ranks *= 2) {
      struct weft_bench_gpu_result result;
      char label[64];
      struct weft_bench_gpu_case at = products_case(bench, "1F1B", ranks, widths[k], 8 / ranks);
      at.noted = 0;
      const int status = run_case(bench, &at, &result);
      if (status != WEFT_CLI_OK) {
        return status;
      }
      (void)snprintf(label, sizeof label, "%" PRIu32 " ranks, products of %" PRIu64, ranks,
                     widths[k]);
      double *row = add_row(&table, label);
      alone = ranks == 1 ? result.wall_us : alone;
      row[0] = result.wall_us / 1e3;
      row[1] = result.wall_us / alone;
    }
  }
  print_table(bench, &table);
  return WEFT_CLI_OK;
}

/* ---- 7: timed stages ---- */

/* What a stage of 100 us takes longer in a bare graph, where each waits for the one before: in a
 * stream, and in two by turns. */
static int measure_gap(const struct bench *bench, double *in_stream_us, double *across_us) {
  struct weft_error error;
  return weft_bench_gpu_gap(bench->cuda, false, in_stream_us, &error) < 0 ||
                 weft_bench_gpu_gap(bench->cuda, true, across_us, &error) < 0
             ? weft_cli_fail(bench->cli, NULL, &error)
             : WEFT_CLI_OK;
}

static int measure_timed(const struct bench *bench) {
  struct table table = {
      .key = "timed",
      .title = "timed stages: gpu / simulated",
      .note =
          "By the GPU's clock; as a graph, twice as many microbatches as ranks. F, I and W take "
          "as\n"
          "  long as the column says, B twice that, and so does an overlap. 'Gap': simulated with\n"
          "  stages longer by what lies between two kernels of a bare graph, which the last rows\n"
          "  have in microseconds.",
      .columns = {"8x100us", "8x200us", "32x100us", "32x200us", "8x100us_gap", "32x100us_gap"}};
  const bool small = bench->arguments->given[WEFT_CLI_OPTION_RANKS];
  double in_stream = 0, across = 0;
  int status = measure_gap(bench, &in_stream, &across);
  for (size_t k = 0; schedule_at(k) != NULL && status == WEFT_CLI_OK; k++) {
    double *row = add_row(&table, schedule_at(k));
    for (uint32_t c = 0; c < (small ? 2 : 4) && status == WEFT_CLI_OK; c++) {
      struct weft_bench_gpu_result result;
      const uint32_t ranks = small ? number(bench, WEFT_CLI_OPTION_RANKS, RANKS) : c < 2 ? 8 : 32;
      const struct weft_bench_gpu_case at = {.schedule = schedule_at(k),
                                             .ranks = ranks,
                                             .microbatches = 2 * ranks,
                                             .kind = WEFT_BENCH_GPU_TIMED,
                                             .stage_ns = c % 2 == 0 ? 100000 : 200000,
                                             .gap_us = across,
                                             .noted = 5};
      status = run_case(bench, &at, &result);
      row[c] = result.gpu_us / result.simulated_us;
      if (c % 2 == 0) {
        row[4 + c / 2] = result.gpu_us / result.gap_simulated_us;
      }
    }
  }
  add_row(&table, "gap in a stream")[4] = in_stream;
  add_row(&table, "gap between two streams")[4] = across;
  print_table(bench, &table);
  return status;
}

/* ---- All ---- */

static int measure_products(struct bench *bench) {
  struct weft_bench_gpu_result result;
  struct weft_error error;
  struct weft_bench_gpu_case at = products_case(bench, "1F1B", 1, 512, 1);
  at.noted = 0;
  if (weft_bench_gpu_run(&at, &result, &error) < 0) {
    if (error.status != WEFT_ERR_UNAVAILABLE) {
      return weft_cli_fail(bench->cli, NULL, &error);
    }
    (void)snprintf(bench->no_products, sizeof bench->no_products, "%.300s; %.300s", error.message,
                   error.hint);
    return WEFT_CLI_OK;
  }
  int status = measure_launch_bound(bench);
  if (status == WEFT_CLI_OK) {
    status = measure_partitions(bench);
  }
  return status == WEFT_CLI_OK ? measure_sharing(bench) : status;
}

static int measure_all(struct bench *bench) {
  int status = measure_actions(bench);
  if (status == WEFT_CLI_OK) {
    status = measure_replay(bench);
  }
  if (status == WEFT_CLI_OK) {
    status = measure_products(bench);
  }
  return status == WEFT_CLI_OK ? measure_timed(bench) : status;
}

static int open_gpu(struct bench *bench) {
  const uint32_t gpu = 0;
  const struct weft_cuda_options options = {.gpus = &gpu, .gpu_count = 1};
  struct weft_error error;
  if (weft_cuda_open(NULL, &options, 1, &bench->cuda, &error) < 0 ||
      weft_cuda_gpu_info(gpu, &bench->gpu, &error) < 0) {
    return weft_cli_fail(bench->cli, NULL, &error);
  }
  bench->partition_sms = bench->gpu.sm_count / PARTITIONS / 8 * 8;
  return WEFT_CLI_OK;
}

static int check_and_measure(struct bench *bench) {
  struct weft_text *text = bench->text;
  struct weft_json *json = bench->json;
  uint32_t runs = 0;
  int status = check(bench, &runs);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  if (json == NULL) {
    weft_text_addf(text,
                   "weft %s, bench gpu on %s: checked: in %" PRIu32
                   " runs of linear stages losses and gradients have the host's bits\n",
                   weft_version(), bench->gpu.name, runs);
  } else {
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "schema", "weft-bench-gpu/1");
    weft_json_string(json, "version", weft_version());
    weft_json_string(json, "gpu", bench->gpu.name);
    weft_json_number(json, "runs_checked", runs);
  }
  status = measure_all(bench);
  if (json != NULL) {
    weft_json_string(json, "products_not_measured", bench->no_products);
    weft_json_close(json, '}');
  } else if (bench->no_products[0] != '\0') {
    weft_text_addf(text, "\nproducts were not measured: %s\n", bench->no_products);
  }
  return status;
}

int weft_bench_cmd_gpu(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  struct bench bench = {.cli = cli, .arguments = arguments, .text = text, .json = json};
  int status = open_gpu(&bench);
  if (status == WEFT_CLI_OK) {
    status = check_and_measure(&bench);
  }
  weft_cuda_close(bench.cuda);
  return status;
}

/* ---- Blocks, beside another program ---- */

static int measure_blocks(const struct bench *bench, uint32_t ranks, struct table *table) {
  enum { EAGER, GRAPH, PARTS, WAYS };
  if (ranks > 4 || 8 % ranks != 0) {
    return weft_cli_usage(bench->cli, "give -p 1, 2 or 4",
                          "8 blocks cannot be divided among %" PRIu32 " ranks", ranks);
  }
  for (size_t k = 0; schedule_at(k) != NULL; k++) {
    const struct weft_schedule_info *info = weft_schedule_find(schedule_at(k), NULL);
    if (!info->in_pytorch) {
      continue;
    }
    struct weft_bench_gpu_result results[WAYS];
    double *row = add_row(table, info->name);
    for (int way = 0; way < WAYS; way++) {
      struct weft_bench_gpu_case at =
          products_case(bench, info->name, ranks, 0, 8 / ranks / info->stages_per_rank_default);
      at.rows = at.width = number(bench, WEFT_CLI_OPTION_DIM, 2048);
      at.wide = 4 * at.width;
      at.eager = way == EAGER;
      at.partitions = way == PARTS ? ranks : 0;
      at.noted = 0;
      const int status = run_case(bench, &at, &results[way]);
      if (status != WEFT_CLI_OK) {
        return status;
      }
      row[way] = results[way].wall_us / 1e3;
    }
    row[3] = results[GRAPH].losses[0];
    row[4] = 0;
    for (uint32_t m = 0; m < WEFT_BENCH_GPU_MICROBATCHES_MAX; m++) {
      row[4] += results[GRAPH].losses[m];
    }
    if (results[EAGER].checksum != results[GRAPH].checksum) {
      weft_cli_print(bench->cli, NULL, "bench: %s: eager and graph steps differ", info->name);
      return WEFT_CLI_FOUND_BAD;
    }
  }
  return WEFT_CLI_OK;
}

int weft_bench_cmd_gpu_blocks(const struct weft_cli *cli,
                              const struct weft_cli_arguments *arguments, struct weft_text *text,
                              struct weft_json *json) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  struct bench bench = {.cli = cli, .arguments = arguments, .text = text, .json = json};
  struct table table = {
      .key = "blocks",
      .title = "8 blocks of one width, graph",
      .note =
          "Milliseconds of a step, eager and as a graph of ranks that share the GPU, and as one "
          "with\n"
          "  a partition of the GPU for each rank. A block is\n"
          "  x + W2 gelu(W1 x), four times as wide inside; bf16, as many rows in a microbatch as\n"
          "  columns (--dim, 2048). The loss is the sum of outputs times targets, of the first\n"
          "  microbatch and of all.",
      .columns = {"eager_ms", "step_ms", "partitions_ms", "loss_0", "loss_sum"}};
  const uint32_t ranks = number(&bench, WEFT_CLI_OPTION_RANKS, 2);
  int status = open_gpu(&bench);
  if (status == WEFT_CLI_OK) {
    status = measure_blocks(&bench, ranks, &table);
  }
  weft_cuda_close(bench.cuda);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  if (json != NULL) {
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "schema", "weft-bench-gpu-blocks/1");
    weft_json_number(json, "ranks", ranks);
  }
  print_table(&bench, &table);
  if (json != NULL) {
    weft_json_close(json, '}');
  }
  return WEFT_CLI_OK;
}
