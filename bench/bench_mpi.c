/* `weft bench mpi`: messages against bare MPI, and steps of two processes against steps of two
 * threads.
 *
 * Every measurement is a command of its own, with a time limit: this program once more under
 * each launcher, for messages; `weft run` and `weft train`, on threads and under each launcher,
 * for steps. Runs of threads and of processes are interleaved, so that what slows the machine
 * down for a while slows both. All of them run on the same two cores; launchers bind nothing. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "bench/bench_mpi.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench_clock.h"
#include "bench/two_cores.h"
#include "cli/args/option_parser.h"
#include "cli/io/child_process.h"
#include "cli/io/error_message.h"
#include "cli/io/mpi_launcher.h"
#include "cli/io/output_file.h"

enum { LIMIT_MS = 120 * 1000, COMMAND_WORDS = 32, STEPS_MAX = 16, ROWS_MAX = 16 };

/* In the environment of a job: rank 0 writes lines for weft_bench_cmd_mpi() and no report. */
#define LINES_MARK "WEFT_BENCH_LINES"

static const char *progress_name(enum weft_comm_progress progress) {
  return progress == WEFT_COMM_PROGRESS_THREAD ? "thread" : "calls";
}

static double quotient(double a, double b) { return b > 0 ? a / b : 0; }

/* ---- Results ---- */

/* Median steps of two runs, one right after the other. */
struct pair {
  double threads_ms, mpi_ms;
};

struct steps {
  const char *mpi, *stages, *schedule; /* "openmpi", "spin" or "gpt", "1F1B" */
  struct pair pairs[WEFT_BENCH_REPEATS_MAX];
  size_t pair_count;
  uint64_t stolen_ms;
};

struct results {
  enum weft_comm_progress progress;
  uint64_t rounds;
  struct weft_bench_mpi_messages messages[WEFT_CLI_MPI_COUNT];
  size_t message_count;
  struct steps steps[ROWS_MAX];
  size_t step_count;
  bool is_bound;
  uint32_t processors[2]; /* that all runs are restricted to */
};

struct summary {
  double threads_ms, mpi_ms, ratio, low_ratio, high_ratio;
};

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts; of an even number, the mean of the middle two. */
static double median(double *values, size_t count) {
  qsort(values, count, sizeof values[0], compare);
  return count > 0 ? (values[(count - 1) / 2] + values[count / 2]) / 2 : 0;
}

static struct summary summarize(const struct steps *steps) {
  double threads[WEFT_BENCH_REPEATS_MAX], mpi[WEFT_BENCH_REPEATS_MAX];
  double ratios[WEFT_BENCH_REPEATS_MAX];
  const size_t count = steps->pair_count;
  struct summary summary = {.ratio = 0};
  for (size_t k = 0; k < count; k++) {
    threads[k] = steps->pairs[k].threads_ms;
    mpi[k] = steps->pairs[k].mpi_ms;
    ratios[k] = quotient(mpi[k], threads[k]);
  }
  if (count > 0) {
    summary = (struct summary){.threads_ms = median(threads, count),
                               .mpi_ms = median(mpi, count),
                               .ratio = median(ratios, count)};
    summary.low_ratio = ratios[count / 4];
    summary.high_ratio = ratios[count - 1 - count / 4];
  }
  return summary;
}

/* ---- The report ---- */

static void add_messages(struct weft_text *text, const struct results *results) {
  weft_text_addf(text, "%-8s %-7s %-8s %9s %10s %10s %9s %9s\n", "messages", "over", "progress",
                 "bytes", "bare us", "weft us", "weft MB/s", "of bare");
  for (size_t k = 0; k < results->message_count; k++) {
    const struct weft_bench_mpi_messages *at = &results->messages[k];
    for (size_t i = 0; i < WEFT_BENCH_MPI_SIZES; i++) {
      const struct weft_bench_mpi_size *size = &at->sizes[i];
      weft_text_addf(text, "%-8s %-7s %-8s %9" PRIu64 " %10.3f %10.3f %9.1f %7.1f %%\n", at->mpi,
                     at->over, progress_name(at->progress), size->bytes,
                     (double)size->bare_ns / 1e3, (double)size->weft_ns / 1e3,
                     1e3 * quotient((double)size->bytes, (double)size->weft_ns),
                     100 * quotient((double)size->bare_ns, (double)size->weft_ns));
    }
  }
  weft_text_add(text,
                "  Half of a round trip, by MPI_Send and MPI_Recv alone and by the transport, "
                "interleaved;\n  the median of the fastest block of each.\n");
}

static void add_steps(struct weft_text *text, const struct results *results) {
  weft_text_addf(text, "\n%-8s %-8s %-6s %-13s %10s %8s %7s %13s %10s\n", "steps", "progress",
                 "stages", "schedule", "threads ms", "mpi ms", "ratio", "middle half", "stolen ms");
  for (size_t k = 0; k < results->step_count; k++) {
    const struct steps *at = &results->steps[k];
    const struct summary summary = summarize(at);
    weft_text_addf(text, "%-8s %-8s %-6s %-13s %10.3f %8.3f %7.4f %6.3f-%6.3f %10" PRIu64 "\n",
                   at->mpi, progress_name(results->progress), at->stages, at->schedule,
                   summary.threads_ms, summary.mpi_ms, summary.ratio, summary.low_ratio,
                   summary.high_ratio, at->stolen_ms);
  }
  weft_text_addf(text,
                 "  Two ranks, eight microbatches; the median step of runs on two threads and on "
                 "two\n  processes, interleaved, %" PRIu64
                 " rounds; the ratio is the median of the ratios of a round.\n  The GPT's "
                 "parameters are the same bit for bit.\n",
                 results->rounds);
}

static void add_text(struct weft_text *text, const struct results *results) {
  weft_text_addf(text, "weft %s, bench mpi: checked: every message arrives as it was sent\n\n",
                 weft_version());
  add_messages(text, results);
  if (results->step_count > 0) {
    add_steps(text, results);
  }
}

static void add_json_messages(struct weft_json *json, const struct weft_bench_mpi_messages *at) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "mpi", at->mpi);
  weft_json_string(json, "over", at->over);
  weft_json_string(json, "progress", progress_name(at->progress));
  weft_json_number(json, "stolen_ms", at->stolen_ms);
  weft_json_open(json, "messages", '[');
  for (size_t i = 0; i < WEFT_BENCH_MPI_SIZES; i++) {
    const struct weft_bench_mpi_size *size = &at->sizes[i];
    weft_json_open(json, NULL, '{');
    weft_json_number(json, "bytes", size->bytes);
    weft_json_number(json, "bare_ns", size->bare_ns);
    weft_json_number(json, "weft_ns", size->weft_ns);
    weft_json_real(json, "of_bare", quotient((double)size->bare_ns, (double)size->weft_ns));
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

static void add_json_steps(struct weft_json *json, const struct results *results,
                           const struct steps *at) {
  const struct summary summary = summarize(at);
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "mpi", at->mpi);
  weft_json_string(json, "progress", progress_name(results->progress));
  weft_json_string(json, "stages", at->stages);
  weft_json_string(json, "schedule", at->schedule);
  weft_json_real(json, "threads_step_ms", summary.threads_ms);
  weft_json_real(json, "mpi_step_ms", summary.mpi_ms);
  weft_json_real(json, "ratio", summary.ratio);
  weft_json_open(json, "ratio_middle_half", '[');
  weft_json_real(json, NULL, summary.low_ratio);
  weft_json_real(json, NULL, summary.high_ratio);
  weft_json_close(json, ']');
  weft_json_number(json, "stolen_ms", at->stolen_ms);
  weft_json_open(json, "pairs", '[');
  for (size_t k = 0; k < at->pair_count; k++) {
    weft_json_open(json, NULL, '{');
    weft_json_real(json, "threads_step_ms", at->pairs[k].threads_ms);
    weft_json_real(json, "mpi_step_ms", at->pairs[k].mpi_ms);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

static void add_json(struct weft_json *json, const struct results *results) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-mpi/1");
  weft_json_string(json, "version", weft_version());
  weft_json_number(json, "rounds", results->rounds);
  weft_json_open(json, "ways", '[');
  for (size_t k = 0; k < results->message_count; k++) {
    add_json_messages(json, &results->messages[k]);
  }
  weft_json_close(json, ']');
  weft_json_open(json, "rank_processors", '[');
  for (size_t k = 0; k < 2 && results->is_bound; k++) {
    weft_json_number(json, NULL, results->processors[k]);
  }
  weft_json_close(json, ']');
  weft_json_open(json, "steps", '[');
  for (size_t k = 0; k < results->step_count; k++) {
    add_json_steps(json, results, &results->steps[k]);
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

/* ---- Commands ---- */

struct bench {
  const struct weft_cli *cli;
  struct results *results;
  char weft[PATH_MAX], self[PATH_MAX]; /* weft, and this program */
  char folder[PATH_MAX];               /* for tables; "": none */
  char repeats[24];
};

/* Runs a command alone (mpi NULL), or two processes of it. */
static int run_command(const struct bench *bench, const struct weft_cli_mpi *mpi,
                       const char *const *command, struct weft_cli_child *child) {
  static const char *const environment[] = {
      LINES_MARK, "1", "OMPI_ALLOW_RUN_AS_ROOT", "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", NULL};
  const char *words[WEFT_CLI_MPI_WORDS_MAX];
  if (mpi != NULL) {
    weft_cli_mpi_two_processes(mpi, true, command, words);
  }
  *child = (struct weft_cli_child){
      .words = mpi != NULL ? words : command, .sets = environment, .limit_ms = LIMIT_MS};
  weft_cli_child_run(child);
  child->words = child->sets = NULL;
  if (!child->timed_out && child->status == 0) {
    return WEFT_CLI_OK;
  }
  const char *line = child->output + strspn(child->output, "\n- "); /* launchers draw rulers */
  const char *what = mpi != NULL ? mpi->launcher : "one process";
  if (child->timed_out) {
    weft_cli_print(bench->cli, "'weft doctor' checks MPI",
                   "bench: %s: 'weft %s' had not ended after %d s", what, command[1],
                   LIMIT_MS / 1000);
  } else {
    weft_cli_print(bench->cli, "'weft doctor' checks MPI",
                   "bench: %s: 'weft %s' ended with status %d: %.*s", what, command[1],
                   child->status, (int)strcspn(line, "\n"), line);
  }
  return child->status == WEFT_CLI_UNAVAILABLE ? WEFT_CLI_UNAVAILABLE : WEFT_CLI_PEER;
}

static int fail_output(const struct bench *bench, const char *command) {
  weft_cli_print(bench->cli, "this is a bug", "bench: 'weft %s' has not written what it measured",
                 command);
  return WEFT_CLI_FOUND_BAD;
}

/* The number behind `key` in a JSON document; *at moves behind it. False: there is none. */
static bool next_number(const char **at, const char *key, double *number) {
  char *end;
  const char *begin = strstr(*at, key);
  *number = begin != NULL ? strtod(begin + strlen(key), &end) : 0;
  if (begin == NULL || end == begin + strlen(key)) {
    return false;
  }
  *at = end;
  return true;
}

/* ---- Messages ---- */

static int measure_messages(struct bench *bench, const struct weft_cli_mpi *mpi) {
  const char *const command[] = {bench->self,
                                 "bench",
                                 "mpi",
                                 "--repeats",
                                 bench->repeats,
                                 "--progress",
                                 progress_name(bench->results->progress),
                                 NULL};
  struct weft_bench_mpi_messages *at = &bench->results->messages[bench->results->message_count];
  struct weft_cli_child child;
  const uint64_t stolen_ms = weft_bench_stolen_ms();
  const int status = run_command(bench, mpi, command, &child);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  *at = (struct weft_bench_mpi_messages){.mpi = mpi->name,
                                         .over = "memory",
                                         .progress = bench->results->progress,
                                         .stolen_ms = weft_bench_stolen_ms() - stolen_ms};
  const char *line = child.output;
  for (size_t k = 0; k < WEFT_BENCH_MPI_SIZES; k++) {
    struct weft_bench_mpi_size *size = &at->sizes[k];
    line = strstr(line, "size ");
    if (line == NULL || sscanf(line, "size %" SCNu64 " %" SCNu64 " %" SCNu64, &size->bytes,
                               &size->bare_ns, &size->weft_ns) != 3) {
      return fail_output(bench, "bench mpi");
    }
    line++;
  }
  bench->results->message_count++;
  return WEFT_CLI_OK;
}

/* ---- Steps ---- */

/* The model of 'weft bench train'; this program's own file is its text. */
#define GPT_TOKENS (16 * 128) /* in a batch */
#define GPT_MODEL                                                                                  \
  "--layers", "8", "--dim", "256", "--heads", "8", "--context", "128", "--batch", "16", "-m", "8", \
      "--steps", "9", "--eval-every", "0", "--json"

static const char *const schedules[] = {"1F1B", "ZBVZeroBubble"};

/* A run on two threads (mpi NULL) or two processes: the median step but the first, and the
 * hash of the parameters ("": none). */
static int run_steps(const struct bench *bench, const struct weft_cli_mpi *mpi,
                     const struct steps *steps, double *step_ms, char hash[32]) {
  const bool is_gpt = strcmp(steps->stages, "gpt") == 0;
  const char *transport = mpi != NULL ? "mpi" : "threads";
  const char *progress = mpi != NULL ? "--progress" : NULL; /* ends the command, too */
  char table[PATH_MAX + 32];
  (void)snprintf(table, sizeof table, "%s/%s.csv", bench->folder, steps->schedule);
  const char *const train[] = {bench->weft,
                               "train",
                               "--data",
                               bench->self,
                               "--schedule",
                               steps->schedule,
                               "-p",
                               "2",
                               GPT_MODEL,
                               "--transport",
                               transport,
                               progress,
                               progress_name(bench->results->progress),
                               NULL};
  const char *const run[] = {
      bench->weft, "run",         table,     "--stage", "spin",
      "--f",       "1",           "--b",     "2",       "--i",
      "1",         "--w",         "1",       "--steps", "13",
      "--json",    "--transport", transport, progress,  progress_name(bench->results->progress),
      NULL};
  struct weft_cli_child child;
  double samples[STEPS_MAX], value;
  size_t count = 0;
  const int status = run_command(bench, mpi, is_gpt ? train : run, &child);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  const char *at = child.output;
  if (is_gpt) {
    while (count < STEPS_MAX && strstr(at, "\"step\":") != NULL &&
           next_number(&at, "\"tokens_per_s\":", &value)) {
      samples[count++] = quotient(1e3 * GPT_TOKENS, value);
    }
    count -= count > 0; /* the first, which is a warm-up, is moved out below */
    memmove(samples, samples + 1, count * sizeof samples[0]);
  } else {
    for (const char *key = "\"makespans\":["; count < STEPS_MAX && next_number(&at, key, &value);
         key = ",") {
      samples[count++] = value;
      if (*at == ']') {
        break;
      }
    }
  }
  const char *found = strstr(child.output, "\"parameters_hash\":\"");
  hash[0] = '\0';
  if (count == 0 || (is_gpt && (found == NULL ||
                                sscanf(found, "\"parameters_hash\":\"%31[0-9a-f]", hash) != 1))) {
    return fail_output(bench, is_gpt ? "train" : "run");
  }
  *step_ms = median(samples, count);
  return WEFT_CLI_OK;
}

/* Both runs of a round; who begins alternates. */
static int measure_round(struct bench *bench, const struct weft_cli_mpi *mpi, uint64_t round,
                         struct steps *steps) {
  struct pair *pair = &steps->pairs[steps->pair_count];
  char hashes[2][32];
  const uint64_t stolen_ms = weft_bench_stolen_ms();
  int status = WEFT_CLI_OK;
  for (uint64_t k = 0; k < 2 && status == WEFT_CLI_OK; k++) {
    const bool on_mpi = (k + round) % 2 == 1;
    status = run_steps(bench, on_mpi ? mpi : NULL, steps,
                       on_mpi ? &pair->mpi_ms : &pair->threads_ms, hashes[on_mpi]);
  }
  steps->stolen_ms += weft_bench_stolen_ms() - stolen_ms;
  if (status == WEFT_CLI_OK && strcmp(hashes[0], hashes[1]) != 0) {
    weft_cli_print(bench->cli, "this is a bug",
                   "bench: %s on two processes of %s comes to other parameters than on two threads",
                   steps->schedule, steps->mpi);
    status = WEFT_CLI_FOUND_BAD;
  }
  steps->pair_count += status == WEFT_CLI_OK;
  return status;
}

static int measure_steps(struct bench *bench, const struct weft_cli_mpi *mpi) {
  struct results *results = bench->results;
  const size_t begin = results->step_count;
  char path[PATH_MAX];
  const bool has_gpt = weft_cli_process_sibling("weft-train", path, sizeof path) != NULL;
  int status = WEFT_CLI_OK;
  for (size_t k = 0; k < (has_gpt ? 2 : 1) * WEFT_ARRAY_LENGTH(schedules); k++) {
    results->steps[results->step_count++] =
        (struct steps){.mpi = mpi->name,
                       .stages = k < WEFT_ARRAY_LENGTH(schedules) ? "spin" : "gpt",
                       .schedule = schedules[k % WEFT_ARRAY_LENGTH(schedules)]};
  }
  for (uint64_t round = 0; round < results->rounds; round++) {
    for (size_t k = begin; k < results->step_count && status == WEFT_CLI_OK; k++) {
      status = measure_round(bench, mpi, round, &results->steps[k]);
    }
  }
  return status;
}

/* ---- All ---- */

/* An MPI that has a launcher but no driver in this build is reported and left out. */
static int measure_all(struct bench *bench) {
  size_t launchers = 0;
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    const struct weft_cli_mpi mpi = weft_cli_mpi_find(k);
    if (mpi.launcher == NULL) {
      continue;
    }
    launchers++;
    int status = measure_messages(bench, &mpi);
    if (status == WEFT_CLI_OK) {
      status = measure_steps(bench, &mpi);
    }
    if (status != WEFT_CLI_OK && status != WEFT_CLI_UNAVAILABLE) {
      return status;
    }
  }
  if (launchers == 0) {
    weft_cli_print(bench->cli, "apt-get install openmpi-bin libopenmpi-dev, and build Weft again",
                   "bench: no MPI is installed here");
  }
  return bench->results->message_count > 0 ? WEFT_CLI_OK : WEFT_CLI_UNAVAILABLE;
}

static int write_tables(struct bench *bench) {
  const char *parent = getenv("TMPDIR");
  int status = WEFT_CLI_OK;
  (void)snprintf(bench->folder, sizeof bench->folder, "%s/weft-bench-XXXXXX",
                 parent != NULL && parent[0] != '\0' ? parent : "/tmp");
  if (mkdtemp(bench->folder) == NULL) {
    bench->folder[0] = '\0';
    weft_cli_print(bench->cli, "see that TMPDIR is a folder that can be written to",
                   "bench: there is no folder for temporary files");
    return WEFT_CLI_IO;
  }
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(schedules) && status == WEFT_CLI_OK; k++) {
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof path, "%s/%s.csv", bench->folder, schedules[k]);
    const char *const command[] = {bench->weft, "gen", schedules[k], "-p", "2",
                                   "-m",        "8",   "-o",         path, NULL};
    struct weft_cli_child child;
    status = run_command(bench, NULL, command, &child);
  }
  return status;
}

static void remove_tables(const struct bench *bench) {
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(schedules) && bench->folder[0] != '\0'; k++) {
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof path, "%s/%s.csv", bench->folder, schedules[k]);
    (void)unlink(path);
  }
  if (bench->folder[0] != '\0') {
    (void)rmdir(bench->folder);
  }
}

int weft_bench_cmd_mpi(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json) {
  struct bench bench = {.cli = cli};
  if (cli->words == NULL || weft_cli_process_file(bench.self, sizeof bench.self) == NULL ||
      weft_cli_process_sibling("weft", bench.weft, sizeof bench.weft) == NULL) {
    weft_cli_print(cli, "start it with mpirun -n 2",
                   "bench: the program weft is not beside this one");
    return WEFT_CLI_UNAVAILABLE;
  }
  bench.results = weft_array_allocate_zero(cli->allocator, 1, sizeof *bench.results);
  if (bench.results == NULL) {
    return weft_cli_fail_memory(cli);
  }
  bench.results->progress = weft_cli_chosen_progress(arguments);
  bench.results->rounds =
      weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, WEFT_BENCH_MPI_ROUNDS);
  (void)snprintf(bench.repeats, sizeof bench.repeats, "%" PRIu64, bench.results->rounds);
  struct weft_bench_affinity before = {.is_known = false};
  bench.results->is_bound = weft_bench_two_cores(bench.results->processors);
  if (bench.results->is_bound) {
    weft_bench_bind(bench.results->processors, 2, &before);
  }
  int status = write_tables(&bench);
  if (status == WEFT_CLI_OK) {
    status = measure_all(&bench);
  }
  weft_bench_unbind(&before);
  remove_tables(&bench);
  if (status == WEFT_CLI_OK && json != NULL) {
    add_json(json, bench.results);
  } else if (status == WEFT_CLI_OK) {
    add_text(text, bench.results);
  }
  weft_array_free(cli->allocator, bench.results, 1, sizeof *bench.results);
  return status;
}

/* ---- As a rank ---- */

static int check_count(const struct weft_cli_job *job) {
  const uint32_t count = job->transport->rank_count;
  return count == 2 ? WEFT_CLI_OK
                    : weft_cli_usage(&job->cli, "start it with mpirun -n 2, or without mpirun",
                                     "bench mpi is for two processes, and there %s %" PRIu32,
                                     count == 1 ? "is" : "are", count);
}

static int report(struct weft_cli_job *job, const struct weft_cli_arguments *arguments,
                  const struct results *results) {
  struct weft_text text = {.allocator = job->cli.allocator};
  struct weft_json json = {.text = &text};
  if (getenv(LINES_MARK) != NULL) {
    for (size_t k = 0; k < WEFT_BENCH_MPI_SIZES; k++) {
      const struct weft_bench_mpi_size *size = &results->messages[0].sizes[k];
      weft_text_addf(&text, "size %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", size->bytes,
                     size->bare_ns, size->weft_ns);
    }
  } else if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    add_json(&json, results);
    weft_json_finish(&json);
  } else {
    add_text(&text, results);
  }
  const int status = weft_cli_write_output(&job->cli, arguments, &text, WEFT_CLI_OK);
  weft_text_finish(&text);
  return status;
}

int weft_bench_mpi_job(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct weft_comm_options options = weft_comm_options_default();
  options.progress = weft_cli_chosen_progress(arguments);
  struct results *results = weft_array_allocate_zero(cli->allocator, 1, sizeof *results);
  struct weft_comm_facts facts;
  struct weft_cli_job job;
  struct weft_error error;
  if (results == NULL) {
    return weft_cli_fail_memory(cli);
  }
  int status = weft_cli_job_begin(&job, cli, "mpi", &options);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_job_agree(&job, check_count(&job));
  }
  if (status == WEFT_CLI_OK) {
    const uint64_t stolen_ms = weft_bench_stolen_ms();
    struct weft_bench_mpi_messages *at = &results->messages[results->message_count++];
    results->rounds = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, WEFT_BENCH_MPI_ROUNDS);
    weft_comm_facts(job.comm, &facts);
    *at = (struct weft_bench_mpi_messages){
        .mpi = facts.implementation, .over = "", .progress = options.progress};
    if (weft_bench_mpi_pingpong(&job, results->rounds, at->sizes, &error) < 0) {
      weft_cli_job_fail(&job, &error);
      status = weft_launch_is_reporter(job.transport) ? weft_cli_fail(&job.cli, NULL, &error)
                                                      : WEFT_CLI_PEER;
    }
    at->stolen_ms = weft_bench_stolen_ms() - stolen_ms;
  }
  if (status == WEFT_CLI_OK && job.transport->rank == 0) {
    status = report(&job, arguments, results);
  }
  weft_array_free(cli->allocator, results, 1, sizeof *results);
  return weft_cli_job_end(&job, status);
}
