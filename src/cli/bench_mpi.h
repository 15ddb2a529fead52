/* What `weft bench mpi` measures and reports.
 *
 *   bench_mpi.c          the command that is typed: has jobs measured, and threads between
 *                        them, or is one process of such a job
 *   bench_mpi_job.c      a job: two processes, started by this command or by mpirun
 *   bench_mpi_ping.c     messages there and back, by the transport and by bare MPI
 *   bench_mpi_overlap.c  a transfer beside a compute
 *   bench_mpi_steps.c    steps of a program, on threads or as a rank of a job
 *   bench_mpi_report.c   the tables
 */
#ifndef CLI_BENCH_MPI_H
#define CLI_BENCH_MPI_H

#include "cli/bench.h"
#include "cli/job.h"

enum {
  WEFT_CLI_MPI_SIZES = 8,
  WEFT_CLI_MPI_CASES = 3,
  WEFT_CLI_MPI_RANKS = 2,
  WEFT_CLI_MPI_SAMPLES_MAX = 1200,
  WEFT_CLI_MPI_WAYS_MAX = 8,
  WEFT_CLI_MPI_STEPS_MAX = 32
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
  enum weft_mpi_progress progress;
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

struct weft_cli_mpi_steps {
  const char *mpi;
  enum weft_mpi_progress progress;
  enum weft_cli_mpi_kind kind;
  const char *schedule;
  struct weft_cli_mpi_samples threads, processes;
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
};

/* ---- As a rank: all ranks call these. An error has been agreed on or is said ---- */

enum weft_status weft_cli_bench_mpi_ping(struct weft_cli_job *job, uint64_t repeats,
                                         struct weft_cli_mpi_way *way, struct weft_error *error);
enum weft_status weft_cli_bench_mpi_overlap(struct weft_cli_job *job, uint64_t repeats,
                                            struct weft_cli_mpi_way *way, struct weft_error *error);
/* The channels of both; once, before them. */
enum weft_status weft_cli_bench_mpi_open(struct weft_cli_job *job, struct weft_error *error);

/* A block of steps, all but the first; on threads, or where `job` is not NULL as one of its
 * ranks, and then the samples are rank 0's. Appends samples; *hash is that of the model,
 * 0 for cost stages. OK, or another exit status after having said why. */
int weft_cli_bench_mpi_steps(const struct weft_cli *cli, struct weft_cli_job *job,
                             enum weft_cli_mpi_kind kind, const char *schedule,
                             struct weft_cli_mpi_samples *samples, uint64_t *hash);
/* Whether cost stages take exactly the simulated time in virtual time. */
int weft_cli_bench_mpi_check(const struct weft_cli *cli, const char *schedule);

/* ---- Under a launcher (bench_mpi_job.c) ---- */

/* What a job is asked for by the command that starts it, in its environment. */
#define WEFT_CLI_MPI_TASK "WEFT_BENCH_TASK"

/* This process is a rank: measures, and rank 0 delivers a report, or lines for its parent. */
int weft_cli_bench_mpi_job(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);

/* What it measures by default, as lines and back. */
void weft_cli_mpi_way_add_lines(struct weft_text *text, const struct weft_cli_mpi_way *way);
/* False when something is missing. */
bool weft_cli_mpi_way_read(const char *lines, struct weft_cli_mpi_way *way);
void weft_cli_mpi_steps_add_lines(struct weft_text *text,
                                  const struct weft_cli_mpi_samples *samples, uint64_t hash);
bool weft_cli_mpi_steps_read(const char *lines, struct weft_cli_mpi_samples *samples,
                             uint64_t *hash);

/* ---- Report ---- */

void weft_cli_bench_add_mpi_text(struct weft_text *text,
                                 const struct weft_cli_mpi_results *results);
void weft_cli_bench_add_mpi_document(struct weft_cli_json *json,
                                     const struct weft_cli_mpi_results *results);

#endif
