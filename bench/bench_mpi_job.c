/* One of two processes that measure together, or one with two threads. What rank 0 has
 * found it reports, or writes as lines of words and numbers, for the command that has
 * started it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "bench/bench_clock.h"
#include "bench/bench_mpi.h"
#include "cli/args/transport_choice.h"
#include "cli/io/error_message.h"
#include "cli/io/output_file.h"

enum { REPEATS = 3 };

/* ---- Lines ---- */

static void add_times(struct weft_text *text, const char *who, int which,
                      const struct weft_cli_mpi_times *times) {
  weft_text_addf(text, "%s %d %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", who, which,
                 times->transfer_ns, times->compute_ns, times->both_ns);
}

void weft_cli_mpi_way_add_lines(struct weft_text *text, const struct weft_cli_mpi_way *way) {
  for (int k = 0; k < WEFT_CLI_MPI_SIZES && way->has_sizes; k++) {
    weft_text_addf(text, "size %d %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", k,
                   way->sizes[k].bytes, way->sizes[k].bare_ns, way->sizes[k].start_ns,
                   way->sizes[k].weft_ns);
  }
  for (int k = 0; k < WEFT_CLI_MPI_CASES && way->has_overlap; k++) {
    add_times(text, "sender", k, &way->overlap.sender[k]);
    add_times(text, "receiver", k, &way->overlap.receiver[k]);
  }
  weft_text_addf(text, "bytes 0 %" PRIu64 "\n", way->overlap.bytes);
}

/* Where the line of that name and first number goes on; NULL: there is none. */
static const char *find_line(const char *lines, const char *name, int which) {
  char begin[32];
  const int size = snprintf(begin, sizeof begin, "%s %d ", name, which);
  for (const char *at = lines; at != NULL && *at != '\0'; at = strchr(at, '\n')) {
    at += *at == '\n' ? 1 : 0;
    if (strncmp(at, begin, (size_t)size) == 0) {
      return at + size;
    }
  }
  return NULL;
}

static bool read_numbers(const char *at, uint64_t *numbers, size_t count) {
  for (size_t k = 0; k < count; k++) {
    char *end;
    numbers[k] = at != NULL ? strtoull(at, &end, 10) : 0;
    if (at == NULL || end == at) {
      return false;
    }
    at = end;
  }
  return true;
}

static bool read_times(const char *lines, const char *who, int which,
                       struct weft_cli_mpi_times *times) {
  uint64_t found[3];
  if (!read_numbers(find_line(lines, who, which), found, 3)) {
    return false;
  }
  *times = (struct weft_cli_mpi_times){
      .transfer_ns = found[0], .compute_ns = found[1], .both_ns = found[2]};
  return true;
}

bool weft_cli_mpi_way_read(const char *lines, struct weft_cli_mpi_way *way) {
  way->has_sizes = way->has_overlap = true;
  for (int k = 0; k < WEFT_CLI_MPI_SIZES; k++) {
    uint64_t found[4];
    if (!read_numbers(find_line(lines, "size", k), found, 4)) {
      return false;
    }
    way->sizes[k] = (struct weft_cli_mpi_size){
        .bytes = found[0], .bare_ns = found[1], .start_ns = found[2], .weft_ns = found[3]};
  }
  for (int k = 0; k < WEFT_CLI_MPI_CASES; k++) {
    if (!read_times(lines, "sender", k, &way->overlap.sender[k]) ||
        !read_times(lines, "receiver", k, &way->overlap.receiver[k])) {
      return false;
    }
  }
  return read_numbers(find_line(lines, "bytes", 0), &way->overlap.bytes, 1);
}

void weft_cli_mpi_block_write_task(const struct weft_cli_mpi_block *block,
                                   char task[WEFT_CLI_MPI_TASK_SIZE]) {
  char cores[WEFT_CLI_CORES_TEXT];
  weft_cli_cores_write(&block->cores, cores);
  (void)snprintf(task, WEFT_CLI_MPI_TASK_SIZE, "%s %s %s %s",
                 block->kind == WEFT_CLI_MPI_GPT ? "gpt" : "spin", block->schedule,
                 block->cores.count > 0 ? cores : "-", block->turns);
}

bool weft_cli_mpi_block_read_task(const char *task, struct weft_cli_mpi_block *block) {
  char kind[8], cores[WEFT_CLI_CORES_TEXT];
  int begin = -1;
  _Static_assert(WEFT_CLI_CORES_TEXT > 190, "sscanf() below");
  *block = (struct weft_cli_mpi_block){.hash = 0};
  if (sscanf(task, "%7s %31s %190s%n", kind, block->schedule, cores, &begin) != 3 ||
      task[begin] != ' ' || strlen(task + begin + 1) >= sizeof block->turns) {
    return false;
  }
  block->kind = strcmp(kind, "gpt") == 0 ? WEFT_CLI_MPI_GPT : WEFT_CLI_MPI_SPIN;
  memcpy(block->turns, task + begin + 1, strlen(task + begin + 1) + 1);
  return weft_cli_cores_read(strcmp(cores, "-") == 0 ? "" : cores, &block->cores);
}

void weft_cli_mpi_block_add_lines(struct weft_text *text, const struct weft_cli_mpi_block *block) {
  weft_text_addf(text, "hash 0 %" PRIu64 "\nbound 0 %d\nsimulated 0 %" PRIu64 "\n", block->hash,
                 block->is_bound, block->simulated_ns);
  for (uint32_t k = 0; k < block->samples.count; k++) {
    weft_text_addf(text, "step %" PRIu32 " %" PRIu64 "\n", k, block->samples.ns[k]);
  }
}

bool weft_cli_mpi_block_read(const char *lines, struct weft_cli_mpi_block *block) {
  uint64_t ns, bound = 0;
  for (int k = 0; read_numbers(find_line(lines, "step", k), &ns, 1); k++) {
    weft_cli_mpi_add_sample(&block->samples, ns);
  }
  const bool is_whole =
      block->samples.count > 0 && read_numbers(find_line(lines, "hash", 0), &block->hash, 1) &&
      read_numbers(find_line(lines, "simulated", 0), &block->simulated_ns, 1) &&
      block->simulated_ns > 0 && read_numbers(find_line(lines, "bound", 0), &bound, 1);
  block->is_bound = bound != 0;
  return is_whole;
}

/* ---- Measuring ---- */

static int fail(struct weft_cli_job *job, const struct weft_error *error) {
  weft_cli_job_fail(job, error);
  return weft_launch_is_reporter(job->transport) ? weft_cli_fail(&job->cli, NULL, error)
                                                 : WEFT_CLI_PEER;
}

static int measure_way(struct weft_cli_job *job, uint64_t repeats, struct weft_cli_mpi_way *way) {
  const uint64_t stolen_ms = weft_cli_stolen_ms();
  struct weft_error error;
  enum weft_status status = weft_cli_bench_mpi_open(job, &error);
  if (status == WEFT_OK) {
    status = weft_cli_bench_mpi_ping(job, repeats, way, &error);
  }
  if (status == WEFT_OK) {
    status = weft_cli_bench_mpi_overlap(job, repeats, way, &error);
  }
  way->stolen_ms = weft_cli_stolen_ms() - stolen_ms;
  return status < 0 ? fail(job, &error) : WEFT_CLI_OK;
}

/* On the threads of this process, or as a rank of a job. */
static int measure_block(const struct weft_cli *cli, struct weft_cli_job *job,
                         weft_cli_mpi_trainer *train, const char *task, struct weft_text *text) {
  struct weft_cli_mpi_block block;
  if (!weft_cli_mpi_block_read_task(task, &block)) {
    return weft_cli_usage(cli, "unset it", WEFT_CLI_MPI_TASK " is '%.80s'; expected none", task);
  }
  const int status = weft_cli_bench_mpi_steps(cli, job, train, &block);
  if (status == WEFT_CLI_OK && (job == NULL || job->transport->rank == 0)) {
    weft_cli_mpi_block_add_lines(text, &block);
  }
  return status;
}

static int be_threads(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                      weft_cli_mpi_trainer *train, const char *task) {
  struct weft_text text = {.allocator = cli->allocator};
  int status = measure_block(cli, NULL, train, task, &text);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  }
  weft_text_finish(&text);
  return status;
}

/* What is reported by rank 0. */
static void report(const struct weft_cli_mpi_results *results, bool as_lines, bool as_json,
                   struct weft_text *text) {
  if (as_lines) {
    weft_cli_mpi_way_add_lines(text, &results->ways[0]);
  } else if (as_json) {
    struct weft_json json = {.text = text};
    weft_cli_bench_add_mpi_json(&json, results);
    weft_json_finish(&json);
  } else {
    weft_cli_bench_add_mpi_text(text, results);
  }
}

static int measure(struct weft_cli_job *job, const struct weft_cli_arguments *arguments,
                   weft_cli_mpi_trainer *train, struct weft_cli_mpi_results *results,
                   struct weft_text *text) {
  const char *task = getenv(WEFT_CLI_MPI_TASK);
  if (task != NULL && strchr(task, ' ') != NULL) {
    return measure_block(&job->cli, job, train, task, text);
  }
  struct weft_comm_facts facts;
  weft_comm_facts(job->comm, &facts);
  results->ways[0] = (struct weft_cli_mpi_way){
      .mpi = facts.implementation, .over = "", .progress = weft_cli_chosen_progress(arguments)};
  results->way_count = 1;
  results->rounds = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS);
  const int status = measure_way(job, results->rounds, &results->ways[0]);
  if (status == WEFT_CLI_OK) {
    report(results, task != NULL, arguments->given[WEFT_CLI_OPTION_JSON], text);
  }
  return status;
}

static int check_count(const struct weft_cli_job *job) {
  const uint32_t count = job->transport->rank_count;
  return count == WEFT_CLI_MPI_RANKS
             ? WEFT_CLI_OK
             : weft_cli_usage(&job->cli, "start it with mpirun -n 2, or without mpirun",
                              "bench mpi is for two processes, and there %s %" PRIu32,
                              count == 1 ? "is" : "are", count);
}

static int be_rank(struct weft_cli_job *job, const struct weft_cli_arguments *arguments,
                   weft_cli_mpi_trainer *train, struct weft_cli_mpi_results *results) {
  struct weft_text text = {.allocator = job->cli.allocator};
  int status = weft_cli_job_agree(job, check_count(job));
  if (status == WEFT_CLI_OK) {
    status = measure(job, arguments, train, results, &text);
  }
  if (status == WEFT_CLI_OK && job->transport->rank == 0) {
    status = weft_cli_write_output(&job->cli, arguments, &text, WEFT_CLI_OK);
  }
  weft_text_finish(&text);
  return status;
}

int weft_cli_bench_mpi_job(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                           weft_cli_mpi_trainer *train) {
  const struct weft_allocator *allocator = cli->allocator;
  struct weft_comm_options options = weft_comm_options_default();
  options.progress = weft_cli_chosen_progress(arguments);
  const char *task = getenv(WEFT_CLI_MPI_TASK);
  const bool is_launched = weft_launch_info().launcher != NULL;
  struct weft_cli_job job;
  if (!is_launched && task != NULL) {
    return be_threads(cli, arguments, train, task);
  }
  struct weft_cli_mpi_results *results = weft_array_allocate_zero(allocator, 1, sizeof *results);
  if (results == NULL) {
    return weft_cli_fail_memory(cli);
  }
  int status = weft_cli_job_begin(&job, cli, &options);
  if (status == WEFT_CLI_OK) {
    status = be_rank(&job, arguments, train, results);
  }
  weft_array_free(allocator, results, 1, sizeof *results);
  return weft_cli_job_end(&job, status);
}
