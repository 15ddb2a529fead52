/* The pipeline of one rank, inside. */
#ifndef RUN_PIPELINE_H
#define RUN_PIPELINE_H

#include <weft/run.h>

#include "run/batch/batch_ends.h"
#include "run/executor/executor.h"
#include "run/handshake.h"

struct weft_process_recording;
struct weft_rank_recording;

enum weft_pipeline_state { WEFT_PIPELINE_READY, WEFT_PIPELINE_RUNNING, WEFT_PIPELINE_FAILED };

struct weft_pipeline {
  const struct weft_allocator *allocator;
  struct weft_transport *transport;
  struct weft_pipeline_options options; /* with our copy of the boundaries */
  struct weft_arena memory;             /* of that, of handshakes and ranks */
  struct weft_executor executor;
  struct weft_row *rows; /* of the programs so far, newest first */

  enum weft_pipeline_state state;
  struct weft_error failure; /* when WEFT_PIPELINE_FAILED */
  bool handshake_done;
  struct weft_handshake handshake;
  struct weft_handshake *handshakes; /* [rank_count]; NULL: the transport keeps them */

  uint64_t step;
  struct weft_row *last_row;
  struct weft_batch_ends ends; /* what stages get of a batch, and the results */
  struct weft_step_result result;

  /* Where one thread drives all ranks of the process (step_process.c). */
  struct weft_process_recording
      *process_recording; /* rank 0's: of the step of all ranks, or NULL */
  /* Why the last step was not replayed; NULL: it was. Set on the first pipeline with a device (one
   * process) or on every rank, and so is the number of steps that were replayed. */
  const char *eager_reason;
  uint64_t replayed_steps;
  const struct weft_executor **ranks; /* [rank_count]; of the first one that is driven, else NULL */
  enum weft_status driven_status;     /* of the step */
  struct weft_error *driven_error;    /* the caller's */

  /* Where each rank is a process (step_rank.c). */
  struct weft_rank_recording *rank_recording; /* NULL: this rank launches every action */
  char reason_text[600];
};

/* The step is done: results, and the next one. */
enum weft_status weft_pipeline_end_step(struct weft_pipeline *pipeline, struct weft_error *error);
/* Fails the world with this rank's error; *error becomes the agreed one. */
enum weft_status weft_pipeline_fail(struct weft_pipeline *pipeline, uint32_t rank,
                                    struct weft_error *error);
/* Whether the step goes on: WEFT_OK. Else it has failed, elsewhere or because somebody asked for
 * it, and so has the pipeline. */
enum weft_status weft_pipeline_poll(struct weft_pipeline *pipeline, struct weft_error *error);
/* How long devices may take to end what they do after a failure of that status; 0: no limit. */
int64_t weft_pipeline_drain_limit(const struct weft_pipeline *pipeline, enum weft_status status);

/* Runs the step that has begun together with those of all ranks of the process; blocks. */
enum weft_status weft_pipeline_step_process(struct weft_pipeline *pipeline,
                                            struct weft_error *error);
void weft_process_recording_destroy(struct weft_process_recording *recording);

/* Why steps of this rank cannot be recorded by themselves: enum weft_recording_reason. */
uint32_t weft_rank_recording_reason(const struct weft_pipeline *pipeline);
/* After the handshake: makes pipeline->rank_recording if all ranks of the pipeline can. */
enum weft_status weft_rank_recording_open(struct weft_pipeline *pipeline, struct weft_error *error);
void weft_rank_recording_begin_step(struct weft_pipeline *pipeline);
/* With pipeline->rank_recording: as weft_executor_advance(), by replaying the step or action by action. */
enum weft_status weft_rank_recording_advance(struct weft_pipeline *pipeline,
                                             struct weft_error *error);
void weft_rank_recording_destroy(struct weft_rank_recording *recording); /* NULL is fine */

#endif
