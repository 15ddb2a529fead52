/* This process as one rank of a job: its MPI world, what is said by which rank, and how
 * all of them come to one exit status.
 *
 * Every rank reads the same options and files, and finds the same mistakes. So messages
 * are held back until the ranks have met, and said once:
 *
 *     status = weft_cli_job_begin(&job, cli, &options);
 *     if (status == WEFT_CLI_OK) {
 *       status = weft_cli_job_agree(&job, read_all_that(&job.cli));
 *     }
 *     if (status == WEFT_CLI_OK) { ... the work ... }
 *     status = weft_cli_job_end(&job, status);
 */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include <weft/comm.h>

#include "cli/args/option_parser.h"
#include "cli/io/error_message.h"
#include "cli/start_watch.h"

struct weft_cli_job {
  struct weft_cli cli; /* the command's, whose messages name the rank */
  struct weft_mpi *world;
  struct weft_transport *transport; /* this rank's end of it */
  struct weft_mpi_facts facts;

  /* Its own. */
  char who[WEFT_CLI_WHO_SIZE];
  uint32_t others; /* ranks that would say the same as this one, which says it */
  int messages;    /* where they go in the end */
  int held[2];     /* a pipe for those that wait; or -1 */
  int input;       /* of weft_cli_job_share_input(); or -1 */
};

/* Makes the world; waits for all processes, but not longer than two minutes or the seconds
 * in the variable WEFT_START_LIMIT (0: for ever), after which this process ends, having
 * said why. An exit status other than WEFT_CLI_OK has been
 * said, by this rank or by one that refuses. To be ended in either case. */
int weft_cli_job_begin(struct weft_cli_job *job, const struct weft_cli *cli,
                       const struct weft_mpi_options *options);

/* For a process that cannot even begin, because its command line is wrong. The others may
 * have the same one, or be waiting for this process: it joins them, and what is wrong is
 * said as by weft_cli_job_agree(). Returns the exit status. */
int weft_cli_job_refuse(const struct weft_cli *cli, const struct weft_cli_refusal *refusal);

/* Standard input, which launchers give to rank 0 alone, for all ranks: job->cli.input is a
 * copy of it from here on. All ranks call it. */
int weft_cli_job_share_input(struct weft_cli_job *job);

/* All ranks say how they fared. WEFT_CLI_OK when all are well, else the status of the
 * first rank that is not. What was held back is said now, by the first of those who have
 * the same to say. */
int weft_cli_job_agree(struct weft_cli_job *job, int status);

/* Waits until a message is done. */
enum weft_status weft_cli_job_await(struct weft_transport *transport, struct weft_message *message,
                                    struct weft_error *error);

/* All ranks give `size` bytes (at most WEFT_EXCHANGE_MAX) and get those of all; waits. */
enum weft_status weft_cli_job_exchange(struct weft_transport *transport, const void *mine,
                                       void *all, size_t size, struct weft_error *error);
/* The same, but when not all have come within `limit` of the transport's time (0: never)
 * it is over for all: WEFT_ERR_STALLED. */
enum weft_status weft_cli_job_meet(struct weft_transport *transport, const void *mine, void *all,
                                   size_t size, int64_t limit, struct weft_error *error);
/* The same with any number of bytes. */
enum weft_status weft_cli_job_gather(const struct weft_cli_job *job, const void *mine,
                                     uint64_t bytes, void *all, struct weft_error *error);

/* ---- When it fails ---- */

/* Tells the other ranks that this one cannot go on, unless all know already that it is
 * over: none may wait for it. */
void weft_cli_job_give_up(struct weft_cli_job *job, const struct weft_error *error);
/* The same when it has been said here already. */
void weft_cli_job_leave(struct weft_cli_job *job, int status);

/* Whether this rank says what all ranks have agreed went wrong, and writes the dump: the
 * first one but the one to blame, which may be dead; for a signal, who got it. */
bool weft_cli_job_speaks(const struct weft_cli_job *job);
/* In a line, where this rank stood when it ended: for all that do not speak. */
void weft_cli_job_say_stand(const struct weft_cli_job *job);

/* Leaves the world and returns the status. When the world has failed, ends this process
 * with it, and the whole job, and does not return. */
int weft_cli_job_end(struct weft_cli_job *job, int status);

#endif
