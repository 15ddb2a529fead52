/* Weft plan: programs to run, made when they are needed. What a pipeline
 * (weft/run.h) asks when the number of microbatches changes, or for an eval. */
#ifndef WEFT_PLAN_H
#define WEFT_PLAN_H

#include <weft/gen.h>
#include <weft/lower.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A named schedule for any number of microbatches; read only, so ranks may share
 * one. Zero-initialise what is not needed. */
struct weft_named_source {
  const struct weft_allocator *allocator; /* NULL: the default */
  const char *schedule;                   /* "1F1B", ... */
  uint32_t ranks;
  uint32_t stages_per_rank;               /* 0: the schedule's default */
  const struct weft_lower_options *lower; /* NULL: the default */
};

/* `context` is a struct weft_named_source. Training: the schedule, lowered. Not
 * training: forward only, on the same placement. */
WEFT_API enum weft_status weft_source_named(void *context, uint32_t microbatch_count, bool training,
                                            struct weft_program **out, struct weft_error *error);

/* One table or program as it is, for its own number of microbatches; borrowed. */
struct weft_fixed_source {
  const struct weft_allocator *allocator; /* NULL: the default */
  const struct weft_program *program;
  const struct weft_lower_options *lower; /* for a table; NULL: the default */
};

/* `context` is a struct weft_fixed_source. Training: the program (a table is
 * lowered first); WEFT_ERR_USAGE, naming both numbers, for another number of
 * microbatches. Not training: forward only on its placement, for any number; the
 * program itself if it has no backward and the number is its own. */
WEFT_API enum weft_status weft_source_fixed(void *context, uint32_t microbatch_count, bool training,
                                            struct weft_program **out, struct weft_error *error);

/* The forward-only program of as many microbatches on the placement of another
 * table or program, whatever that placement is: every rank runs the forwards of
 * its stages. Lowered with SEND and RECV and, where `lower` says so (NULL: the
 * default, which does), UNSHARD and RESHARD; its other passes are about backwards.
 * WEFT_ERR_INVALID when a stage has no rank. */
WEFT_API enum weft_status weft_source_forward_only(const struct weft_allocator *allocator,
                                                   const struct weft_program *like,
                                                   uint32_t microbatch_count,
                                                   const struct weft_lower_options *lower,
                                                   struct weft_program **out,
                                                   struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
