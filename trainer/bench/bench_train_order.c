/* A program on one rank: all its stages, the microbatches of every stage in the same order, so
 * that it computes the same sums. For comparing many ranks with one. */
#include "cli/cli.h"

#include <assert.h>
#include <stdlib.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "trainer/bench/bench_train.h"
#include "trainer/model/aligned_memory.h"

struct ordered {
  int64_t begin;
  uint32_t record;
};

static int compare(const void *a, const void *b) {
  const struct ordered *x = a, *y = b;
  return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : (x->record < y->record ? -1 : 1);
}

static bool computes(uint8_t op) {
  return weft_op_info((enum weft_op)op)->kind == WEFT_KIND_COMPUTE;
}

/* `order` and `actions` have room for all events. */
static enum weft_status put_in_order(const struct weft_allocator *allocator,
                                     const struct weft_program *program,
                                     const struct weft_simulation *simulation,
                                     struct ordered *order, struct weft_action *actions,
                                     struct weft_program **out, struct weft_error *error) {
  uint64_t count = 0;
  for (uint64_t k = 0; k < simulation->event_count; k++) {
    const struct weft_event *event = &simulation->events[k];
    if (computes(program->actions[event->record].op)) {
      order[count++] = (struct ordered){event->begin, event->record};
    }
  }
  qsort(order, count, sizeof *order, compare);
  for (uint64_t k = 0; k < count; k++) {
    actions[k] = program->actions[order[k].record];
  }
  return weft_program_create(allocator, 1, &count, actions, out, error);
}

static enum weft_status simulate(const struct weft_allocator *allocator,
                                 const struct weft_program *program,
                                 struct weft_simulation **simulation, struct weft_error *error) {
  struct weft_costs *costs;
  WEFT_TRY(weft_costs_create(allocator, 1, &costs, error));
  const enum weft_status status = weft_simulate(allocator, program, costs, NULL, simulation, error);
  weft_costs_destroy(costs);
  return status;
}

enum weft_status weft_bench_train_on_one_rank(const struct weft_allocator *allocator,
                                              const struct weft_program *program,
                                              struct weft_program **out, struct weft_error *error) {
  assert(program != NULL);
  struct weft_simulation *simulation;
  WEFT_TRY(simulate(allocator, program, &simulation, error));
  const uint64_t count = simulation->event_count;
  struct ordered *order = weft_gpt_allocate(allocator, count, sizeof *order);
  struct weft_action *actions = weft_gpt_allocate(allocator, count, sizeof *actions);
  const enum weft_status status =
      order != NULL && actions != NULL
          ? put_in_order(allocator, program, simulation, order, actions, out, error)
          : weft_fail_memory(error, count * sizeof *order);
  weft_gpt_free(allocator, order);
  weft_gpt_free(allocator, actions);
  weft_simulation_destroy(simulation);
  return status;
}
