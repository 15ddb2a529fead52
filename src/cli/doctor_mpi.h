/* What `weft doctor` finds out about MPI. */
#ifndef CLI_DOCTOR_MPI_H
#define CLI_DOCTOR_MPI_H

#include <weft/support.h>

#include "cli/job.h"

/* How fast messages go between two processes; 0: not measured. */
struct weft_cli_ping {
  uint64_t latency_ns; /* of 64 bytes, one way */
  uint64_t bytes_per_s;
};

enum { WEFT_CLI_PING_BYTES = 64, WEFT_CLI_PING_LARGE = 4 * 1024 * 1024 };

/* Ranks 0 and 1 of the world play; the others pass. All ranks call it, before anything else
 * has opened channels. */
enum weft_status weft_cli_ping(const struct weft_cli_job *job, struct weft_cli_ping *ping,
                               struct weft_error *error);

/* An MPI that this machine may have. */
struct weft_cli_mpi {
  const char *name;     /* "openmpi" */
  const char *package;  /* how to get it */
  const char *launcher; /* "mpirun.openmpi", as it was found; NULL: none */
  bool without_driver;
  char library[200];
  char threading[24];
  char binding[64];  /* of the first of two processes */
  char ucx[160];     /* whether it is switched off, and where */
  char copying[160]; /* what is set about single copies; "": nothing */
  struct weft_cli_ping ping;
  char message[200]; /* why it does not work; "" */
};

enum { WEFT_CLI_MPI_COUNT = 2 };

/* Another process's memory, read as MPIs do it for large messages: "" when that works, else
 * why not. */
void weft_cli_single_copy_check(char *why, size_t size);

/* Whether there is a launcher of the MPI with that number; nothing else is looked at. */
void weft_cli_mpi_find(size_t index, struct weft_cli_mpi *mpi);

/* Looks at all there may be; starts two processes of each, `weft doctor` again, and waits
 * at most ten seconds. */
void weft_cli_mpi_look(const struct weft_cli *cli, bool quick,
                       struct weft_cli_mpi found[WEFT_CLI_MPI_COUNT]);

/* True also where there is none. */
bool weft_cli_mpi_works(const struct weft_cli_mpi *mpi);
/* For the report. `no_copy` as of weft_cli_single_copy_check(). */
void weft_cli_mpi_add(struct weft_text *text, const struct weft_cli_mpi found[WEFT_CLI_MPI_COUNT],
                      const char *no_copy);
void weft_cli_mpi_add_json(struct weft_json *json,
                           const struct weft_cli_mpi found[WEFT_CLI_MPI_COUNT],
                           const char *no_copy);
void weft_cli_ping_add(struct weft_text *text, const struct weft_cli_ping *ping);
void weft_cli_ping_add_json(struct weft_json *json, const struct weft_cli_ping *ping);

/* ---- Under a launcher ---- */

/* What each rank tells of itself; it fits into an exchange. */
struct weft_cli_rank_place {
  char host[56];
  char binding[56];
  uint32_t on_host, ranks_on_host;
};

/* The variable that makes `weft doctor` under a launcher write lines for
 * weft_cli_mpi_look() instead of its report. */
#define WEFT_CLI_PING_MARK "WEFT_PING"

#endif
