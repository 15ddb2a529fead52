/* `weft bench mpi`: two processes on MPI beside two threads, and messages beside bare MPI.
 *
 * Processes are started anew for every block of measurements, by the launcher of each MPI
 * that is installed, for a limited time; threads are measured in this process in between,
 * when no other is there. None of them is bound to a core. */
#define _DEFAULT_SOURCE /* _SC_NPROCESSORS_ONLN */
#include "cli/bench_mpi.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench_clock.h"
#include "cli/child_process.h"
#include "cli/doctor_mpi.h"
#include "cli/message.h"
#ifdef WEFT_HAS_TRAINER
#include "cli/sample_text.h"
#endif

enum { ROUNDS = 3, LIMIT_MS = 120 * 1000, WORDS_MAX = 24 };

static const char *const schedules[] = {"1F1B", "ZBVZeroBubble"};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

struct bench {
  const struct weft_cli *cli;
  struct weft_cli_mpi_results *results;
  char command[PATH_MAX];
  char repeats[24];
};

/* ---- A job ---- */

static const char *progress_name(enum weft_mpi_progress progress) {
  return progress == WEFT_MPI_THREAD ? "thread" : "calls";
}

/* Its first line of sense: launchers wrap theirs in rulers. */
static int fail_job(const struct weft_cli *cli, const struct weft_cli_child *child,
                    const char *launcher) {
  const char *line = child->output;
  while (*line == '\n' || *line == '-' || *line == ' ') {
    line++;
  }
  if (child->timed_out) {
    weft_cli_say(cli, "does 'weft doctor' say that it works?",
                 "bench: two processes of %s had not ended after %d s", launcher, LIMIT_MS / 1000);
  } else {
    weft_cli_say(cli, "does 'weft doctor' say that it works?",
                 "bench: two processes of %s ended with status %d: %.*s", launcher, child->status,
                 (int)strcspn(line, "\n"), line);
  }
  return child->status == WEFT_CLI_UNAVAILABLE ? WEFT_CLI_UNAVAILABLE : WEFT_CLI_PEER;
}

static const char *const open_words[] = {"--oversubscribe", "--bind-to", "none", NULL};
static const char *const open_tcp_words[] = {
    "--oversubscribe", "--bind-to", "none",     "--mca", "pml", "ob1",
    "--mca",           "btl",       "tcp,self", NULL};
static const char *const no_words[] = {NULL};

static const char *const *launcher_words(const struct weft_cli_mpi *mpi, const char *over) {
  if (strcmp(mpi->name, "openmpi") != 0) {
    return no_words;
  }
  return strcmp(over, "tcp") == 0 ? open_tcp_words : open_words;
}

/* Two processes of this command, with a task. */
static int run_job(const struct bench *bench, const struct weft_cli_mpi *mpi, const char *over,
                   enum weft_mpi_progress progress, const char *task,
                   struct weft_cli_child *child) {
  const char *const sets[] = {WEFT_CLI_MPI_TASK,
                              task,
                              "OMPI_ALLOW_RUN_AS_ROOT",
                              "1",
                              "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                              "1",
                              "WEFT_MPI_LETTERBOX", /* all over TCP, then */
                              strcmp(over, "tcp") == 0 ? "0" : "1",
                              NULL};
  const char *words[WORDS_MAX] = {mpi->launcher};
  const char *const last[] = {"-n",           "2",          bench->command,
                              "bench",        "mpi",        "--repeats",
                              bench->repeats, "--progress", progress_name(progress)};
  size_t count = 1;
  for (const char *const *word = launcher_words(mpi, over); *word != NULL; word++) {
    words[count++] = *word;
  }
  for (size_t k = 0; k < sizeof last / sizeof last[0]; k++) {
    words[count++] = last[k];
  }
  *child = (struct weft_cli_child){.words = words, .sets = sets, .limit_ms = LIMIT_MS};
  weft_cli_child_run(child);
  child->words = child->sets = NULL;
  return child->timed_out || child->status != 0 ? fail_job(bench->cli, child, mpi->launcher)
                                                : WEFT_CLI_OK;
}

static int fail_lines(const struct weft_cli *cli, const struct weft_cli_mpi *mpi) {
  weft_cli_say(cli, "this is a bug", "bench: two processes of %s have not said what they measured",
               mpi->launcher);
  return WEFT_CLI_FOUND_BAD;
}

/* ---- Messages and transfers ---- */

static int measure_way(struct bench *bench, const struct weft_cli_mpi *mpi, const char *over,
                       enum weft_mpi_progress progress) {
  struct weft_cli_mpi_way *way = &bench->results->ways[bench->results->way_count++];
  struct weft_cli_child child;
  const uint64_t stolen_ms = weft_cli_stolen_ms();
  *way = (struct weft_cli_mpi_way){.mpi = mpi->name, .over = over, .progress = progress};
  const int status = run_job(bench, mpi, over, progress, "messages", &child);
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
                         k % 2 == 0 ? WEFT_MPI_CALLS : WEFT_MPI_THREAD);
  }
  return status;
}

/* ---- Steps ---- */

static int fail_hash(const struct weft_cli *cli, const struct weft_cli_mpi_steps *steps) {
  weft_cli_say(cli, "this is a bug",
               "bench: %s on two processes of %s comes to other parameters than on two threads",
               steps->schedule, steps->mpi);
  return WEFT_CLI_FOUND_BAD;
}

/* Threads, then processes; after every block the parameters must be the same. */
static int measure_steps(struct bench *bench, const struct weft_cli_mpi *mpi,
                         struct weft_cli_mpi_steps *steps) {
  const uint64_t stolen_ms = weft_cli_stolen_ms();
  struct weft_cli_child child;
  char task[64];
  uint64_t hash = 0, other = 0;
  (void)snprintf(task, sizeof task, "%s %s", steps->kind == WEFT_CLI_MPI_GPT ? "gpt" : "spin",
                 steps->schedule);
  int status = weft_cli_bench_mpi_steps(bench->cli, NULL, steps->kind, steps->schedule,
                                        &steps->threads, &hash);
  if (status == WEFT_CLI_OK) {
    status = run_job(bench, mpi, "memory", steps->progress, task, &child);
  }
  if (status == WEFT_CLI_OK && !weft_cli_mpi_steps_read(child.output, &steps->processes, &other)) {
    status = fail_lines(bench->cli, mpi);
  }
  steps->stolen_ms += weft_cli_stolen_ms() - stolen_ms;
  return status == WEFT_CLI_OK && hash != other ? fail_hash(bench->cli, steps) : status;
}

static void add_steps(struct bench *bench, const struct weft_cli_mpi *mpi,
                      enum weft_cli_mpi_kind kind) {
  for (size_t k = 0; k < 2 * (size_t)SCHEDULES; k++) {
    bench->results->steps[bench->results->step_count++] =
        (struct weft_cli_mpi_steps){.mpi = mpi->name,
                                    .progress = k < SCHEDULES ? WEFT_MPI_CALLS : WEFT_MPI_THREAD,
                                    .kind = kind,
                                    .schedule = schedules[k % SCHEDULES]};
  }
}

static int measure_rounds(struct bench *bench, const struct weft_cli_mpi *mpi, size_t begin) {
  int status = WEFT_CLI_OK;
  for (uint64_t round = 0; round < bench->results->rounds; round++) {
    for (size_t k = begin; k < bench->results->step_count && status == WEFT_CLI_OK; k++) {
      status = measure_steps(bench, mpi, &bench->results->steps[k]);
    }
  }
  return status;
}

/* ---- All ---- */

static int measure_mpi(struct bench *bench, const struct weft_cli_mpi *mpi) {
  const size_t begin = bench->results->step_count;
  if (bench->cli->messages_terminal) {
    weft_cli_say(bench->cli, NULL, "bench: %s, started by %s", mpi->name, mpi->launcher);
  }
  const int status = measure_ways(bench, mpi);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  add_steps(bench, mpi, WEFT_CLI_MPI_SPIN);
#ifdef WEFT_HAS_TRAINER
  add_steps(bench, mpi, WEFT_CLI_MPI_GPT);
#endif
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
    weft_cli_say(bench->cli, "apt-get install openmpi-bin libopenmpi-dev, and build Weft again",
                 "bench: no MPI is installed here");
  }
  return measured > 0 ? WEFT_CLI_OK : WEFT_CLI_UNAVAILABLE;
}

static int prepare(struct bench *bench, const struct weft_cli_arguments *arguments) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (bench->cli->words == NULL ||
      weft_cli_process_file(bench->command, sizeof bench->command) == NULL) {
    weft_cli_say(bench->cli, "start it with mpirun -n 2",
                 "bench: where this command is is unknown");
    return WEFT_CLI_UNAVAILABLE;
  }
#ifdef WEFT_HAS_TRAINER
  weft_cli_choose_kernels(bench->cli);
#endif
  bench->results->rounds = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, ROUNDS);
  bench->results->processors = processors > 0 ? (uint64_t)processors : 0;
  (void)snprintf(bench->repeats, sizeof bench->repeats, "%llu",
                 (unsigned long long)bench->results->rounds);
  return check(bench->cli);
}

int weft_cli_bench_mpi(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_cli_json *json) {
  const struct weft_allocator *allocator = cli->allocator;
  const size_t size = sizeof(struct weft_cli_mpi_results);
  struct bench bench = {.cli = cli};
  bench.results = allocator->reallocate(allocator->context, NULL, 0, size);
  if (bench.results == NULL) {
    return weft_cli_fail_memory(cli);
  }
  memset(bench.results, 0, size);
  int status = prepare(&bench, arguments);
  if (status == WEFT_CLI_OK) {
    status = measure_all(&bench);
  }
  if (status == WEFT_CLI_OK && json != NULL) {
    weft_cli_bench_add_mpi_document(json, bench.results);
  } else if (status == WEFT_CLI_OK) {
    weft_cli_bench_add_mpi_text(text, bench.results);
  }
  (void)allocator->reallocate(allocator->context, bench.results, size, 0);
  return status;
}
