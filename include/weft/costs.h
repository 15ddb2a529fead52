/* Weft costs: how long each action of a stage takes, what it keeps in memory,
 * and what a transfer costs. Part of the pipeline description (module spec). */
#ifndef WEFT_COSTS_H
#define WEFT_COSTS_H

#include <weft/spec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of a single time or size; beyond is refused by name of the field. */
#define WEFT_COST_MAX 1e12

/* Of one stage. Times are in the costs' unit, sizes in whatever unit the user
 * counts memory in. Fields left out of a file have the value given here. */
struct weft_stage_costs {
  double f;                  /* forward; 1 */
  double i;                  /* input gradient; 1 */
  double w;                  /* weight gradient; 1 */
  double b;                  /* full backward; i + w */
  double overlap_f_b;        /* an overlap, by its F's stage; < 0: f + b of its parts */
  double activation;         /* held from the start of F to the end of I or B; 1 */
  double activation_after_i; /* held from then to the end of W; in a file: activation */
  double unshard;            /* time of UNSHARD; 0 */
  double reduce_grad;        /* time of REDUCE_GRAD; 0 */
  double parameters;         /* size from the start of UNSHARD to the end of RESHARD; 0 */
  double gradients;          /* size from the start of the first backward to the end of
                                REDUCE_GRAD; 0 */
  double parameters_sharded; /* size while sharded; 0 */
  double gradients_sharded;  /* size before the first backward and after REDUCE_GRAD; 0 */
};

/* A transfer over a stage boundary: it takes latency + bytes / bytes_per_unit,
 * and occupies its channel for the second part. */
struct weft_hop_costs {
  double latency;        /* 0 */
  double bytes;          /* 0 */
  double bytes_per_unit; /* 0: the second part takes no time */
};

/* The sum of gradients over d replicas of a pipeline, in a ring: each sends 2 (d - 1) messages of
 * 1/d of its gradients, and each message takes latency + its size / size_per_unit. Only
 * weft/choice.h needs it. */
struct weft_all_reduce_costs {
  double latency;       /* 0 */
  double size_per_unit; /* in the unit of the stages' sizes; 0: the second part takes no time */
};

/* Of one part of the model, the smallest thing that is not cut: a layer. Times left out of a
 * file are 0. Sizes are as for a stage, which has the sum of its parts'; a negative one is not
 * known. */
struct weft_part_costs {
  double f;                  /* forward */
  double i;                  /* input gradient */
  double w;                  /* weight gradient */
  double activation;         /* from the start of F to the end of I or B */
  double activation_after_i; /* from then to the end of W */
  double parameters;
  double gradients;
};

/* What the numbers of a single entry are of. With an entry per stage they are each stage's own. */
enum weft_costs_scope {
  WEFT_COSTS_OF_RANK, /* default: a rank's share of the model. The model is as many shares as there
                         are ranks, and its stages have equal parts: one of 8 stages on 4 ranks takes
                         1/2 of every time and size. With as many stages as ranks, or fewer, a stage
                         is a share. Transfers are not divided. */
  WEFT_COSTS_OF_STAGE /* every stage: with more stages per rank the model is larger */
};

struct weft_costs {
  char unit[16];            /* of time: "ms", ...; "" when none was given */
  enum weft_costs_scope of; /* of the entry, where there is one */
  uint32_t stage_count;     /* 1: one entry serves all stages */
  struct weft_stage_costs *stages;
  struct weft_hop_costs hop;
  struct weft_all_reduce_costs all_reduce;
  double microbatch_size; /* samples of a microbatch that takes these times; 0: 1 */
  /* [rank_count] how many times as long each rank takes; NULL: not known. Simulation and search have
   * an option for them. */
  double *rank_factors;
  uint32_t rank_count;
  const struct weft_allocator *allocator;
  uint32_t part_count; /* 0: not known */
  /* In the order of the model, whatever stages they are on; for who cuts it into stages.
   * Simulation does not need them. */
  struct weft_part_costs *parts;
};

/* Nanoseconds of a unit of time: s, ms, us or µs, ns; any other, and none, counts as ms. */
WEFT_API double weft_costs_unit_ns(const struct weft_costs *costs);

/* Every time and size divided: one of `by` equal stages that have these together. */
WEFT_API struct weft_stage_costs weft_stage_costs_divide(const struct weft_stage_costs *costs,
                                                         double by);

/* The costs of each of `stage_count` stages on `rank_count` ranks: `costs` themselves, or a copy in
 * *view, which borrows what they own, whose entry is of a stage. Simulation, search and measured
 * timelines call it; call it yourself before you look at the numbers of a stage. */
struct weft_costs_view {
  struct weft_costs costs;
  struct weft_stage_costs entry;
};
WEFT_API const struct weft_costs *weft_costs_of_stages(const struct weft_costs *costs,
                                                       uint32_t rank_count, uint32_t stage_count,
                                                       struct weft_costs_view *view);

/* In a few words, which of these the numbers are of: "times are of a rank's share of the model: a
 * stage takes 1/2". Cut with "..." where it does not fit; 96 bytes are enough. Returns `buffer`. */
WEFT_API char *weft_costs_describe(const struct weft_costs *costs, uint32_t rank_count,
                                   uint32_t stage_count, char *buffer, size_t size);

/* One entry of defaults: F = I = W = 1, free transfers, activation 1. */
WEFT_API enum weft_status weft_costs_create(const struct weft_allocator *allocator,
                                            uint32_t stage_count, struct weft_costs **out,
                                            struct weft_error *error);

/* Gives costs without parts `part_count` of them, times 0, sizes not known. WEFT_ERR_USAGE for none,
 * WEFT_ERR_LIMIT for more than WEFT_STAGES_MAX, WEFT_ERR_MEMORY. */
WEFT_API enum weft_status weft_costs_add_parts(struct weft_costs *costs, uint32_t part_count,
                                               struct weft_error *error);

/* Reads {"schema": "weft-costs/1", "unit": ..., "stages": [...], "hop": {...},
 * "of": "rank" or "stage", "all_reduce": {...}, "microbatch_size": ..., "rank_factors": [...],
 * "parts": [...]}.
 * WEFT_ERR_FORMAT names the field (stages[3].f) and what was expected: unknown
 * fields, duplicates, negative, NaN, infinite and absurd numbers are refused. */
WEFT_API enum weft_status weft_costs_parse(const struct weft_allocator *allocator, const char *text,
                                           size_t size, const char *name, struct weft_costs **out,
                                           struct weft_error *error);
WEFT_API void weft_costs_destroy(struct weft_costs *costs);

/* Writes the object that weft_costs_parse() reads (weft/support.h has the writer), as a member
 * `key` of another or with NULL by itself. Reading it back gives the same numbers. */
struct weft_json;
WEFT_API void weft_costs_print(const struct weft_costs *costs, struct weft_json *json,
                               const char *key);

/* Partitions `count` weights into `stage_count` contiguous ranges, none empty: stage s has
 * weights first[s] ... first[s + 1] - 1. The heaviest range is as light as possible, and of
 * such partitions it is the one with the least sum of squares, which balances the others.
 * Weights are rounded to 2^-46 of the largest, squares are added up in double precision, ties
 * are broken the same way every time. Time grows with
 * count * stage_count * log(count) at most, memory with count * stage_count. WEFT_ERR_USAGE for
 * more stages than weights, and for weights that are negative or not finite; WEFT_ERR_LIMIT for
 * more than WEFT_STAGES_MAX weights; WEFT_ERR_MEMORY. */
WEFT_API enum weft_status weft_balanced_partition(const struct weft_allocator *allocator,
                                                  const double *weights, uint32_t count,
                                                  uint32_t stage_count,
                                                  uint32_t *first /* [stage_count + 1] */,
                                                  struct weft_error *error);

/* The entry of a stage. */
WEFT_API const struct weft_stage_costs *weft_costs_of(const struct weft_costs *costs,
                                                      uint32_t stage);

/* WEFT_ERR_USAGE, naming both numbers, when the costs have neither one entry nor
 * one per stage; also checks every number, for costs made in code. */
WEFT_API enum weft_status weft_costs_check(const struct weft_costs *costs, uint32_t stage_count,
                                           struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
