/* The check of an answer before it is returned. Internal to the module. */
#ifndef PLAN_CHECK_H
#define PLAN_CHECK_H

#include <weft/search.h>

/* Lowers the answer's table, proves that the program cannot hang under rendezvous, simulates
 * the table, and compares the times and the memory with the answer's and with the limit.
 * WEFT_OK: the answer has its simulation, and peak_memory is the simulated one.
 * WEFT_ERR_INTERNAL with a message: a bug in Weft. WEFT_ERR_MEMORY. On failure the answer is
 * unchanged. */
enum weft_status weft_plan_check(struct weft_search_answer *answer, double memory_limit,
                                 struct weft_error *error);

#endif
