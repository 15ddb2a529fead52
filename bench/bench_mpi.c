/* `weft bench mpi`: messages between two processes, against bare MPI.
 *
 * Without a launcher the command starts itself once more under each installed MPI, with a time limit
 * and on the same two cores, and reads what rank 0 has measured. */
#include "bench/bench_mpi.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_clock.h"
#include "bench/two_cores.h"
#include "cli/args/option_parser.h"
#include "cli/io/child_process.h"
#include "cli/io/error_message.h"
#include "cli/io/mpi_launcher.h"
#include "cli/io/output_file.h"

enum { LIMIT_MS = 120 * 1000 };

/* In the environment of a job: rank 0 writes lines for weft_bench_cmd_mpi() and no report. */
#define LINES_MARK "WEFT_BENCH_LINES"

static const char *progress_name(enum weft_comm_progress progress) {
  return progress == WEFT_COMM_PROGRESS_THREAD ? "thread" : "calls";
}

static double quotient(double a, double b) { return b > 0 ? a / b : 0; }

/* ---- Results ---- */

struct results {
  enum weft_comm_progress progress;
  uint64_t rounds;
  struct weft_bench_mpi_messages messages[WEFT_CLI_MPI_COUNT];
  size_t message_count;
  bool is_bound;
  uint32_t processors[2]; /* that all runs are restricted to */
};

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

static void add_text(struct weft_text *text, const struct results *results) {
  weft_text_addf(text, "weft %s, bench mpi: checked: every message arrives as it was sent\n\n",
                 weft_version());
  add_messages(text, results);
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
  weft_json_close(json, '}');
}

/* ---- Commands ---- */

struct bench {
  const struct weft_cli *cli;
  struct results *results;
  char self[PATH_MAX]; /* this program */
  char repeats[24];
};

/* Runs two processes of a command. */
static int run_command(const struct bench *bench, const struct weft_cli_mpi *mpi,
                       const char *const *command, struct weft_cli_child *child) {
  static const char *const environment[] = {
      LINES_MARK, "1", "OMPI_ALLOW_RUN_AS_ROOT", "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", NULL};
  const char *words[WEFT_CLI_MPI_WORDS_MAX];
  weft_cli_mpi_two_processes(mpi, true, command, words);
  *child = (struct weft_cli_child){.words = words, .sets = environment, .limit_ms = LIMIT_MS};
  weft_cli_child_run(child);
  child->words = child->sets = NULL;
  if (!child->timed_out && child->status == 0) {
    return WEFT_CLI_OK;
  }
  const char *line = child->output + strspn(child->output, "\n- "); /* launchers draw rulers */
  if (child->timed_out) {
    weft_cli_print(bench->cli, "'weft doctor' checks MPI",
                   "bench: %s: 'weft %s' had not ended after %d s", mpi->launcher, command[1],
                   LIMIT_MS / 1000);
  } else {
    weft_cli_print(bench->cli, "'weft doctor' checks MPI",
                   "bench: %s: 'weft %s' ended with status %d: %.*s", mpi->launcher, command[1],
                   child->status, (int)strcspn(line, "\n"), line);
  }
  return child->status == WEFT_CLI_UNAVAILABLE ? WEFT_CLI_UNAVAILABLE : WEFT_CLI_PEER;
}

static int fail_output(const struct bench *bench, const char *command) {
  weft_cli_print(bench->cli, "this is a bug", "bench: 'weft %s' has not written what it measured",
                 command);
  return WEFT_CLI_FOUND_BAD;
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
    const int status = measure_messages(bench, &mpi);
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

/* In the order of the option's choices, of which the first is the default. */
static enum weft_comm_progress chosen_progress(const struct weft_cli_arguments *arguments) {
  return arguments->choices[WEFT_CLI_OPTION_PROGRESS] == 0 ? WEFT_COMM_PROGRESS_CALLS
                                                           : WEFT_COMM_PROGRESS_THREAD;
}

int weft_bench_cmd_mpi(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json) {
  struct bench bench = {.cli = cli};
  if (cli->words == NULL || weft_cli_process_file(bench.self, sizeof bench.self) == NULL) {
    weft_cli_print(cli, "start it with mpirun -n 2",
                   "bench: this program does not know where it is");
    return WEFT_CLI_UNAVAILABLE;
  }
  bench.results = weft_array_allocate_zero(cli->allocator, 1, sizeof *bench.results);
  if (bench.results == NULL) {
    return weft_cli_fail_memory(cli);
  }
  bench.results->progress = chosen_progress(arguments);
  bench.results->rounds =
      weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, WEFT_BENCH_MPI_ROUNDS);
  (void)snprintf(bench.repeats, sizeof bench.repeats, "%" PRIu64, bench.results->rounds);
  struct weft_bench_affinity before = {.is_known = false};
  bench.results->is_bound = weft_bench_two_cores(bench.results->processors);
  if (bench.results->is_bound) {
    weft_bench_bind(bench.results->processors, 2, &before);
  }
  const int status = measure_all(&bench);
  weft_bench_unbind(&before);
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
  options.progress = chosen_progress(arguments);
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
