/* The memory that a rank holds over time, and its peaks. Activations come and go
 * with the rank's compute, which is in the order of the row. Parameters come when
 * an UNSHARD begins and go when a RESHARD has ended; gradients come when the
 * stage's first backward begins and go when its REDUCE_GRAD has ended. Collectives
 * run on a stream of their own, one after the other, and may be far behind the
 * compute: what they change is kept in a queue until its time has come. What is at
 * the same time happens in the order of the row. */
#ifndef SIM_HELD_MEMORY_H
#define SIM_HELD_MEMORY_H

#include <weft/costs.h>
#include <weft/ir.h>

struct weft_held_change {
  int64_t at;
  double parameters;
  double gradients;
};

struct weft_held_memory {
  double activation; /* held now */
  double parameters;
  double gradients;
  double memory; /* all of them */
  double peak_activation;
  double peak_parameters;
  double peak_gradients;
  double peak_memory;
  int64_t peak_at;                  /* when the activations peak first */
  int64_t next_at;                  /* of changes[first]; INT64_MAX: there is none */
  struct weft_held_change *changes; /* by collectives, to come: [first] ... [end - 1] */
  size_t first;
  size_t end;
};

/* Whether there is anything to hold besides activations. If not, nobody needs
 * room for changes. */
bool weft_held_counts_more(const struct weft_costs *costs);

/* How many changes there may be: the most collectives of any rank. */
size_t weft_held_changes_max(const struct weft_program *program);

/* Nothing is held. `changes` has that room, and may serve one rank after the
 * other; NULL: parameters and gradients have no sizes. */
void weft_held_init(struct weft_held_memory *held, struct weft_held_change *changes);

/* What is there of a stage from the beginning: its shares. Parameters of a program
 * that never shards them are whole, and without backwards there are no gradients. */
void weft_held_add_stage(struct weft_held_memory *held, const struct weft_stage_costs *costs,
                         bool is_sharded, bool has_backward);

/* The first backward of a stage begins. Times never descend, here and below. */
void weft_held_first_backward(struct weft_held_memory *held, const struct weft_stage_costs *costs,
                              int64_t at);

/* A collective of the row, with its times on the stream. */
void weft_held_collective(struct weft_held_memory *held, enum weft_op op,
                          const struct weft_stage_costs *costs, int64_t begin, int64_t end);

/* Everything up to a time happens; at the end of a row INT64_MAX. */
void weft_held_settle(struct weft_held_memory *held, int64_t until);

/* Compute takes activation memory, or gives it back. */
static inline void weft_hold(struct weft_held_memory *held, double activation, int64_t at) {
  if (held->next_at <= at) {
    weft_held_settle(held, at);
  }
  held->activation += activation;
  held->memory += activation;
  if (held->activation > held->peak_activation) {
    held->peak_activation = held->activation;
    held->peak_at = at;
  }
  held->peak_memory = held->memory > held->peak_memory ? held->memory : held->peak_memory;
}

#endif
