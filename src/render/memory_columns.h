/* A rank's memory over time: its curve, and the same in columns, for strips under a timeline. */
#ifndef RENDER_MEMORY_COLUMNS_H
#define RENDER_MEMORY_COLUMNS_H

#include "render/timeline.h"

/* The curve of one rank after the other. Zero-initialise, set the allocator, and finish. */
struct weft_rank_curve {
  const struct weft_allocator *allocator;
  struct weft_memory_point *points; /* [count], of the rank last read */
  uint64_t count, capacity;
};

/* Fills `points`; none where the picture has no costs. Reading a rank again needs no memory. */
enum weft_status weft_rank_curve_read(struct weft_rank_curve *curve,
                                      const struct weft_picture *picture, uint32_t rank,
                                      struct weft_error *error);
void weft_rank_curve_finish(struct weft_rank_curve *curve);

/* Zero-initialise, set the first four, and finish. */
struct weft_memory_columns {
  const struct weft_allocator *allocator;
  const struct weft_picture *picture;
  struct weft_extent extent;
  uint32_t column_count;
  double *sizes; /* [column_count]: the most that the rank last read holds in each */
  struct weft_rank_curve curve;
};

/* Fills `sizes`; all zero where the picture has no costs. */
enum weft_status weft_memory_columns_read(struct weft_memory_columns *columns, uint32_t rank,
                                          struct weft_error *error);
/* A size as a share of the largest, 0 to 1, whatever numbers these are. */
double weft_memory_share(double size, double peak);
void weft_memory_columns_finish(struct weft_memory_columns *columns);

#endif
