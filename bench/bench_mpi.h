/* What `weft bench mpi` measures: a ping-pong between two processes against bare MPI.
 *
 *   bench_mpi.c            the command: starts jobs, and reports
 *   bench_mpi_pingpong.c   a rank of a job that measures messages
 */
#ifndef BENCH_BENCH_MPI_H
#define BENCH_BENCH_MPI_H

#include "bench/bench.h"
#include "cli/job.h"

enum { WEFT_BENCH_MPI_SIZES = 8, WEFT_BENCH_MPI_ROUNDS = 3 };

/* Half of a round trip: the median of the fastest block. */
struct weft_bench_mpi_size {
  uint64_t bytes;
  uint64_t bare_ns; /* MPI_Send and MPI_Recv */
  uint64_t weft_ns;
};

/* Messages of one MPI. */
struct weft_bench_mpi_messages {
  const char *mpi;  /* "openmpi" */
  const char *over; /* "memory", or "" where mpirun was started by the user */
  enum weft_comm_progress progress;
  struct weft_bench_mpi_size sizes[WEFT_BENCH_MPI_SIZES];
  uint64_t stolen_ms;
};

/* Both ranks of the job call it. `repeats`: more of them give more blocks. */
enum weft_status weft_bench_mpi_pingpong(struct weft_cli_job *job, uint64_t repeats,
                                         struct weft_bench_mpi_size *sizes,
                                         struct weft_error *error);

/* `weft bench mpi` as a process that a launcher has started: measures messages of that job, and
 * rank 0 reports. */
int weft_bench_mpi_job(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);

#endif
