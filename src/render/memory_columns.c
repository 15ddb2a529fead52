/* A rank's memory over time. */
#include "render/memory_columns.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

/* The points are as many as there is room for at first try, or fewer: those of
 * one time become one. */
enum weft_status weft_rank_curve_read(struct weft_rank_curve *curve,
                                      const struct weft_picture *picture, uint32_t rank,
                                      struct weft_error *error) {
  assert(rank < picture->simulation->program->rank_count);
  curve->count = 0;
  if (picture->costs == NULL) {
    return WEFT_OK;
  }
  weft_memory_curve(picture->simulation, picture->costs, rank, curve->points, curve->capacity,
                    &curve->count);
  if (curve->count <= curve->capacity) {
    return WEFT_OK;
  }
  const uint64_t wanted = curve->count;
  weft_rank_curve_finish(curve);
  curve->points = weft_array_allocate(curve->allocator, wanted, sizeof *curve->points);
  if (curve->points == NULL) {
    return weft_fail_memory(error, wanted * sizeof *curve->points);
  }
  curve->capacity = wanted;
  weft_memory_curve(picture->simulation, picture->costs, rank, curve->points, wanted,
                    &curve->count);
  return WEFT_OK;
}

void weft_rank_curve_finish(struct weft_rank_curve *curve) {
  weft_array_free(curve->allocator, curve->points, curve->capacity, sizeof *curve->points);
  *curve = (struct weft_rank_curve){.allocator = curve->allocator};
}

static enum weft_status clear_sizes(struct weft_memory_columns *columns, struct weft_error *error) {
  if (columns->sizes == NULL) {
    columns->sizes =
        weft_array_allocate(columns->allocator, columns->column_count, sizeof *columns->sizes);
    if (columns->sizes == NULL) {
      return weft_fail_memory(error, columns->column_count * sizeof *columns->sizes);
    }
  }
  memset(columns->sizes, 0, columns->column_count * sizeof *columns->sizes);
  return WEFT_OK;
}

/* A size that holds from column coordinate `from` to `to`; one that holds for no
 * time does not count. */
static void raise_sizes(struct weft_memory_columns *columns, double from, double to, double size) {
  for (uint32_t i = (uint32_t)from; i < to && from < to; i++) {
    columns->sizes[i] = size > columns->sizes[i] ? size : columns->sizes[i];
  }
}

enum weft_status weft_memory_columns_read(struct weft_memory_columns *columns, uint32_t rank,
                                          struct weft_error *error) {
  const struct weft_picture *picture = columns->picture;
  columns->curve.allocator = columns->allocator;
  WEFT_TRY(clear_sizes(columns, error));
  WEFT_TRY(weft_rank_curve_read(&columns->curve, picture, rank, error));
  const struct weft_rank_curve *curve = &columns->curve;
  const double ticks = picture->simulation->ticks_per_unit;
  double to = columns->column_count;
  for (uint64_t i = curve->count; i > 0; i--) {
    const double from = weft_extent_column(&columns->extent, curve->points[i - 1].at * ticks,
                                           columns->column_count);
    raise_sizes(columns, from, to, curve->points[i - 1].size);
    to = from;
  }
  return WEFT_OK;
}

double weft_memory_share(double size, double peak) {
  if (!(size > 0)) {
    return 0;
  }
  /* Sizes below the normal range have no reciprocal, and infinite ones no quotient. */
  const double share = size / peak;
  return share < 1 ? share : 1;
}

void weft_memory_columns_finish(struct weft_memory_columns *columns) {
  weft_array_free(columns->allocator, columns->sizes, columns->column_count,
                  sizeof *columns->sizes);
  weft_rank_curve_finish(&columns->curve);
  columns->sizes = NULL;
}
