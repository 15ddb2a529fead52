/* Parameters and gradients of a rank over time; see rank_memory.h. */
#include "sim/rank_memory.h"

#include <assert.h>
#include <math.h>

#include "ir/action.h"

bool weft_memory_exceeds_activations(const struct weft_costs *costs) {
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    const struct weft_stage_costs *stage = &costs->stages[s];
    if (stage->parameters > 0 || stage->gradients > 0 || stage->parameters_sharded > 0 ||
        stage->gradients_sharded > 0) {
      return true;
    }
  }
  return false;
}

size_t weft_memory_changes_max(const struct weft_program *program) {
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

void weft_rank_memory_init(struct weft_rank_memory *memory, struct weft_memory_change *changes) {
  *memory = (struct weft_rank_memory){.next_at = INT64_MAX, .changes = changes};
}

static void change_memory(struct weft_rank_memory *memory, double parameters, double gradients) {
  memory->parameters += parameters;
  memory->gradients += gradients;
  memory->total += parameters + gradients;
  memory->peak_parameters = fmax(memory->peak_parameters, memory->parameters);
  memory->peak_gradients = fmax(memory->peak_gradients, memory->gradients);
  memory->peak_memory = fmax(memory->peak_memory, memory->total);
}

void weft_rank_memory_add_stage(struct weft_rank_memory *memory,
                                const struct weft_stage_costs *costs, bool is_sharded,
                                bool has_backward) {
  change_memory(memory, is_sharded ? costs->parameters_sharded : costs->parameters,
                has_backward ? costs->gradients_sharded : 0);
}

void weft_rank_memory_advance(struct weft_rank_memory *memory, int64_t until) {
  assert(memory->first <= memory->end);
  while (memory->first < memory->end && memory->changes[memory->first].at <= until) {
    const struct weft_memory_change *change = &memory->changes[memory->first++];
    change_memory(memory, change->parameters, change->gradients);
  }
  memory->next_at = memory->first < memory->end ? memory->changes[memory->first].at : INT64_MAX;
}

void weft_rank_memory_first_backward(struct weft_rank_memory *memory,
                                     const struct weft_stage_costs *costs, int64_t at) {
  weft_rank_memory_advance(memory, at);
  change_memory(memory, 0, costs->gradients - costs->gradients_sharded);
}

void weft_rank_memory_collective(struct weft_rank_memory *memory, enum weft_op op,
                                 const struct weft_stage_costs *costs, int64_t begin, int64_t end) {
  assert(begin <= end);
  assert(weft_op_in(op, WEFT_OPS_SHARD));
  const double parameters = costs->parameters - costs->parameters_sharded;
  const double gradients = costs->gradients - costs->gradients_sharded;
  struct weft_memory_change change;
  switch (op) {
    case WEFT_OP_UNSHARD: change = (struct weft_memory_change){begin, parameters, 0}; break;
    case WEFT_OP_RESHARD: change = (struct weft_memory_change){end, -parameters, 0}; break;
    case WEFT_OP_REDUCE_GRAD: change = (struct weft_memory_change){end, 0, -gradients}; break;
    default: return; /* TIE_GRAD gives nothing back */
  }
  if (memory->changes != NULL) {
    memory->changes[memory->end++] = change;
    memory->next_at = memory->changes[memory->first].at;
  }
}
