/* Messages of a rank, held back until it is known who says them (cli/job.h). */
#ifndef CLI_JOB_WORDS_H
#define CLI_JOB_WORDS_H

#include "cli/job.h"

/* From here on messages wait. They do not name the rank, so that ranks can find out
 * whether they say the same. */
void weft_cli_job_hold(struct weft_cli_job *job);
/* Checksum of what waits; 0: nothing does. */
uint64_t weft_cli_job_held(struct weft_cli_job *job);
/* What waits is said, or dropped; later messages do not wait. Nothing happens when
 * messages are not held. */
enum weft_cli_job_saying {
  WEFT_CLI_JOB_DROP,
  WEFT_CLI_JOB_SAY,        /* in this rank's name */
  WEFT_CLI_JOB_SAY_FOR_ALL /* in nobody's */
};
void weft_cli_job_release(struct weft_cli_job *job, enum weft_cli_job_saying saying);

#endif
