/* What `weft doctor` finds out about MPI: which MPIs are installed, and whether two processes
 * can start and exchange messages; under a launcher, where the ranks are. */
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

void weft_cli_ping_add(struct weft_text *text, const struct weft_cli_ping *ping);
void weft_cli_ping_add_json(struct weft_json *json, const struct weft_cli_ping *ping);

/* ---- Without a launcher: each MPI, tried with two processes ---- */

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

/* Starts two processes of `weft doctor` under each launcher; takes at most ten seconds for
 * each. `quick`: only looks which launchers there are. */
void weft_cli_mpi_try(const struct weft_cli *cli, bool quick,
                      struct weft_cli_mpi_trial trials[WEFT_CLI_MPI_COUNT]);
void weft_cli_mpi_add(struct weft_text *text,
                      const struct weft_cli_mpi_trial trials[WEFT_CLI_MPI_COUNT]);
void weft_cli_mpi_add_json(struct weft_json *json,
                           const struct weft_cli_mpi_trial trials[WEFT_CLI_MPI_COUNT]);

/* ---- Under a launcher ---- */

/* In the environment of the two processes: rank 0 writes lines for weft_cli_mpi_try()
 * instead of the report. */
#define WEFT_CLI_PING_MARK "WEFT_PING"

struct weft_cli_rank_place; /* where a rank is */

struct weft_cli_doctor_job {
  struct weft_comm_facts facts; /* of this rank */
  uint32_t rank_count;
  struct weft_cli_rank_place *places; /* [rank_count] */
  struct weft_cli_ping ping;          /* between ranks 0 and 1 */
};

/* All ranks call it. WEFT_CLI_OK, or another exit status after having reported why. */
int weft_cli_doctor_job_look(struct weft_cli_job *job, struct weft_cli_doctor_job *found);
void weft_cli_doctor_job_finish(struct weft_cli_job *job, struct weft_cli_doctor_job *found);

void weft_cli_doctor_job_add_lines(struct weft_text *text, const struct weft_cli_doctor_job *found);
void weft_cli_doctor_job_add(struct weft_text *text, const struct weft_cli_doctor_job *found);
void weft_cli_doctor_job_add_json(struct weft_json *json, const struct weft_cli_doctor_job *found);

#endif
