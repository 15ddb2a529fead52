/* What `weft doctor` finds out about MPI: under a launcher where the ranks are, and how fast
 * messages go; without one which MPIs are installed, and whether two processes that each starts
 * exchange messages. */
#ifndef CLI_DOCTOR_MPI_H
#define CLI_DOCTOR_MPI_H

#include <weft/support.h>

#include "cli/io/mpi_launcher.h"
#include "cli/job.h"

/* How fast messages go between two processes; 0: not measured. */
struct weft_cli_ping {
  uint64_t latency_ns; /* of 64 bytes, one way */
  uint64_t bytes_per_s;
};

/* An MPI, tried with two processes. */
struct weft_cli_mpi_trial {
  struct weft_cli_mpi mpi;
  bool tested; /* with two processes */
  bool without_driver;
  char library[200];
  char threading[24];
  char binding[64]; /* of the first of the two processes */
  struct weft_cli_ping ping;
  char message[200]; /* why it does not work; "": it does, or there is none */
};

struct weft_cli_rank_location; /* where a rank is */

struct weft_cli_mpi_findings {
  uint32_t rank_count; /* under a launcher; else 0 */
  struct weft_comm_facts facts;
  struct weft_cli_rank_location *locations; /* [rank_count] */
  struct weft_cli_ping ping;                /* between ranks 0 and 1 */

  struct weft_cli_mpi_trial trials[WEFT_CLI_MPI_COUNT]; /* without one */
};

/* Without a launcher: starts two processes of `weft doctor` under each one that is there; takes at
 * most ten seconds for each. `quick`: only looks which there are. */
void weft_cli_mpi_try(const struct weft_cli *cli, bool quick, struct weft_cli_mpi_findings *found);

/* Under a launcher; all ranks call it. The findings are in the arena. WEFT_CLI_OK, or another
 * exit status after having reported why. */
int weft_cli_mpi_examine(struct weft_cli_job *job, struct weft_arena *arena,
                         struct weft_cli_mpi_findings *found);

/* Whether weft_cli_mpi_try() has started this job; rank 0 then writes these lines for it. */
bool weft_cli_mpi_is_trial(void);
void weft_cli_mpi_add_lines(struct weft_text *text, const struct weft_cli_mpi_findings *found);

void weft_cli_mpi_add(struct weft_text *text, const struct weft_cli_mpi_findings *found);
void weft_cli_mpi_add_json(struct weft_json *json, const struct weft_cli_mpi_findings *found);

#endif
