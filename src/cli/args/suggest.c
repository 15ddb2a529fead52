/* The nearest of several names, by weft_name_distance(). */
#include "cli/args/suggest.h"

#include <assert.h>

#include <weft/support.h>

void weft_cli_suggestion_init(struct weft_cli_suggestion *suggestion, const char *wanted,
                              size_t wanted_size) {
  assert(suggestion != NULL);
  *suggestion = (struct weft_cli_suggestion){.wanted = wanted, .wanted_size = wanted_size};
  suggestion->distance = wanted_size / 3 + 2; /* one more than is near enough */
}

void weft_cli_suggestion_offer(struct weft_cli_suggestion *suggestion, const char *name,
                               size_t name_size) {
  assert(suggestion != NULL);
  const size_t distance =
      weft_name_distance(suggestion->wanted, suggestion->wanted_size, name, name_size);
  /* A suggestion that shares no letter is worse than none. */
  const size_t longer = suggestion->wanted_size > name_size ? suggestion->wanted_size : name_size;
  if (distance < suggestion->distance && distance < longer) {
    suggestion->best = name;
    suggestion->distance = distance;
  }
}
