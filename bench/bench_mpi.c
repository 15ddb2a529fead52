/* `weft bench mpi`: a ping-pong between two processes, by the transport and by MPI_Send and MPI_Recv
 * alone, in blocks that alternate. Other work on the machine only delays, so the fastest block
 * counts.
 *
 * Without a launcher the command starts itself once more under each installed MPI, with a time limit
 * and on the same two cores, and reads what rank 0 has measured. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/bench_clock.h"
#include "bench/two_cores.h"
#include "cli/args/option_parser.h"
#include "cli/io/child_process.h"
#include "cli/io/error_message.h"
#include "cli/io/mpi_launcher.h"
#include "cli/io/output_file.h"
#include "cli/job.h"

enum {
  SIZES = 8, /* from 8 bytes, each GROWTH times the one before */
  GROWTH = 8,
  REPEATS = 3,
  BLOCKS_PER_REPEAT = 5,
  ROUNDS_MAX = 200, /* of a block */
  ROUNDS_MIN = 4,
  BLOCK_BYTES = 32 * 1024 * 1024,
  BLOCK_NS = 50 * 1000 * 1000,
  SLOW_NS = 400 * 1000 * 1000, /* for two rounds: one block is enough */
  LIMIT_MS = 120 * 1000        /* of a job */
};

/* In the environment of a job: rank 0 writes lines for weft_bench_cmd_mpi() and no report. */
#define LINES_MARK "WEFT_BENCH_LINES"

/* Half of a round trip: the median of the fastest block. */
struct size {
  uint64_t bytes;
  uint64_t ns[2]; /* of the transport; of MPI alone */
};

/* What one job measures. */
struct way {
  const char *mpi;  /* "openmpi" */
  const char *over; /* "memory", or "" where mpirun was started by the user */
  struct size sizes[SIZES];
  uint64_t stolen_ms;
};

struct results {
  enum weft_comm_progress progress;
  uint64_t repeats;
  struct way ways[WEFT_CLI_MPI_COUNT];
  size_t way_count;
  bool is_bound;
  uint32_t processors[2]; /* that all runs are restricted to */
};

/* In the order of the option's choices, of which the first is the default. */
static enum weft_comm_progress chosen_progress(const struct weft_cli_arguments *arguments) {
  return arguments->choices[WEFT_CLI_OPTION_PROGRESS] == 0 ? WEFT_COMM_PROGRESS_CALLS
                                                           : WEFT_COMM_PROGRESS_THREAD;
}

static const char *progress_name(enum weft_comm_progress progress) {
  return progress == WEFT_COMM_PROGRESS_THREAD ? "thread" : "calls";
}

static double quotient(double a, double b) { return b > 0 ? a / b : 0; }

/* ---- The report ---- */

static void add_text(struct weft_text *text, const struct results *results) {
  weft_text_addf(text, "weft %s, bench mpi: checked: every message arrives as it was sent\n\n",
                 weft_version());
  weft_text_addf(text, "%-8s %-7s %-8s %9s %10s %10s %9s %9s\n", "messages", "over", "progress",
                 "bytes", "bare us", "weft us", "weft MB/s", "of bare");
  for (size_t k = 0; k < results->way_count * SIZES; k++) {
    const struct way *way = &results->ways[k / SIZES];
    const struct size *size = &way->sizes[k % SIZES];
    const double weft_ns = (double)size->ns[0], bare_ns = (double)size->ns[1];
    weft_text_addf(text, "%-8s %-7s %-8s %9" PRIu64 " %10.3f %10.3f %9.1f %7.1f %%\n", way->mpi,
                   way->over, progress_name(results->progress), size->bytes, bare_ns / 1e3,
                   weft_ns / 1e3, 1e3 * quotient((double)size->bytes, weft_ns),
                   100 * quotient(bare_ns, weft_ns));
  }
  weft_text_add(text,
                "  Half of a round trip, by MPI_Send and MPI_Recv alone and by the transport, "
                "interleaved;\n  the median of the fastest block of each.\n");
}

static void add_json_way(struct weft_json *json, const struct way *way, const char *progress) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "mpi", way->mpi);
  weft_json_string(json, "over", way->over);
  weft_json_string(json, "progress", progress);
  weft_json_number(json, "stolen_ms", way->stolen_ms);
  weft_json_open(json, "messages", '[');
  for (size_t i = 0; i < SIZES; i++) {
    const struct size *size = &way->sizes[i];
    weft_json_open(json, NULL, '{');
    weft_json_number(json, "bytes", size->bytes);
    weft_json_number(json, "bare_ns", size->ns[1]);
    weft_json_number(json, "weft_ns", size->ns[0]);
    weft_json_real(json, "of_bare", quotient((double)size->ns[1], (double)size->ns[0]));
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

static void add_json(struct weft_json *json, const struct results *results) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-mpi/1");
  weft_json_string(json, "version", weft_version());
  weft_json_number(json, "rounds", results->repeats);
  weft_json_open(json, "ways", '[');
  for (size_t k = 0; k < results->way_count; k++) {
    add_json_way(json, &results->ways[k], progress_name(results->progress));
  }
  weft_json_close(json, ']');
  weft_json_open(json, "rank_processors", '[');
  for (size_t k = 0; k < 2 && results->is_bound; k++) {
    weft_json_number(json, NULL, results->processors[k]);
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

/* ---- The ping-pong, on a rank ---- */

struct pingpong {
  struct weft_cli_job *job;
  uint32_t channel; /* from rank 0; the next one is the way back */
  struct weft_message sent, received;
  uint64_t round_ns[ROUNDS_MAX];
};

/* In the order of MPI_Send and MPI_Recv: rank 0 sends first. */
static enum weft_status run_round(struct pingpong *at, struct weft_error *error) {
  struct weft_transport *transport = at->job->transport;
  const struct weft_transport_ops *ops = transport->ops;
  const uint32_t rank = transport->rank;
  if (rank == 0) {
    WEFT_TRY(ops->post(transport, at->channel, true, &at->sent, error));
  }
  WEFT_TRY(ops->post(transport, at->channel + 1 - rank, false, &at->received, error));
  WEFT_TRY(weft_cli_job_await(transport, &at->received, error));
  if (rank == 1) {
    WEFT_TRY(ops->post(transport, at->channel + 1, true, &at->sent, error));
  }
  return weft_cli_job_await(transport, &at->sent, error);
}

/* A block of rounds, by the transport or by MPI alone; *half_ns: half of the median round trip. */
static enum weft_status run_block(struct pingpong *at, uint64_t rounds, bool bare,
                                  uint64_t *half_ns, struct weft_error *error) {
  for (uint64_t k = 0; k < rounds; k++) {
    const uint64_t begin = weft_bench_now_ns();
    if (bare) {
      WEFT_TRY(weft_comm_pingpong(at->job->comm, at->sent.data, at->received.data,
                                  at->sent.header.bytes, &at->round_ns[k], error));
    } else {
      WEFT_TRY(run_round(at, error));
      at->round_ns[k] = weft_bench_now_ns() - begin;
    }
  }
  *half_ns = weft_bench_median(at->round_ns, rounds) / 2;
  return WEFT_OK;
}

static unsigned char pattern(uint64_t place, uint32_t rank) {
  return (unsigned char)(place * 7 + place / 251 + rank * 101);
}

/* One round with content, by each way: it must be the other rank's. */
static enum weft_status check_content(struct pingpong *at, struct weft_error *error) {
  const uint32_t rank = at->job->transport->rank;
  unsigned char *out = at->sent.data, *in = at->received.data;
  uint64_t half_ns;
  for (int bare = 0; bare < 2; bare++) {
    for (uint64_t k = 0; k < at->sent.header.bytes; k++) {
      out[k] = pattern(k, rank);
      in[k] = 0;
    }
    WEFT_TRY(run_block(at, 1, bare != 0, &half_ns, error));
    for (uint64_t k = 0; k < at->sent.header.bytes; k++) {
      if (in[k] != pattern(k, 1 - rank)) {
        return weft_fail(error, WEFT_ERR_PROTOCOL, "this is a bug",
                         "bench: a message arrives with another content");
      }
    }
  }
  return WEFT_OK;
}

static enum weft_status measure_size(struct pingpong *at, uint64_t blocks, struct size *size,
                                     struct weft_error *error) {
  uint64_t took_ns = weft_bench_now_ns(), all[2], half_ns;
  WEFT_TRY(check_content(at, error));
  took_ns = weft_bench_now_ns() - took_ns;
  /* Fewer rounds where the network is slow, as rank 0 has found. */
  WEFT_TRY(weft_allgather(at->job->transport, &took_ns, all, sizeof took_ns, 0, error));
  const uint64_t by_time = 2 * (uint64_t)BLOCK_NS / (all[0] > 0 ? all[0] : 1);
  uint64_t rounds = BLOCK_BYTES / size->bytes;
  rounds = rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds < ROUNDS_MIN ? ROUNDS_MIN : rounds;
  rounds = by_time < rounds ? by_time : rounds;
  blocks = all[0] > SLOW_NS ? 1 : blocks;
  for (uint64_t k = 0; k < 2 * (blocks + 1); k++) { /* the first of each is a warm-up */
    uint64_t *fastest = &size->ns[1 - k % 2];
    WEFT_TRY(run_block(at, rounds > 0 ? rounds : 1, k % 2 == 0, &half_ns, error));
    *fastest = k >= 2 && (*fastest == 0 || half_ns < *fastest) ? half_ns : *fastest;
  }
  return WEFT_OK;
}

static enum weft_status measure_all_sizes(struct weft_cli_job *job, uint64_t repeats,
                                          struct size *sizes, struct weft_error *error) {
  struct weft_channel_end ends[2 * SIZES];
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; k < 2 * SIZES; k++) {
    sizes[k / 2].bytes = k < 2 ? 8 : sizes[k / 2 - 1].bytes * GROWTH;
    ends[k] = (struct weft_channel_end){.channel = k,
                                        .peer = 1 - job->transport->rank,
                                        .sends = k % 2 == job->transport->rank,
                                        .depth = 1,
                                        .bytes_max = sizes[k / 2].bytes};
  }
  const uint64_t largest = sizes[SIZES - 1].bytes;
  WEFT_TRY(job->transport->ops->open(job->transport, ends, 2 * SIZES, error));
  unsigned char *memory = weft_array_allocate_zero(job->cli.allocator, 2, (size_t)largest);
  if (memory == NULL) {
    return weft_fail_memory(error, 2 * (size_t)largest);
  }
  for (uint32_t k = 0; k < SIZES && status == WEFT_OK; k++) {
    const uint64_t bytes = sizes[k].bytes;
    struct pingpong at = {
        .job = job,
        .channel = 2 * k,
        .sent = {.header = {.magic = WEFT_MESSAGE_MAGIC, .protocol = WEFT_PROTOCOL, .bytes = bytes},
                 .data = memory,
                 .capacity = bytes},
        .received = {.data = memory + largest, .capacity = bytes}};
    weft_message_seal(&at.sent);
    status = measure_size(&at, repeats * BLOCKS_PER_REPEAT, &sizes[k], error);
  }
  weft_array_free(job->cli.allocator, memory, 2, (size_t)largest);
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

static int report(const struct weft_cli_job *job, const struct weft_cli_arguments *arguments,
                  const struct results *results) {
  struct weft_text text = {.allocator = job->cli.allocator};
  struct weft_json json = {.text = &text};
  if (getenv(LINES_MARK) != NULL) {
    for (size_t k = 0; k < SIZES; k++) {
      const struct size *size = &results->ways[0].sizes[k];
      weft_text_addf(&text, "size %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", size->bytes, size->ns[0],
                     size->ns[1]);
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
  struct results results = {.progress = options.progress,
                            .repeats = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS),
                            .way_count = 1};
  struct way *way = &results.ways[0];
  struct weft_comm_facts facts;
  struct weft_cli_job job;
  struct weft_error error;
  int status = weft_cli_job_begin(&job, cli, "mpi", &options);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_job_agree(&job, check_count(&job));
  }
  if (status == WEFT_CLI_OK) {
    const uint64_t stolen_ms = weft_bench_stolen_ms();
    weft_comm_facts(job.comm, &facts);
    way->mpi = facts.implementation;
    way->over = "";
    if (measure_all_sizes(&job, results.repeats, way->sizes, &error) < 0) {
      weft_cli_job_fail(&job, &error);
      status = weft_launch_is_reporter(job.transport) ? weft_cli_fail(&job.cli, NULL, &error)
                                                      : WEFT_CLI_PEER;
    }
    way->stolen_ms = weft_bench_stolen_ms() - stolen_ms;
  }
  if (status == WEFT_CLI_OK && job.transport->rank == 0) {
    status = report(&job, arguments, &results);
  }
  return weft_cli_job_end(&job, status);
}

/* ---- The command: a job for each MPI ---- */

/* Runs `weft bench mpi` as two processes of an MPI, and reads what it writes. */
static int measure_way(const struct weft_cli *cli, const struct weft_cli_mpi *mpi,
                       struct results *results) {
  static const char *const environment[] = {
      LINES_MARK, "1", "OMPI_ALLOW_RUN_AS_ROOT", "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", NULL};
  char self[PATH_MAX], repeats[24];
  const char *words[WEFT_CLI_MPI_WORDS_MAX];
  const char *const command[] = {
      weft_cli_process_file(self, sizeof self), "bench", "mpi", "--repeats", repeats, "--progress",
      progress_name(results->progress),         NULL};
  struct way *way = &results->ways[results->way_count];
  (void)snprintf(repeats, sizeof repeats, "%" PRIu64, results->repeats);
  weft_cli_mpi_two_processes(mpi, true, command, words);
  struct weft_cli_child child = {.words = words, .sets = environment, .limit_ms = LIMIT_MS};
  const uint64_t stolen_ms = weft_bench_stolen_ms();
  weft_cli_child_run(&child);
  if (child.timed_out || child.status != 0) {
    const char *line = child.output + strspn(child.output, "\n- "); /* launchers draw rulers */
    char ended[48];
    (void)snprintf(ended, sizeof ended,
                   child.timed_out ? "had not ended after %d s" : "ended with status %d",
                   child.timed_out ? LIMIT_MS / 1000 : child.status);
    weft_cli_print(cli, "'weft doctor' checks MPI", "bench: %s: 'weft bench' %s%s%.*s",
                   mpi->launcher, ended, child.timed_out ? "" : ": ",
                   child.timed_out ? 0 : (int)strcspn(line, "\n"), line);
    return child.status == WEFT_CLI_UNAVAILABLE ? WEFT_CLI_UNAVAILABLE : WEFT_CLI_PEER;
  }
  *way = (struct way){
      .mpi = mpi->name, .over = "memory", .stolen_ms = weft_bench_stolen_ms() - stolen_ms};
  const char *line = child.output;
  for (size_t k = 0; k < SIZES; k++) {
    struct size *size = &way->sizes[k];
    line = strstr(line, "size ");
    if (line == NULL || sscanf(line, "size %" SCNu64 " %" SCNu64 " %" SCNu64, &size->bytes,
                               &size->ns[0], &size->ns[1]) != 3) {
      weft_cli_print(cli, "this is a bug",
                     "bench: 'weft bench mpi' has not written what it measured");
      return WEFT_CLI_FOUND_BAD;
    }
    line++;
  }
  results->way_count++;
  return WEFT_CLI_OK;
}

/* An MPI that has a launcher but no driver in this build is reported and left out. */
static int measure_all(const struct weft_cli *cli, struct results *results) {
  size_t launchers = 0;
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    const struct weft_cli_mpi mpi = weft_cli_mpi_find(k, true);
    if (mpi.launcher == NULL) {
      continue;
    }
    launchers++;
    const int status = measure_way(cli, &mpi, results);
    if (status != WEFT_CLI_OK && status != WEFT_CLI_UNAVAILABLE) {
      return status;
    }
  }
  if (launchers == 0) {
    weft_cli_print(cli, "apt-get install openmpi-bin libopenmpi-dev, and build Weft again",
                   "bench: no MPI is installed here");
  }
  return results->way_count > 0 ? WEFT_CLI_OK : WEFT_CLI_UNAVAILABLE;
}

int weft_bench_cmd_mpi(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json) {
  struct results results = {
      .progress = chosen_progress(arguments),
      .repeats = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS)};
  struct weft_bench_affinity before = {.is_known = false};
  char self[PATH_MAX];
  if (cli->words == NULL || weft_cli_process_file(self, sizeof self) == NULL) {
    weft_cli_print(cli, "start it with mpirun -n 2",
                   "bench: this program does not know where it is");
    return WEFT_CLI_UNAVAILABLE;
  }
  results.is_bound = weft_bench_two_cores(results.processors);
  if (results.is_bound) {
    weft_bench_bind(results.processors, 2, &before);
  }
  const int status = measure_all(cli, &results);
  weft_bench_unbind(&before);
  if (status == WEFT_CLI_OK && json != NULL) {
    add_json(json, &results);
  } else if (status == WEFT_CLI_OK) {
    add_text(text, &results);
  }
  return status;
}
