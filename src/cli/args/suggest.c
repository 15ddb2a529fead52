/* Edit distance (optimal string alignment, so that a swap of two letters counts
 * once), without regard to case. */
#include "cli/args/suggest.h"

#include <assert.h>
#include <ctype.h>

#define NAME_MAX_SIZE 48 /* more is no typing mistake */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static bool same_letter(char a, char b) {
  return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static size_t distance_between(const char *a, size_t a_size, const char *b, size_t b_size) {
  size_t rows[3][NAME_MAX_SIZE + 1]; /* the last three rows of the distance matrix */
  for (size_t j = 0; j <= b_size; j++) {
    rows[0][j] = j;
  }
  for (size_t i = 1; i <= a_size; i++) {
    size_t *now = rows[i % 3];
    const size_t *before = rows[(i + 2) % 3];
    const size_t *before2 = rows[(i + 1) % 3];
    now[0] = i;
    for (size_t j = 1; j <= b_size; j++) {
      const size_t change = before[j - 1] + (same_letter(a[i - 1], b[j - 1]) ? 0 : 1);
      now[j] = smaller(change, smaller(before[j], now[j - 1]) + 1);
      if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1])) {
        now[j] = smaller(now[j], before2[j - 2] + 1);
      }
    }
  }
  return rows[a_size % 3][b_size];
}

void weft_cli_suggestion_init(struct weft_cli_suggestion *suggestion, const char *wanted,
                              size_t wanted_size) {
  assert(suggestion != NULL);
  *suggestion = (struct weft_cli_suggestion){.wanted = wanted, .wanted_size = wanted_size};
  suggestion->distance = wanted_size / 3 + 2; /* one more than is near enough */
}

void weft_cli_suggestion_offer(struct weft_cli_suggestion *suggestion, const char *name,
                               size_t name_size) {
  assert(suggestion != NULL);
  if (suggestion->wanted_size > NAME_MAX_SIZE || name_size > NAME_MAX_SIZE || name_size == 0) {
    return;
  }
  const size_t distance =
      distance_between(suggestion->wanted, suggestion->wanted_size, name, name_size);
  /* A suggestion that shares no letter is worse than none. */
  const size_t longer = suggestion->wanted_size > name_size ? suggestion->wanted_size : name_size;
  if (distance < suggestion->distance && distance < longer) {
    suggestion->best = name;
    suggestion->best_size = name_size;
    suggestion->distance = distance;
  }
}
