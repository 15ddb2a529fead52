/* The program builder: one flat array that grows, then becomes the program
 * without a copy. */
#include "ir/program_builder.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "ir/program.h"

static void record_failure(struct weft_program_builder *builder, enum weft_status status,
                           size_t bytes) {
  if (builder->status == WEFT_OK) {
    builder->status = status;
    builder->failed_bytes = bytes;
  }
}

void weft_program_builder_init(struct weft_program_builder *builder,
                               const struct weft_allocator *allocator, uint64_t actions,
                               uint32_t rows) {
  assert(builder != NULL);
  *builder = (struct weft_program_builder){.allocator = allocator,
                                           .capacity = actions > 0 ? actions : 1,
                                           .row_capacity = rows > 0 ? rows : 1};
  builder->actions = weft_array_allocate(allocator, builder->capacity, sizeof *builder->actions);
  builder->row_begin =
      weft_array_allocate(allocator, builder->row_capacity + 1u, sizeof *builder->row_begin);
  if (builder->actions == NULL || builder->row_begin == NULL) {
    record_failure(builder, WEFT_ERR_MEMORY, builder->capacity * sizeof *builder->actions);
    builder->capacity = builder->actions != NULL ? builder->capacity : 0; /* appending is safe */
    return;
  }
  builder->row_begin[0] = 0;
}

/* NULL, with the array untouched, when out of memory. */
static void *resize(struct weft_program_builder *builder, void *array, size_t old_count,
                    size_t new_count, size_t size) {
  void *resized = weft_array_resize(builder->allocator, array, old_count, new_count, size);
  if (resized == NULL) {
    record_failure(builder, WEFT_ERR_MEMORY, new_count * size);
  }
  return resized;
}

bool weft_program_builder_grow(struct weft_program_builder *builder) {
  if (builder->status != WEFT_OK) {
    return false;
  }
  if (builder->count >= WEFT_ACTIONS_MAX) {
    record_failure(builder, WEFT_ERR_LIMIT, 0);
    return false;
  }
  const uint64_t capacity = builder->capacity * 2 < 64 ? 64 : builder->capacity * 2;
  void *larger =
      resize(builder, builder->actions, builder->capacity, capacity, sizeof *builder->actions);
  if (larger == NULL) {
    return false;
  }
  builder->actions = larger;
  builder->capacity = capacity;
  return true;
}

void weft_program_builder_copy(struct weft_program_builder *builder,
                               const struct weft_action *actions, uint64_t count) {
  assert(actions != NULL || count == 0);
  while (builder->capacity - builder->count < count) {
    if (!weft_program_builder_grow(builder)) {
      return;
    }
  }
  if (count > 0) {
    memcpy(builder->actions + builder->count, actions, count * sizeof *actions);
    builder->count += count;
  }
}

void weft_program_builder_idle(struct weft_program_builder *builder, uint64_t cells) {
  for (uint64_t i = 0; i < cells; i++) {
    weft_program_builder_add(builder, weft_action_idle());
  }
}

static bool resize_rows(struct weft_program_builder *builder, uint32_t capacity) {
  void *resized = resize(builder, builder->row_begin, builder->row_capacity + 1u, capacity + 1u,
                         sizeof *builder->row_begin);
  if (resized == NULL) {
    return false;
  }
  builder->row_begin = resized;
  builder->row_capacity = capacity;
  return true;
}

void weft_program_builder_end_row(struct weft_program_builder *builder) {
  assert(builder->row_count <= builder->row_capacity);
  if (builder->status != WEFT_OK) {
    return;
  }
  if (builder->row_count == WEFT_RANKS_MAX) {
    record_failure(builder, WEFT_ERR_LIMIT, 1);
    return;
  }
  if (builder->row_count == builder->row_capacity &&
      !resize_rows(builder, builder->row_capacity * 2)) {
    return;
  }
  builder->row_begin[++builder->row_count] = builder->count;
}

void weft_program_builder_abandon(struct weft_program_builder *builder) {
  weft_array_free(builder->allocator, builder->actions, builder->capacity,
                  sizeof *builder->actions);
  weft_array_free(builder->allocator, builder->row_begin, builder->row_capacity + 1u,
                  sizeof *builder->row_begin);
  *builder = (struct weft_program_builder){.allocator = builder->allocator};
}

static enum weft_status report(const struct weft_program_builder *builder,
                               struct weft_error *error) {
  if (builder->status == WEFT_ERR_MEMORY) {
    return weft_fail_memory(error, builder->failed_bytes);
  }
  return weft_fail(error, WEFT_ERR_LIMIT, "split the job into smaller ones",
                   "more than %" PRIu64 " %s, which is the limit",
                   builder->failed_bytes != 0 ? (uint64_t)WEFT_RANKS_MAX : WEFT_ACTIONS_MAX,
                   builder->failed_bytes != 0 ? "ranks" : "actions");
}

/* Both arrays shrunk to their size: the program frees rows by its rank count. What is left of actions
 * may stay, where nothing smaller is to be had. */
static bool fit_arrays(struct weft_program_builder *builder) {
  const uint64_t keep = builder->count > 0 ? builder->count : 1;
  void *smaller = keep < builder->capacity
                      ? weft_array_resize(builder->allocator, builder->actions, builder->capacity,
                                          keep, sizeof *builder->actions)
                      : NULL;
  if (smaller != NULL) {
    builder->actions = smaller;
    builder->capacity = keep;
  }
  return builder->row_count == builder->row_capacity || resize_rows(builder, builder->row_count);
}

/* The program, its counts and level still to be set. */
static enum weft_status make_program(struct weft_program_builder *builder,
                                     struct weft_program **out, struct weft_error *error) {
  struct weft_program *program = NULL;
  if (builder->status == WEFT_OK && fit_arrays(builder)) {
    program = weft_array_allocate_zero(builder->allocator, 1, sizeof *program);
    if (program == NULL) {
      record_failure(builder, WEFT_ERR_MEMORY, sizeof *program);
    }
  }
  if (program == NULL) {
    const enum weft_status status = report(builder, error);
    weft_program_builder_abandon(builder);
    return status;
  }
  *program = (struct weft_program){.allocator = builder->allocator,
                                   .rank_count = builder->row_count,
                                   .actions = builder->actions,
                                   .action_count = builder->count,
                                   .action_capacity = builder->capacity,
                                   .row_begin = builder->row_begin};
  *out = program;
  return WEFT_OK;
}

enum weft_status weft_program_builder_finish(struct weft_program_builder *builder,
                                             const struct weft_graph *graph,
                                             struct weft_program **out, struct weft_error *error) {
  struct weft_program *program = NULL;
  assert(out != NULL);
  WEFT_TRY(make_program(builder, &program, error));
  assert(program != NULL);
  weft_program_seal(program);
  const enum weft_status status = weft_program_set_graph(program, graph, error);
  if (status < 0) {
    weft_program_destroy(program);
    return status;
  }
  *out = program;
  return WEFT_OK;
}

enum weft_status weft_program_builder_finish_like(struct weft_program_builder *builder,
                                                  const struct weft_program *like,
                                                  enum weft_level level, struct weft_program **out,
                                                  struct weft_error *error) {
  assert(like != NULL && out != NULL);
  WEFT_TRY(make_program(builder, out, error));
  weft_program_seal_like(*out, like, level);
  return WEFT_OK;
}
