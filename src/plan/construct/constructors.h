/* Constructors build orders and offer them to an incumbent; all but the first need a chain. Each is one
 * function in a file of its own. first_orders.c and improve/rounds.c call them. Internal to the module. */
#ifndef PLAN_CONSTRUCTORS_H
#define PLAN_CONSTRUCTORS_H

#include "plan/problem/incumbent.h"

/* Some order that fits, if one is found; of a chain those of all constructors below that take little
 * time (first_orders.c). */
enum weft_status weft_construct_first(struct weft_incumbent *incumbent, struct weft_error *error);

/* The named schedules on the problem's placement. */
enum weft_status weft_construct_named(struct weft_incumbent *incumbent, struct weft_error *error);

/* One microbatch after the other; of a chain, whose first `held` stages run their backwards only when
 * all forwards are done: then their gradients take no memory meanwhile. */
void weft_order_serial(const struct weft_problem *problem, struct weft_plan_clock *clock,
                       uint32_t held, struct weft_order *order);

/* That of them which fits whenever any order does. */
void weft_construct_serial(struct weft_incumbent *incumbent);

/* V placement from building blocks, for any memory; nothing on other placements. */
enum weft_status weft_construct_v_blocks(struct weft_incumbent *incumbent,
                                         struct weft_error *error);

/* Several stages per rank, any placement and costs; nothing with one stage per rank. */
enum weft_status weft_construct_chain_greedy(struct weft_incumbent *incumbent,
                                             struct weft_error *error);

/* Orders that repeat, for any placement and costs. For about `work` nanoseconds of a typical core;
 * returns the work done. */
uint64_t weft_construct_periodic(struct weft_incumbent *incumbent, uint64_t work, uint64_t seed);

/* Orders for many ranks from one for few; nothing for few ranks. For about `work` nanoseconds of a
 * typical core; returns the work done. */
uint64_t weft_construct_scaled(struct weft_incumbent *incumbent, uint64_t work, uint64_t seed);

/* Beam search, which for small problems finds the optimum and raises the bound to it. For about
 * `work` nanoseconds of a typical core; does nothing when that is too little. Returns the work
 * done. */
uint64_t weft_construct_beam(struct weft_incumbent *incumbent, uint64_t work);

/* Beam searches for targets between the bound and the best value, within the time windows of each;
 * also raises the bound. For about `work` nanoseconds of a typical core; returns the work done. */
uint64_t weft_construct_guided(struct weft_incumbent *incumbent, uint64_t work);

/* From the time windows that a bound leaves open, for any placement; also raises the bound. Visits
 * about *work states of tables at most, as weft_chain_sharpen() does, and sets it to as many as it
 * has visited; does nothing when the tables would be too large for that. */
void weft_construct_windows(struct weft_incumbent *incumbent, uint64_t *work);

#endif
