/* What every transport's groups must do (weft/transport.h, "Groups"), as cases that a
 * rank plays: in a thread, in virtual time, or alone in a process of its own. The same
 * case on all ranks of a world; several one after the other in one world, whatever its
 * number of ranks:
 *
 *     struct conformance_rank rank = {.transport = endpoint};
 *     for (uint32_t k = 0; k < groups_case_count(); k++) {
 *       groups_case_begin(k, &rank);
 *       while (conformance_step(&rank)) {
 *       }
 *       // rank.status, rank.error
 *     }
 *     groups_failure_begin(&rank); // the world's last: it ends with groups_failure_is_right()
 */
#ifndef TESTS_SUPPORT_GROUPS_H
#define TESTS_SUPPORT_GROUPS_H

#include "support_conformance.h"

/* From now on memory is the GPU's, and members are connected by open() of the transport: a world has
 * one case. NULL: the host's again. */
void groups_use_gpu(struct weft_device *device);

uint32_t groups_case_count(void);
const char *groups_case_name(uint32_t number);
/* Sets advance, end and state, which end() frees. Group ids are from 1000 x number on. */
void groups_case_begin(uint32_t number, struct conformance_rank *rank);

/* The world's last rank fails while the others have collectives in flight with it. All
 * must end with its error. Worlds of two ranks or more. */
void groups_failure_begin(struct conformance_rank *rank);
bool groups_failure_is_right(const struct conformance_rank *rank);

#endif
