/* Edit distance (optimal string alignment, so that a swap of two letters counts once), without regard
 * to case: for suggestions. */
#include <assert.h>
#include <ctype.h>

#include <weft/support.h>

enum { NAME_SIZE_MAX = 48 };

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static bool same_letter(char a, char b) {
  return tolower((unsigned char)a) == tolower((unsigned char)b);
}

size_t weft_name_distance(const char *a, size_t a_size, const char *b, size_t b_size) {
  assert(a != NULL && b != NULL);
  if (a_size > NAME_SIZE_MAX || b_size > NAME_SIZE_MAX) {
    return SIZE_MAX;
  }
  size_t rows[3][NAME_SIZE_MAX + 1]; /* the last three rows of the distance matrix */
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
