/* What the files of this module share. */
#ifndef LAUNCH_SUPERVISOR_H
#define LAUNCH_SUPERVISOR_H

#include <weft/launch.h>

/* Decimal digits and nothing else. `text` may be NULL. */
bool weft_launch_read_number(const char *text, uint64_t *number);

/* "rank 2 (process 4711) is stopped": of this host's ranks, whose launcher is this process, the
 * first that cannot have come. */
bool weft_launch_find_missing(intmax_t launcher, char *text, size_t size);

/* Writes "<program>: <who><message>" and, unless it is NULL or empty, "  hint: <hint>" to
 * standard error, by one write(): reports of several processes do not mix. */
void weft_launch_report(const char *hint, const char *format, ...) WEFT_PRINTF(2, 3);

#endif
