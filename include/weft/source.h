/* Weft program sources: make the programs of a pipeline (weft/run.h) when it needs them: for
 * another number of microbatches, or for an evaluation without backwards.
 *
 *     struct weft_named_source source = {.schedule = "1F1B", .ranks = 4};
 *     options.source = weft_source_named;
 *     options.source_context = &source;
 */
#ifndef WEFT_SOURCE_H
#define WEFT_SOURCE_H

#include <weft/gen.h>
#include <weft/graph.h>
#include <weft/lower.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A named schedule, for any number of microbatches. Read only, so ranks may share it. Fields that
 * are zero have defaults. */
struct weft_named_source {
  const struct weft_allocator *allocator; /* NULL: the default */
  const char *schedule;                   /* "1F1B", ... */
  uint32_t ranks;
  uint32_t stages_per_rank;               /* 0: the schedule's default */
  const struct weft_lower_options *lower; /* NULL: the default */
  const struct weft_graph *graph;         /* of the stages (weft/graph.h); NULL: a chain */
};

/* `context` is a struct weft_named_source. Training: the schedule, lowered. Otherwise: forward
 * only, on the same placement. */
WEFT_API enum weft_status weft_source_named(void *context, uint32_t microbatch_count, bool training,
                                            struct weft_program **out, struct weft_error *error);

/* One table or program, for its own number of microbatches. Read only. */
struct weft_fixed_source {
  const struct weft_allocator *allocator; /* NULL: the default */
  const struct weft_program *program;     /* borrowed */
  const struct weft_lower_options *lower; /* for a table; NULL: the default */
};

/* `context` is a struct weft_fixed_source. Training: a copy of the program (a table is lowered
 * first); WEFT_ERR_USAGE for another number of microbatches than its own. Otherwise: forward only
 * on its placement, for any number; a copy of the program if it has no backward and the number is
 * its own. */
WEFT_API enum weft_status weft_source_fixed(void *context, uint32_t microbatch_count, bool training,
                                            struct weft_program **out, struct weft_error *error);

/* The forward-only program for a number of microbatches, on the placement of any table or program:
 * every rank runs the forwards of its stages. It has SEND and RECV and, if `lower` asks for it
 * (NULL: the default, which does), UNSHARD and RESHARD; the other passes concern backwards.
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
