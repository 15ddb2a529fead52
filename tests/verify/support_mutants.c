/* All kinds of mutants, and whether a finding is what one expects
 * (support_mutants.h). The kinds themselves are in support_mutants_*.c. */
#include "support_mutants.h"

#include <string.h>

#include "support_mutant_tools.h"

static const struct mutant_group *const groups[] = {&mutant_group_presence, &mutant_group_change,
                                                    &mutant_group_order, &mutant_group_edge};
enum { GROUP_COUNT = sizeof groups / sizeof groups[0] };

size_t mutant_kind_count(void) {
  size_t count = 0;
  for (size_t k = 0; k < GROUP_COUNT; k++) {
    count += groups[k]->count;
  }
  return count;
}

const struct mutant_kind *mutant_kind_at(size_t index) {
  for (size_t k = 0; k < GROUP_COUNT; k++) {
    if (index < groups[k]->count) {
      return &groups[k]->kinds[index];
    }
    index -= groups[k]->count;
  }
  return NULL;
}

bool mutant_matches(const struct expected *expected, const struct weft_finding *finding) {
  const struct weft_location *place = &finding->location;
  const struct weft_action *action = place->action;
  if (finding->rule != expected->rule || finding->message == NULL || finding->message[0] == '\0') {
    return false;
  }
  switch (expected->where) {
    case AT_RECORD:
      return place->rank == expected->rank && place->step == expected->step && action != NULL &&
             memcmp(action, &expected->action, sizeof *action) == 0;
    case AT_PAIR:
      return place->rank == expected->rank &&
             (action == NULL ||
              (mutant_op_in(action, COMPUTE) && action->stage == expected->action.stage &&
               action->microbatch == expected->action.microbatch));
    case AT_ROW_END: return place->rank == expected->rank && action == NULL;
    default: return true;
  }
}
