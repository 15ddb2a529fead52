/* Weft gen: every named schedule, from one registry.
 *
 *     struct weft_program *table;
 *     struct weft_shape shape = {.ranks = 4, .stages_per_rank = 2, .microbatches = 8};
 *     if (weft_generate(NULL, "Interleaved1F1B", &shape, &table, &error) != WEFT_OK) ...
 */
#ifndef WEFT_GEN_H
#define WEFT_GEN_H

#include <weft/spec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Time of one action of a stage, for the closed forms. B is i + w. */
struct weft_unit_costs {
  double f, i, w;
};

/* What is known about a schedule without generating it. */
struct weft_schedule_info {
  const char *name;
  const char *summary;
  const char *paper; /* arXiv number, or "" */
  enum weft_placement_kind placement;
  uint32_t stages_per_rank_min; /* v, lower end */
  uint32_t stages_per_rank_max; /* v, upper end; UINT32_MAX: any */
  uint32_t stages_per_rank_default;
  bool splits_backward;        /* uses I and W */
  bool trains;                 /* has a backward at all */
  bool in_pytorch;             /* byte-identical with PyTorch's table */
  bool fixed;                  /* one table for one shape */
  const char *bubble;          /* closed form, "" where none is known */
  const char *peak_activation; /* closed form, in microbatches through all local stages */
  const char *limits;          /* in words, "" for none */

  /* The closed forms as numbers, for equal stages and free transfers; NULL
   * where none is known, NaN for shapes or costs outside the form's range.
   * Bubble: makespan - m·v·(f + i + w). Peak: of the rank with the most, in
   * microbatches through all local stages, released at B or W. */
  double (*bubble_of)(const struct weft_shape *shape, const struct weft_unit_costs *costs);
  double (*peak_of)(const struct weft_shape *shape);
};

/* The registry: index 0 ... count-1, in the order of the list in docs/schedules.md. */
WEFT_API size_t weft_schedule_count(void);
WEFT_API const struct weft_schedule_info *weft_schedule_at(size_t index);

/* By name without regard to case, hyphens and underscores; also by the name that others have for it
 * (AFAB, PipeDream-Flush, ZB-1P, ZBV, BFS) and by PyTorch's class (ScheduleGPipe). NULL when there is
 * none, and an error whose hint has names that are like it, if there are any, or what to do instead
 * of a published schedule that is not here. error may be NULL. */
WEFT_API const struct weft_schedule_info *weft_schedule_find(const char *name,
                                                             struct weft_error *error);

/* The compute-only table of a named schedule. stages_per_rank 0 means the
 * schedule's default; shape->placement is set by the schedule, except that
 * ForwardOnly takes it from the shape. WEFT_ERR_USAGE names a limit of the recipe and
 * the nearest values that work; WEFT_ERR_LIMIT the number of actions and the
 * limit, before anything is allocated.
 *
 * Of stages that form a graph (shape->graph), which the table then holds: schedules with one stage
 * per rank give stages that are equally far from a loss the same row, so that encoders run in
 * parallel; the others take stages in the order of their numbers. Stages without a backward have
 * none in the table. ranks 0: as many as the stages need. WEFT_ERR_USAGE where ranks x stages per
 * rank is not the number of stages, and for fixed tables. */
WEFT_API enum weft_status weft_generate(const struct weft_allocator *allocator, const char *name,
                                        const struct weft_shape *shape, struct weft_program **out,
                                        struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
