/* `weft doctor` as one of several processes that a launcher has started. */
#ifndef CLI_DOCTOR_JOB_H
#define CLI_DOCTOR_JOB_H

#include "cli/doctor_mpi.h"

/* Where the ranks are, and how fast messages go between the first two. */
struct weft_cli_doctor_job {
  struct weft_comm_facts facts; /* of this rank */
  uint32_t rank_count;
  struct weft_cli_rank_place *places; /* [rank_count] */
  struct weft_cli_ping ping;
};

/* All ranks call it. WEFT_CLI_OK or another exit status after printing why. */
int weft_cli_doctor_job_look(struct weft_cli_job *job, struct weft_cli_doctor_job *found);
void weft_cli_doctor_job_finish(struct weft_cli_job *job, struct weft_cli_doctor_job *found);

/* As lines of a key and a value, for weft_cli_mpi_look(). */
void weft_cli_doctor_job_add_lines(struct weft_text *text, const struct weft_cli_doctor_job *found);
/* For the report. */
void weft_cli_doctor_job_add(struct weft_text *text, const struct weft_cli_doctor_job *found);
void weft_cli_doctor_job_add_json(struct weft_json *json, const struct weft_cli_doctor_job *found);

#endif
