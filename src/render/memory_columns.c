/* A rank's memory over time in columns. */
#include "render/memory_columns.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

static enum weft_status prepare(struct weft_memory_columns *columns, size_t point_count,
                                struct weft_error *error) {
  if (columns->sizes == NULL) {
    columns->sizes =
        weft_array_allocate(columns->allocator, columns->column_count, sizeof *columns->sizes);
    if (columns->sizes == NULL) {
      return weft_fail_memory(error, columns->column_count * sizeof *columns->sizes);
    }
  }
  memset(columns->sizes, 0, columns->column_count * sizeof *columns->sizes);
  if (point_count > columns->point_capacity) {
    weft_array_free(columns->allocator, columns->points, columns->point_capacity,
                    sizeof *columns->points);
    columns->point_capacity = 0;
    columns->points = weft_array_allocate(columns->allocator, point_count, sizeof *columns->points);
    if (columns->points == NULL) {
      return weft_fail_memory(error, point_count * sizeof *columns->points);
    }
    columns->point_capacity = point_count;
  }
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
  assert(rank < columns->picture->simulation->program->rank_count);
  const struct weft_picture *picture = columns->picture;
  uint64_t count = 0;
  if (picture->costs != NULL) {
    weft_memory_curve(picture->simulation, picture->costs, rank, NULL, 0, &count);
  }
  WEFT_TRY(prepare(columns, (size_t)count, error));
  if (count == 0) {
    return WEFT_OK;
  }
  weft_memory_curve(picture->simulation, picture->costs, rank, columns->points, count, &count);
  const double ticks = picture->simulation->ticks_per_unit;
  double from =
      weft_extent_column(&columns->extent, columns->points[0].at * ticks, columns->column_count);
  for (uint64_t i = 0; i < count; i++) {
    const double to = i + 1 == count
                          ? columns->column_count
                          : weft_extent_column(&columns->extent, columns->points[i + 1].at * ticks,
                                               columns->column_count);
    raise_sizes(columns, from, to, columns->points[i].size);
    from = to;
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
  weft_array_free(columns->allocator, columns->points, columns->point_capacity,
                  sizeof *columns->points);
  columns->sizes = NULL;
  columns->points = NULL;
  columns->point_capacity = 0;
}
