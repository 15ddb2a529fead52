/* This process as one rank of a job: its MPI world, one report for all ranks, and one exit
 * status.
 *
 * Every rank reads the same options and files, and finds the same mistakes. So messages are
 * held back until the ranks have compared them, and written once:
 *
 *     status = weft_cli_job_begin(&job, cli, "mpi", &options);
 *     if (status == WEFT_CLI_OK) {
 *       status = weft_cli_job_agree(&job, read_all_that(&job.cli));
 *     }
 *     if (status == WEFT_CLI_OK) { ... the work ... }
 *     status = weft_cli_job_end(&job, status);
 */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include <weft/launch.h>

#include "cli/args/option_parser.h"
#include "cli/io/error_message.h"

struct weft_cli_job {
  struct weft_cli cli; /* the command's, whose messages name the rank */
  struct weft_comm *comm;
  struct weft_transport *transport; /* this rank's endpoint */

  /* Its own. */
  char who[WEFT_CLI_WHO_SIZE]; /* "rank 2: " */
  int messages;                /* the descriptor for messages that are not held back */
  int held;                    /* an anonymous file with those that are; or -1 */
  int input;                   /* of weft_cli_job_share_input(); or -1 */
};

/* What is wrong with a command line: whole messages, and the exit status. */
struct weft_cli_reason {
  int status;
  const char *text;
  size_t size;
};

/* Creates the world, on a transport with a process per rank, waits for all processes
 * (weft_launch_startup_begin) and compares their builds. An exit status other than WEFT_CLI_OK has
 * been reported. Call end() in any case. */
int weft_cli_job_begin(struct weft_cli_job *job, const struct weft_cli *cli, const char *transport,
                       const struct weft_comm_options *options);

/* For a process whose command line is wrong. The others may have the same one, or wait for
 * this process: it joins them, and one rank reports. Returns the exit status. */
int weft_cli_job_report_reason(const struct weft_cli *cli, const struct weft_cli_reason *reason);

/* Standard input, which launchers give to rank 0 only, for all ranks: job->cli.input is a
 * copy of it from here on. All ranks call it. */
int weft_cli_job_share_input(struct weft_cli_job *job);

/* All ranks call it with their status. WEFT_CLI_OK when all are well, else the status of the
 * lowest rank that is not. Of ranks that hold back the same messages, the lowest writes them. */
int weft_cli_job_agree(struct weft_cli_job *job, int status);
/* The same on the way: what ranks say later is held back, too. */
int weft_cli_job_agree_so_far(struct weft_cli_job *job, int status);

/* Waits until a message is done. */
enum weft_status weft_cli_job_await(struct weft_transport *transport, struct weft_message *message,
                                    struct weft_error *error);

/* ---- Failures ---- */

/* Tells the other ranks that this one cannot go on, unless the world has failed already. */
void weft_cli_job_fail(struct weft_cli_job *job, const struct weft_error *error);

/* Writes a line with what this rank was doing, on ranks that are not the reporter
 * (weft_launch_is_reporter). */
void weft_cli_job_report_activity(const struct weft_cli_job *job);

/* Destroys the world and returns the status. When the world has failed, ends the job with it
 * and does not return. */
int weft_cli_job_end(struct weft_cli_job *job, int status);

#endif
