/* `weft bench mpi`: two processes on MPI beside two threads, and messages beside bare MPI.
 *
 * Processes are started anew forevery block of measurements, for a limited time: two of
 * them by the launcher of each MPI that is installed, or one with two threads. So both
 * begin alike; in one process, blocks after the first would find memory as those before had
 * left it. For steps each rank has a core of its own, the same for threads and for
 * processes. Launchers are told to bind nothing. */
#define _DEFAULT_SOURCE /* _SC_NPROCESSORS_ONLN */
#include "bench/bench_mpi.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/support.h>

#include "bench/bench_clock.h"
#include "cli/child_process.h"
#include "cli/doctor_mpi.h"
#include "cli/io/error_message.h"

enum { ROUNDS = 3, LIMIT_MS = 120 * 1000, WORDS_MAX = 24 };

static const char *const schedules[] = {"1F1B", "ZBVZeroBubble"};
enum { SCHEDULES = WEFT_ARRAY_LENGTH(schedules) };

struct bench {
  const struct weft_cli *cli;
  struct weft_cli_mpi_results *results;
  struct weft_cli_cores cores; /* of ranks that make steps */
  char command[PATH_MAX];      /* this program, for messages and stages that spin */
  char trainer[PATH_MAX];      /* weft-train, for the GPT; "": there is none */
  char repeats[24];
};

/* ---- Processes ---- */

static const char *progress_name(enum weft_comm_progress progress) {
  return progress == WEFT_COMM_PROGRESS_THREAD ? "thread" : "calls";
}

/* Its first line of sense: launchers wrap theirs in rulers. No MPI: threads. */
static int fail_job(const struct weft_cli *cli, const struct weft_cli_child *child,
                    const struct weft_cli_mpi *mpi) {
  const char *line = child->output;
  const char *who = mpi != NULL ? "two processes of " : "two threads";
  const char *launcher = mpi != NULL ? mpi->launcher : "";
  while (*line == '\n' || *line == '-' || *line == ' ') {
    line++;
  }
  if (child->timed_out) {
    weft_cli_print(cli, "does 'weft doctor' say that it works?",
                   "bench: %s%s had not ended after %d s", who, launcher, LIMIT_MS / 1000);
  } else {
    weft_cli_print(cli, "does 'weft doctor' say that it works?",
                   "bench: %s%s ended with status %d: %.*s", who, launcher, child->status,
                   (int)strcspn(line, "\n"), line);
  }
  return child->status == WEFT_CLI_UNAVAILABLE ? WEFT_CLI_UNAVAILABLE : WEFT_CLI_PEER;
}

static const char *const open_words[] = {"--oversubscribe", "--bind-to", "none", "-n", "2", NULL};
static const char *const open_tcp_words[] = {
    "--oversubscribe", "--bind-to", "none",     "--mca", "pml", "ob1",
    "--mca",           "btl",       "tcp,self", "-n",    "2",   NULL};
static const char *const hydra_words[] = {"-bind-to", "none", "-n", "2", NULL};

static const char *const *launcher_words(const struct weft_cli_mpi *mpi, const char *over) {
  if (strcmp(mpi->name, "openmpi") != 0) {
    return hydra_words;
  }
  return strcmp(over, "tcp") == 0 ? open_tcp_words : open_words;
}

static size_t add_launcher(const struct weft_cli_mpi *mpi, const char *over, const char **words) {
  size_t count = 0;
  words[count++] = mpi->launcher;
  for (const char *const *word = launcher_words(mpi, over); *word != NULL; word++) {
    words[count++] = *word;
  }
  return count;
}

/* Two processes of a program with a task, or, where `mpi` is NULL, one. To be finished. */
static void start_job(const char *program, const struct bench *bench,
                      const struct weft_cli_mpi *mpi, const char *over,
                      enum weft_comm_progress progress, const char *task,
                      struct weft_cli_child *child) {
  const char *const sets[] = {WEFT_CLI_MPI_TASK,
                              task,
                              "OMPI_ALLOW_RUN_AS_ROOT",
                              "1",
                              "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                              "1",
                              NULL};
  const char *words[WORDS_MAX] = {NULL};
  const char *const last[] = {
      program, "bench", "mpi", "--repeats", bench->repeats, "--progress", progress_name(progress)};
  size_t count = mpi != NULL ? add_launcher(mpi, over, words) : 0;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(last); k++) {
    words[count++] = last[k];
  }
  *child = (struct weft_cli_child){.words = words, .sets = sets, .limit_ms = LIMIT_MS};
  weft_cli_child_start(child);
  child->words = child->sets = NULL;
}

static int finish_job(const struct bench *bench, const struct weft_cli_mpi *mpi,
                      struct weft_cli_child *child) {
  weft_cli_child_finish(child);
  return child->timed_out || child->status != 0 ? fail_job(bench->cli, child, mpi) : WEFT_CLI_OK;
}

static int fail_lines(const struct weft_cli *cli, const struct weft_cli_mpi *mpi) {
  weft_cli_print(cli, "this is a bug",
                 "bench: two processes of %s have not said what they measured",
                 mpi != NULL ? mpi->launcher : "weft");
  return WEFT_CLI_FOUND_BAD;
}

/* ---- Messages and transfers ---- */

static int measure_way(struct bench *bench, const struct weft_cli_mpi *mpi, const char *over,
                       enum weft_comm_progress progress) {
  struct weft_cli_mpi_way *way = &bench->results->ways[bench->results->way_count++];
  struct weft_cli_child child;
  const uint64_t stolen_ms = weft_cli_stolen_ms();
  *way = (struct weft_cli_mpi_way){.mpi = mpi->name, .over = over, .progress = progress};
  start_job(bench->command, bench, mpi, over, progress, "messages", &child);
  const int status = finish_job(bench, mpi, &child);
  way->stolen_ms = weft_cli_stolen_ms() - stolen_ms;
  if (status != WEFT_CLI_OK) {
    return status;
  }
  return weft_cli_mpi_way_read(child.output, way) ? WEFT_CLI_OK : fail_lines(bench->cli, mpi);
}

static int measure_ways(struct bench *bench, const struct weft_cli_mpi *mpi) {
  const bool has_tcp = strcmp(mpi->name, "openmpi") == 0;
  int status = WEFT_CLI_OK;
  for (int k = 0; k < (has_tcp ? 4 : 2) && status == WEFT_CLI_OK; k++) {
    status = measure_way(bench, mpi, k < 2 ? "memory" : "tcp",
                         k % 2 == 0 ? WEFT_COMM_PROGRESS_CALLS : WEFT_COMM_PROGRESS_THREAD);
  }
  return status;
}

/* ---- Steps ---- */

static int fail_hash(const struct weft_cli *cli, const struct weft_cli_mpi_steps *steps) {
  weft_cli_print(cli, "this is a bug",
                 "bench: %s on two processes of %s comes to other parameters than on two threads",
                 steps->schedule, steps->mpi);
  return WEFT_CLI_FOUND_BAD;
}

enum { THREADS, PROCESSES, PARTIES };

/* Two parties, at most one of which makes steps. */
struct contest {
  const struct weft_cli_mpi *mpis[PARTIES]; /* of threads none */
  struct weft_cli_mpi_block blocks[PARTIES];
  struct weft_cli_child children[PARTIES];
};

static void start_party(const struct bench *bench, const struct weft_cli_mpi_steps *steps,
                        struct contest *contest, int party) {
  struct weft_cli_mpi_block *block = &contest->blocks[party];
  char task[WEFT_CLI_MPI_TASK_SIZE];
  block->kind = steps->kind;
  block->cores = bench->cores;
  (void)snprintf(block->schedule, sizeof block->schedule, "%s", steps->schedule);
  weft_cli_mpi_block_write_task(block, task);
  start_job(steps->kind == WEFT_CLI_MPI_GPT ? bench->trainer : bench->command, bench,
            contest->mpis[party], "memory", steps->progress, task, &contest->children[party]);
}

static int finish_party(struct bench *bench, struct contest *contest, int party) {
  struct weft_cli_mpi_block *block = &contest->blocks[party];
  const int status = finish_job(bench, contest->mpis[party], &contest->children[party]);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  if (!weft_cli_mpi_block_read(contest->children[party].output, block)) {
    return fail_lines(bench->cli, contest->mpis[party]);
  }
  if (!block->is_bound) {
    bench->results->cores.count = 0;
  }
  return WEFT_CLI_OK;
}

/* ---- Steps of stages that spin: block by block ---- */

static int run_blocks(struct bench *bench, uint64_t round, const struct weft_cli_mpi_steps *steps,
                      struct contest *contest) {
  int status = WEFT_CLI_OK;
  for (int k = 0; k < PARTIES && status == WEFT_CLI_OK; k++) {
    const int party = (k + (int)(round % 2)) % PARTIES;
    start_party(bench, steps, contest, party);
    status = finish_party(bench, contest, party);
  }
  return status;
}

/* ---- Steps of the GPT: in turns ---- */

/* The party that has not made its step, or PARTIES. */
static int run_pair(const struct weft_cli_turns *turns, uint32_t step, struct contest *contest) {
  for (int k = 0; k < PARTIES; k++) {
    const int party = (k + (int)(step % 2)) % PARTIES;
    uint64_t ns;
    if (!weft_cli_turns_give(turns, (uint32_t)party, &contest->children[party], &ns)) {
      return party;
    }
    if (step > 0) {
      weft_cli_mpi_add_sample(&contest->blocks[party].samples, ns);
    }
  }
  return PARTIES;
}

/* Who has failed is finished first, and is who says why. The other one ends when the turns
 * do. */
static int run_parties(struct bench *bench, struct weft_cli_turns *turns,
                       const struct weft_cli_mpi_steps *steps, struct contest *contest) {
  int failed = PARTIES;
  for (int party = 0; party < PARTIES; party++) {
    weft_cli_turns_path(turns, (uint32_t)party, contest->blocks[party].turns);
    start_party(bench, steps, contest, party);
  }
  for (uint32_t step = 0; step < WEFT_CLI_MPI_GPT_STEPS && failed == PARTIES; step++) {
    failed = run_pair(turns, step, contest);
  }
  for (int party = 0; party < PARTIES && failed == PARTIES; party++) {
    weft_cli_turns_let_go(turns, (uint32_t)party);
  }
  const int first = failed == PROCESSES ? PROCESSES : THREADS;
  const int status = finish_party(bench, contest, first);
  weft_cli_turns_close(turns);
  if (status != WEFT_CLI_OK) {
    weft_cli_child_finish(&contest->children[PARTIES - 1 - first]);
    return status;
  }
  return finish_party(bench, contest, PARTIES - 1 - first);
}

static int run_turns(struct bench *bench, const struct weft_cli_mpi_steps *steps,
                     struct contest *contest) {
  struct weft_cli_turns turns;
  if (!weft_cli_turns_open(&turns)) {
    weft_cli_print(bench->cli,
                   "see that TMPDIR is a folder that can be written to, with a short name",
                   "bench: no folder for two named pipes: %s", strerror(errno));
    weft_cli_turns_close(&turns);
    return WEFT_CLI_IO;
  }
  return run_parties(bench, &turns, steps, contest);
}

/* ---- A round ---- */

static uint64_t median_of(const struct weft_cli_mpi_samples *samples) {
  struct weft_cli_mpi_samples sorted = *samples;
  return weft_cli_median(sorted.ns, sorted.count);
}

static void add_pair(struct weft_cli_mpi_steps *steps, uint64_t threads_ns, uint64_t processes_ns) {
  steps->pairs[steps->pair_count++] =
      (struct weft_cli_mpi_pair){.threads_ns = threads_ns, .processes_ns = processes_ns};
}

/* Of the GPT a mean, since what it is simulated with are means of the same steps. */
static double over_simulated(const struct weft_cli_mpi_block *block) {
  const struct weft_cli_mpi_samples *samples = &block->samples;
  double sum = 0;
  for (uint32_t k = 0; k < samples->count; k++) {
    sum += (double)samples->ns[k];
  }
  const double step =
      block->kind == WEFT_CLI_MPI_GPT ? sum / samples->count : (double)median_of(samples);
  return step / (double)block->simulated_ns;
}

static void note_round(struct weft_cli_mpi_steps *steps, const struct contest *contest) {
  const struct weft_cli_mpi_samples *threads = &contest->blocks[THREADS].samples;
  const struct weft_cli_mpi_samples *processes = &contest->blocks[PROCESSES].samples;
  const bool pairs = steps->kind == WEFT_CLI_MPI_GPT; /* else the k-th steps are far apart */
  for (uint32_t k = 0; k < threads->count && k < processes->count; k++) {
    weft_cli_mpi_add_sample(&steps->threads, threads->ns[k]);
    weft_cli_mpi_add_sample(&steps->processes, processes->ns[k]);
    if (pairs) {
      add_pair(steps, threads->ns[k], processes->ns[k]);
    }
  }
  if (!pairs) {
    add_pair(steps, median_of(threads), median_of(processes));
  }
  steps->threads_over[steps->round_count] = over_simulated(&contest->blocks[THREADS]);
  steps->processes_over[steps->round_count] = over_simulated(&contest->blocks[PROCESSES]);
  steps->round_count++;
}

/* Processes of both parties are started anew; in the end their parameters must be the same. */
static int measure_round(struct bench *bench, const struct weft_cli_mpi *mpi, uint64_t round,
                         struct weft_cli_mpi_steps *steps) {
  const uint64_t stolen_ms = weft_cli_stolen_ms();
  struct contest contest = {.mpis = {[PROCESSES] = mpi}};
  const int status = steps->kind == WEFT_CLI_MPI_GPT ? run_turns(bench, steps, &contest)
                                                     : run_blocks(bench, round, steps, &contest);
  steps->stolen_ms += weft_cli_stolen_ms() - stolen_ms;
  if (status != WEFT_CLI_OK) {
    return status;
  }
  note_round(steps, &contest);
  return contest.blocks[THREADS].hash == contest.blocks[PROCESSES].hash
             ? WEFT_CLI_OK
             : fail_hash(bench->cli, steps);
}

static void add_steps(struct bench *bench, const struct weft_cli_mpi *mpi,
                      enum weft_cli_mpi_kind kind) {
  for (size_t k = 0; k < 2 * (size_t)SCHEDULES; k++) {
    bench->results->steps[bench->results->step_count++] = (struct weft_cli_mpi_steps){
        .mpi = mpi->name,
        .progress = k < SCHEDULES ? WEFT_COMM_PROGRESS_CALLS : WEFT_COMM_PROGRESS_THREAD,
        .kind = kind,
        .schedule = schedules[k % SCHEDULES]};
  }
}

static int measure_rounds(struct bench *bench, const struct weft_cli_mpi *mpi, size_t begin) {
  int status = WEFT_CLI_OK;
  for (uint64_t round = 0; round < bench->results->rounds; round++) {
    for (size_t k = begin; k < bench->results->step_count && status == WEFT_CLI_OK; k++) {
      status = measure_round(bench, mpi, round, &bench->results->steps[k]);
    }
  }
  return status;
}

/* ---- All ---- */

static int measure_mpi(struct bench *bench, const struct weft_cli_mpi *mpi) {
  const size_t begin = bench->results->step_count;
  if (bench->cli->messages_terminal) {
    weft_cli_print(bench->cli, NULL, "bench: %s, started by %s", mpi->name, mpi->launcher);
  }
  const int status = measure_ways(bench, mpi);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  add_steps(bench, mpi, WEFT_CLI_MPI_SPIN);
  if (bench->trainer[0] != '\0') {
    add_steps(bench, mpi, WEFT_CLI_MPI_GPT);
  }
  return measure_rounds(bench, mpi, begin);
}

static int check(const struct weft_cli *cli) {
  int status = WEFT_CLI_OK;
  for (size_t k = 0; k < SCHEDULES && status == WEFT_CLI_OK; k++) {
    status = weft_cli_bench_mpi_check(cli, schedules[k]);
  }
  return status;
}

/* An MPI that has a launcher but no driver of this build is passed over, after it has been
 * said. */
static int measure_all(struct bench *bench) {
  struct weft_cli_mpi_results *results = bench->results;
  struct weft_cli_mpi mpi;
  size_t measured = 0, launchers = 0;
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    weft_cli_mpi_find(k, &mpi);
    if (mpi.launcher == NULL) {
      continue;
    }
    const size_t ways = results->way_count, steps = results->step_count;
    const int status = measure_mpi(bench, &mpi);
    launchers++;
    if (status == WEFT_CLI_OK) {
      measured++;
    } else if (status == WEFT_CLI_UNAVAILABLE) {
      results->way_count = ways;
      results->step_count = steps;
    } else {
      return status;
    }
  }
  if (launchers == 0) {
    weft_cli_print(bench->cli, "apt-get install openmpi-bin libopenmpi-dev, and build Weft again",
                   "bench: no MPI is installed here");
  }
  return measured > 0 ? WEFT_CLI_OK : WEFT_CLI_UNAVAILABLE;
}

static int prepare(struct bench *bench, const struct weft_cli_arguments *arguments) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (bench->cli->words == NULL ||
      weft_cli_process_file(bench->command, sizeof bench->command) == NULL) {
    weft_cli_print(bench->cli, "start it with mpirun -n 2",
                   "bench: where this command is is unknown");
    return WEFT_CLI_UNAVAILABLE;
  }
  if (weft_cli_process_sibling("weft-train", bench->trainer, sizeof bench->trainer) == NULL) {
    bench->trainer[0] = '\0';
  }
  bench->results->rounds = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, ROUNDS);
  bench->results->processors = processors > 0 ? (uint64_t)processors : 0;
  bench->cores = bench->results->cores = weft_cli_cores_choose(WEFT_CLI_MPI_RANKS);
  (void)snprintf(bench->repeats, sizeof bench->repeats, "%llu",
                 (unsigned long long)bench->results->rounds);
  return check(bench->cli);
}

int weft_cli_bench_mpi(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json) {
  const struct weft_allocator *allocator = cli->allocator;
  struct bench bench = {.cli = cli};
  bench.results = weft_array_allocate_zero(allocator, 1, sizeof *bench.results);
  if (bench.results == NULL) {
    return weft_cli_fail_memory(cli);
  }
  int status = prepare(&bench, arguments);
  if (status == WEFT_CLI_OK) {
    status = measure_all(&bench);
  }
  if (status == WEFT_CLI_OK && json != NULL) {
    weft_cli_bench_add_mpi_json(json, bench.results);
  } else if (status == WEFT_CLI_OK) {
    weft_cli_bench_add_mpi_text(text, bench.results);
  }
  weft_array_free(allocator, bench.results, 1, sizeof *bench.results);
  return status;
}
