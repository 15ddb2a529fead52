/* Parameters and gradients of a rank over time; see held_memory.h. */
#include "sim/held_memory.h"

#include <math.h>

#include "ir/action.h"

bool weft_held_counts_more(const struct weft_costs *costs) {
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    const struct weft_stage_costs *stage = &costs->stages[s];
    if (stage->parameters > 0 || stage->gradients > 0 || stage->parameters_sharded > 0 ||
        stage->gradients_sharded > 0) {
      return true;
    }
  }
  return false;
}

size_t weft_held_changes_max(const struct weft_program *program) {
  size_t most = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    size_t count = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      count += weft_op_in(program->actions[i].op, WEFT_OPS_SHARD);
    }
    most = count > most ? count : most;
  }
  return most;
}

void weft_held_init(struct weft_held_memory *held, struct weft_held_change *changes) {
  *held = (struct weft_held_memory){.next_at = INT64_MAX, .changes = changes};
}

static void hold_more(struct weft_held_memory *held, double parameters, double gradients) {
  held->parameters += parameters;
  held->gradients += gradients;
  held->memory += parameters + gradients;
  held->peak_parameters = fmax(held->peak_parameters, held->parameters);
  held->peak_gradients = fmax(held->peak_gradients, held->gradients);
  held->peak_memory = fmax(held->peak_memory, held->memory);
}

void weft_held_add_stage(struct weft_held_memory *held, const struct weft_stage_costs *costs,
                         bool is_sharded, bool has_backward) {
  hold_more(held, is_sharded ? costs->parameters_sharded : costs->parameters,
            has_backward ? costs->gradients_sharded : 0);
}

void weft_held_settle(struct weft_held_memory *held, int64_t until) {
  while (held->first < held->end && held->changes[held->first].at <= until) {
    const struct weft_held_change *change = &held->changes[held->first++];
    hold_more(held, change->parameters, change->gradients);
  }
  held->next_at = held->first < held->end ? held->changes[held->first].at : INT64_MAX;
}

void weft_held_first_backward(struct weft_held_memory *held, const struct weft_stage_costs *costs,
                              int64_t at) {
  weft_held_settle(held, at);
  hold_more(held, 0, costs->gradients - costs->gradients_sharded);
}

void weft_held_collective(struct weft_held_memory *held, enum weft_op op,
                          const struct weft_stage_costs *costs, int64_t begin, int64_t end) {
  const double parameters = costs->parameters - costs->parameters_sharded;
  const double gradients = costs->gradients - costs->gradients_sharded;
  struct weft_held_change change;
  switch (op) {
    case WEFT_OP_UNSHARD: change = (struct weft_held_change){begin, parameters, 0}; break;
    case WEFT_OP_RESHARD: change = (struct weft_held_change){end, -parameters, 0}; break;
    case WEFT_OP_REDUCE_GRAD: change = (struct weft_held_change){end, 0, -gradients}; break;
    default: return; /* TIE_GRAD gives nothing back */
  }
  if (held->changes != NULL) {
    held->changes[held->end++] = change;
    held->next_at = held->changes[held->first].at;
  }
}
