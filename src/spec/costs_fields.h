/* The numbers of a stage, of a hop, of an all-reduce and of a part by name: reading, writing, checking and
 * dividing go by these tables, so that a field is added in one place. */
#ifndef SPEC_COSTS_FIELDS_H
#define SPEC_COSTS_FIELDS_H

#include <weft/costs.h>

struct weft_cost_field {
  const char *name;
  size_t offset;      /* of the double in its struct */
  bool may_be_absent; /* a negative number stands for "the default" */
};

static inline double *weft_cost_at(void *costs, const struct weft_cost_field *field) {
  return (double *)(void *)((char *)costs + field->offset);
}

static inline double weft_cost_of(const void *costs, const struct weft_cost_field *field) {
  return *(const double *)(const void *)((const char *)costs + field->offset);
}

/* Ended by a field without a name. */
extern const struct weft_cost_field weft_stage_cost_fields[];
extern const struct weft_cost_field weft_hop_cost_fields[];
extern const struct weft_cost_field weft_all_reduce_cost_fields[];
extern const struct weft_cost_field weft_part_cost_fields[];

/* F = I = W = 1, B = 2, activation 1. */
struct weft_stage_costs weft_stage_costs_default(void);

/* How long an op of a stage takes; 0 for those that have no time of their own, and for overlaps. */
double weft_stage_time(const struct weft_stage_costs *stage, enum weft_op op);

/* From 1e-6 to 1e6. */
bool weft_rank_factor_is_sane(double number);

/* A whole number from 1 to WEFT_MICROBATCHES_MAX. */
bool weft_microbatch_size_is_sane(double number);

/* Not negative, not infinite, not NaN, at most WEFT_COST_MAX. */
bool weft_cost_is_sane(double number);

/* The second part of a transfer: bytes / bytes_per_unit; 0 without a rate. Bytes < 0: the hop's. */
double weft_hop_transfer(const struct weft_hop_costs *hop, double bytes);

#endif
