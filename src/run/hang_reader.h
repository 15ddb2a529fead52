/* Dumps read back. */
#ifndef RUN_HANG_READER_H
#define RUN_HANG_READER_H

#include "run/hang.h"

/* Strictly: every field, no other, each in its range. WEFT_ERR_FORMAT names the
 * field (ranks[3].phase), with line and column; WEFT_ERR_LIMIT for absurd sizes;
 * WEFT_ERR_MEMORY. Give it back with weft_hang_finish(). */
enum weft_status weft_hang_read(const struct weft_allocator *allocator, const char *dump,
                                size_t size, const char *name, struct weft_hang *hang,
                                struct weft_error *error);

#endif
