/* What `weft bench mpi` measures and reports.
 *
 *   bench_mpi.c          the command that is typed: has jobs measured, and threads between
 *                        them
 *   bench_mpi_job.c      a job: two processes, started by this command or by mpirun; or one
 *                        process with two threads
 *   bench_mpi_ping.c     messages there and back, by the transport and by bare MPI
 *   bench_mpi_overlap.c  a transfer beside a compute
 *   bench_mpi_steps.c    steps of a program, on threads or as a rank of a job
 *   bench_mpi_report.c   the tables
 */
#ifndef BENCH_MPI_H
#define BENCH_MPI_H

#include "bench/bench.h"
#include "bench/rank_cores.h"
#include "bench/step_turns.h"
#include "cli/job.h"

enum {
  WEFT_CLI_MPI_SIZES = 8,
  WEFT_CLI_MPI_CASES = 3,
  WEFT_CLI_MPI_RANKS = 2,
  WEFT_CLI_MPI_SAMPLES_MAX = 1200,
  WEFT_CLI_MPI_WAYS_MAX = 8,
  WEFT_CLI_MPI_STEPS_MAX = 32,
  WEFT_CLI_MPI_GPT_STEPS = 5, /* of a round; the first is a warm-up */
  WEFT_CLI_MPI_PAIRS_MAX = WEFT_CLI_BENCH_REPEATS_MAX * (WEFT_CLI_MPI_GPT_STEPS - 1)
};

/* ---- Messages there and back ---- */

/* Half of a round trip: the median of the calmest block. */
struct weft_cli_mpi_size {
  uint64_t bytes;
  uint64_t bare_ns;
  uint64_t start_ns; /* bare, by calls that do not block, with a header's 16 bytes more */
  uint64_t weft_ns;
};

/* ---- A transfer beside a compute ---- */

/* Who computes meanwhile; the other one waits. */
enum weft_cli_mpi_case { WEFT_CLI_MPI_BOTH, WEFT_CLI_MPI_RECEIVER, WEFT_CLI_MPI_SENDER };

/* Of one rank: medians. */
struct weft_cli_mpi_times {
  uint64_t transfer_ns; /* alone */
  uint64_t compute_ns;  /* alone */
  uint64_t both_ns;
};

struct weft_cli_mpi_overlap {
  uint64_t bytes;
  struct weft_cli_mpi_times sender[WEFT_CLI_MPI_CASES], receiver[WEFT_CLI_MPI_CASES];
};

/* By what part of the transfer's own time a rank is longer busy for it. The transfer takes
 * as long as the receiver's: a sender may be done when the system has copied its data. */
double weft_cli_mpi_cost(const struct weft_cli_mpi_overlap *overlap,
                         const struct weft_cli_mpi_times *times);

/* ---- A way for messages: an MPI, what it goes over, who sees to progress ---- */

struct weft_cli_mpi_way {
  const char *mpi;  /* "openmpi" */
  const char *over; /* "memory", "tcp", or "" where mpirun has been told what */
  enum weft_comm_progress progress;
  bool has_sizes, has_overlap;
  struct weft_cli_mpi_size sizes[WEFT_CLI_MPI_SIZES];
  struct weft_cli_mpi_overlap overlap;
  uint64_t stolen_ms;
};

/* ---- Steps: two processes beside two threads ---- */

struct weft_cli_mpi_samples {
  uint32_t count;
  uint64_t ns[WEFT_CLI_MPI_SAMPLES_MAX];
};

enum weft_cli_mpi_kind { WEFT_CLI_MPI_SPIN, WEFT_CLI_MPI_GPT };

/* A few steps of processes that were started for them. */
struct weft_cli_mpi_block {
  /* What is asked for. */
  enum weft_cli_mpi_kind kind;
  char schedule[32];
  struct weft_cli_cores cores;
  char turns[WEFT_CLI_TURN_PATH]; /* of the GPT; "": one step after the other */

  /* What came of it. */
  bool is_bound;                       /* every rank to its core */
  uint64_t hash;                       /* of the model; 0 for cost stages */
  uint64_t simulated_ns;               /* a step, from the times that its computes took */
  struct weft_cli_mpi_samples samples; /* all steps but the first; of turns those who give
                                          them know */

  /* Its own. */
  struct weft_transport *transport; /* of a rank of a job */
  struct weft_cli_turn ranks[WEFT_CLI_MPI_RANKS];
};

/* A step of threads and one of processes, one right after the other; or, of stages that
 * spin, the median steps of two such blocks. */
struct weft_cli_mpi_pair {
  uint64_t threads_ns, processes_ns;
};

struct weft_cli_mpi_steps {
  const char *mpi;
  enum weft_comm_progress progress;
  enum weft_cli_mpi_kind kind;
  const char *schedule;
  struct weft_cli_mpi_samples threads, processes; /* of all blocks */
  struct weft_cli_mpi_pair pairs[WEFT_CLI_MPI_PAIRS_MAX];
  size_t pair_count;
  /* Of each round: a step by what it is simulated to take, from its own computes. */
  double threads_over[WEFT_CLI_BENCH_REPEATS_MAX], processes_over[WEFT_CLI_BENCH_REPEATS_MAX];
  size_t round_count;
  uint64_t stolen_ms;
};

void weft_cli_mpi_add_sample(struct weft_cli_mpi_samples *samples, uint64_t ns);

struct weft_cli_mpi_results {
  struct weft_cli_mpi_way ways[WEFT_CLI_MPI_WAYS_MAX];
  size_t way_count;
  struct weft_cli_mpi_steps steps[WEFT_CLI_MPI_STEPS_MAX];
  size_t step_count;
  uint64_t rounds;
  uint64_t processors;
  struct weft_cli_cores cores; /* of the ranks of steps, on threads and on processes; none:
                                  not in all blocks were they bound */
};

/* ---- As a rank: all ranks call these. An error has been agreed on or is said ---- */

enum weft_status weft_cli_bench_mpi_ping(struct weft_cli_job *job, uint64_t repeats,
                                         struct weft_cli_mpi_way *way, struct weft_error *error);
enum weft_status weft_cli_bench_mpi_overlap(struct weft_cli_job *job, uint64_t repeats,
                                            struct weft_cli_mpi_way *way, struct weft_error *error);
/* The channels of both; once, before them. */
enum weft_status weft_cli_bench_mpi_open(struct weft_cli_job *job, struct weft_error *error);

/* Trains the GPT for a block: weft-train's, which alone has the model (gpt/bench). */
typedef int weft_cli_mpi_trainer(const struct weft_cli *cli, struct weft_cli_job *job,
                                 const struct weft_program *program,
                                 struct weft_cli_mpi_block *block);

/* A rank calls it on its thread before it does anything else, and is bound to its core. */
void weft_cli_mpi_bind_rank(void *block, uint32_t rank);

/* On threads, or where `job` is not NULL as one of its ranks, and then the samples are rank
 * 0's. Each rank is bound before it has memory of its own; afterwards all is as before. OK,
 * or another exit status after printing why. */
int weft_cli_bench_mpi_steps(const struct weft_cli *cli, struct weft_cli_job *job,
                             weft_cli_mpi_trainer *train, struct weft_cli_mpi_block *block);
/* Whether cost stages take exactly the simulated time in virtual time. */
int weft_cli_bench_mpi_check(const struct weft_cli *cli, const char *schedule);

/* ---- Under a launcher (bench_mpi_job.c) ---- */

/* What a job is asked for by the command that starts it, in its environment. */
#define WEFT_CLI_MPI_TASK "WEFT_BENCH_TASK"

/* This process is a rank: measures, and rank 0 delivers a report, or lines for its parent.
 * Or it has been asked for steps of threads. `train`: NULL where the GPT is not there. */
int weft_cli_bench_mpi_job(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                           weft_cli_mpi_trainer *train);

/* What it measures by default, as lines and back. */
void weft_cli_mpi_way_add_lines(struct weft_text *text, const struct weft_cli_mpi_way *way);
/* False when something is missing. */
bool weft_cli_mpi_way_read(const char *lines, struct weft_cli_mpi_way *way);

/* What a block is asked for, as a task, "gpt 1F1B 0,1 PATH" ("-": none), and back. */
enum { WEFT_CLI_MPI_TASK_SIZE = 64 + WEFT_CLI_CORES_TEXT + WEFT_CLI_TURN_PATH };
void weft_cli_mpi_block_write_task(const struct weft_cli_mpi_block *block,
                                   char task[WEFT_CLI_MPI_TASK_SIZE]);
bool weft_cli_mpi_block_read_task(const char *task, struct weft_cli_mpi_block *block);
/* What came of it; samples are added to those that there are. */
void weft_cli_mpi_block_add_lines(struct weft_text *text, const struct weft_cli_mpi_block *block);
bool weft_cli_mpi_block_read(const char *lines, struct weft_cli_mpi_block *block);

/* ---- Report ---- */

void weft_cli_bench_add_mpi_text(struct weft_text *text,
                                 const struct weft_cli_mpi_results *results);
void weft_cli_bench_add_mpi_json(struct weft_json *json,
                                 const struct weft_cli_mpi_results *results);

#endif
