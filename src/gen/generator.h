/* What a generator is: facts for users, a bound on its size, its limits, and a
 * function that writes one rank's row. docs/adding-a-schedule.md
 * adds one. Generators do not know each other; what several recipes need
 * is in this header. */
#ifndef GEN_GENERATOR_H
#define GEN_GENERATOR_H

#include <weft/gen.h>

#include "ir/program_builder.h"

struct weft_generator {
  struct weft_schedule_info info;

  /* Upper bound of the table's cells, as a double: it is asked for shapes far
   * beyond the limits. */
  double (*cells)(const struct weft_shape *shape);

  /* NULL, or refuses shapes the recipe cannot serve, naming the limit and the
   * nearest values that work. Ranges of v are checked before, from `info`. */
  enum weft_status (*check)(const struct weft_shape *shape, struct weft_error *error);

  /* Appends rank's cells. The end of the row is the caller's. */
  void (*row)(const struct weft_shape *shape, uint32_t rank, struct weft_program_builder *row);

  /* NULL, or makes the table from all rows. */
  enum weft_status (*finish)(const struct weft_shape *shape, const struct weft_program *rows,
                             struct weft_program **out, struct weft_error *error);

  /* Of a fixed table: its CSV text; then there is no row function. */
  const char *csv;
};

/* One per schedule. */
#define WEFT_GENERATOR(name) extern const struct weft_generator weft_generator_##name;
#include "gen/generators.def"
#undef WEFT_GENERATOR

/* weft_generate() of a shape with a graph (graph_schedule.c): out of the table of a chain. */
enum weft_status weft_generate_graph(const struct weft_allocator *allocator,
                                     const struct weft_schedule_info *info,
                                     const struct weft_shape *shape, struct weft_program **out,
                                     struct weft_error *error);

/* The oldest I of the row that has no W yet: recipes that delay W take them in
 * the order of their Is, which is a scan of the row written so far. Start
 * with the row's first record; the caller knows that one is outstanding. */
void weft_row_put_oldest_w(struct weft_program_builder *row, uint64_t *next_i);

/* The bubble of the schedules with a full backward. With m < p a stage's
 * microbatches do not fill the pipeline, and every further local stage begins
 * late. */
double weft_bubble_full_backward(const struct weft_shape *shape,
                                 const struct weft_unit_costs *costs);

/* Most microbatches held at once when at most p are: 1F1B and what keeps to
 * its memory. */
double weft_peak_of_1f1b(const struct weft_shape *shape);

/* Of an `info`: the fewest, the most (UINT32_MAX: any), and how many where nobody says. */
#define WEFT_STAGES_PER_RANK(least, most, usual) \
  .stages_per_rank_min = (least), .stages_per_rank_max = (most), .stages_per_rank_default = (usual)

static inline uint32_t weft_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

#endif
