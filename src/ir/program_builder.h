/* Builds a program row by row: rank 0's records, end of row, rank 1's records,
 * and so on. For producers that know a bound on the number of records nothing
 * is copied or grown; others (the reader) let it grow. Appending after a
 * failure does nothing; weft_program_builder_finish() reports it. */
#ifndef IR_PROGRAM_BUILDER_H
#define IR_PROGRAM_BUILDER_H

#include "ir/action.h"

struct weft_program_builder {
  const struct weft_allocator *allocator;
  struct weft_action *actions;
  uint64_t count;
  uint64_t capacity;
  uint64_t *row_begin;
  uint32_t row_count;
  uint32_t row_capacity;
  enum weft_status status; /* first failure */
  size_t failed_bytes;
};

/* `actions` and `rows` are expected numbers; both may be exceeded. */
void weft_program_builder_init(struct weft_program_builder *builder,
                               const struct weft_allocator *allocator, uint64_t actions,
                               uint32_t rows);

/* Makes room for at least one more; false after a failure. */
bool weft_program_builder_grow(struct weft_program_builder *builder);

static inline void weft_program_builder_add(struct weft_program_builder *builder,
                                            struct weft_action action) {
  if (builder->count < builder->capacity || weft_program_builder_grow(builder)) {
    builder->actions[builder->count++] = action;
  }
}

static inline void weft_program_builder_put(struct weft_program_builder *builder, enum weft_op op,
                                            uint32_t stage, uint32_t microbatch) {
  weft_program_builder_add(builder, weft_action_make(op, stage, microbatch));
}

/* Appends `count` records as they are. */
void weft_program_builder_copy(struct weft_program_builder *builder,
                               const struct weft_action *actions, uint64_t count);

void weft_program_builder_idle(struct weft_program_builder *builder, uint64_t cells);
void weft_program_builder_end_row(struct weft_program_builder *builder);

/* The program, with the graph of its stages (NULL: a chain), or the first failure. Either way the
 * builder is used up. */
enum weft_status weft_program_builder_finish(struct weft_program_builder *builder,
                                             const struct weft_graph *graph,
                                             struct weft_program **out, struct weft_error *error);
/* The same for a pass that knows what weft_program_seal() would find out by a
 * scan: counts of `like`, and the level. */
enum weft_status weft_program_builder_finish_like(struct weft_program_builder *builder,
                                                  const struct weft_program *like,
                                                  enum weft_level level, struct weft_program **out,
                                                  struct weft_error *error);
/* Gives everything back without a program. */
void weft_program_builder_abandon(struct weft_program_builder *builder);

#endif
