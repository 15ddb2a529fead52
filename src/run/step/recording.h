/* Steps that are recorded once as a CUDA graph and then replayed: whether a rank's step can be, and
 * what a recording was made for.
 *
 *   step_process.c    one recording of all ranks of a process, which one thread drives
 *   step_rank.c       a recording per rank, where each is a process and the transport enqueues
 *   transfer_chain.c  what it costs that such a recording has its transfers one after the other */
#ifndef RUN_RECORDING_H
#define RUN_RECORDING_H

#include <weft/run.h>

struct weft_pipeline;

/* Why a step cannot be recorded. Ranks exchange these numbers. */
enum weft_recording_reason {
  WEFT_RECORDING_POSSIBLE,
  WEFT_RECORDING_NO_DEVICE,
  WEFT_RECORDING_NOT_WANTED,
  WEFT_RECORDING_CHECKED,
  WEFT_RECORDING_OUTPUTS,
  WEFT_RECORDING_STAGE,
  WEFT_RECORDING_CUSTOM,
  WEFT_RECORDING_NO_GROUP,
  WEFT_RECORDING_CHAIN_HANGS,
  WEFT_RECORDING_CHAIN_SLOW,
  WEFT_RECORDING_NOT_RECORDED, /* it was tried */
  WEFT_RECORDING_REASON_COUNT
};

/* NULL: possible. Numbers of another process may be none of these. */
const char *weft_recording_reason_text(uint32_t reason);
/* Of the step that begins; and what does not change between handshakes alone. */
enum weft_recording_reason weft_recording_reason_of_step(const struct weft_pipeline *pipeline);
enum weft_recording_reason weft_recording_reason_of_pipeline(const struct weft_pipeline *pipeline);

/* What a recording was made for; with anything else it is made anew. Compared as bytes. */
struct weft_recording_key {
  const struct weft_pipeline *pipeline;
  const struct weft_row *row;
  uint64_t batch; /* a hash of where its tensors are, and of their shapes */
  const double *losses;
  const void *saved;
};
struct weft_recording_key weft_recording_key_of(const struct weft_pipeline *pipeline);

/* transfer_chain.c: runs all rows with rendezvous sends and transfers that take no time. A transfer waits for all
 * transfers before it in its row, a SEND for what it sends, and compute for the RECVs of all its
 * inputs, as in a recorded step. *slowdown: how much longer that takes than if compute waited for
 * its inputs alone, with forwards, input and weight gradients of equal lengths; 1: no longer.
 * Infinite: it never ends. WEFT_ERR_MEMORY. */
enum weft_status weft_transfer_chain_check(const struct weft_allocator *allocator,
                                           const struct weft_program *program,
                                           const uint32_t *rank_of, double *slowdown,
                                           struct weft_error *error);

/* Logs the reason when it changes. NULL: the step is replayed, or may be recorded later. */
void weft_recording_explain(struct weft_pipeline *pipeline, const char *reason);

#endif
