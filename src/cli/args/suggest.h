/* The nearest of several names to a mistyped one. */
#ifndef CLI_DID_YOU_MEAN_H
#define CLI_DID_YOU_MEAN_H

#include <stdbool.h>
#include <stddef.h>

/* Remembers the best candidate so far; zero-initialise `best`, set `wanted`. */
struct weft_cli_suggestion {
  const char *wanted;
  size_t wanted_size;
  const char *best; /* NULL: none is near enough */
  size_t distance;
};

void weft_cli_suggestion_init(struct weft_cli_suggestion *suggestion, const char *wanted,
                              size_t wanted_size);
void weft_cli_suggestion_offer(struct weft_cli_suggestion *suggestion, const char *name,
                               size_t name_size);

#endif
