/* What the files of this module share. */
#ifndef LAUNCH_SUPERVISOR_H
#define LAUNCH_SUPERVISOR_H

#include <weft/launch.h>

/* Decimal digits and nothing else. `text` may be NULL. */
bool weft_launch_read_number(const char *text, uint64_t *number);

/* The rank that a process has whose environment this is, NAME=VALUE after NAME=VALUE, each with its
 * NUL. False: no launcher started it. */
bool weft_launch_rank_in(const char *environment, size_t size, uint32_t *rank);

/* "rank 2 (process 4711) is stopped": of this host's ranks, whose launcher is this process, the
 * first that cannot have come. */
bool weft_launch_find_missing(intmax_t launcher, char *text, size_t size);

/* Writes "<program>: <who><message>" and, unless it is NULL or empty, "  hint: <hint>" to
 * standard error, by one write(): reports of several processes do not mix. */
void weft_launch_report(const char *hint, const char *format, ...) WEFT_PRINTF(2, 3);

#endif
