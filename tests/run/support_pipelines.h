/* All ranks of a pipeline in one thread, on the loopback transport. */
#ifndef SUPPORT_PIPELINES_H
#define SUPPORT_PIPELINES_H

#include <weft/comm.h>
#include <weft/run.h>
#include <weft/weft.h>

/* A world, its pipelines, and how each rank ended. Zero-initialise. */
struct pipelines {
  struct weft_comm *world;
  struct weft_pipeline **items;       /* [rank_count] */
  struct weft_transport **transports; /* [rank_count]: the world's, or what wraps them */
  enum weft_status *statuses;         /* [rank_count] of the last run */
  struct weft_error *errors;          /* [rank_count] */
  bool *dead;                         /* [rank_count]: not advanced any more */
  uint32_t rank_count;
};

/* Makes the world only. */
void pipelines_open(struct pipelines *pipelines, const struct weft_allocator *allocator,
                    const struct weft_comm_options *options);
/* The pipelines, all with the same options. Returns the first failure. */
enum weft_status pipelines_create(struct pipelines *pipelines,
                                  const struct weft_allocator *allocator,
                                  const struct weft_pipeline_options *options,
                                  struct weft_error *error);
void pipelines_close(struct pipelines *pipelines);

/* One step on all ranks, from begin to the end of all; batch(rank) may differ by
 * rank: `batches` has one per rank, or one for all (batch_count 1). Returns the
 * first failure in order of rank; statuses and errors have all of them. */
enum weft_status pipelines_step(struct pipelines *pipelines, bool training,
                                const struct weft_batch *batches, uint32_t batch_count,
                                struct weft_error *error);

/* Events of all ranks, rank after rank; malloc'ed. */
struct weft_event *pipelines_events(const struct pipelines *pipelines, uint64_t *count);

#endif
