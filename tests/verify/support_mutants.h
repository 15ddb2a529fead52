/* Mutants: a valid program with one thing broken, and the finding that must
 * come of it, rule and place. One kind of mutant is one function, in
 * support_mutants_*.c; what it expects is worked out from the mutation alone. */
#ifndef TESTS_SUPPORT_MUTANTS_H
#define TESTS_SUPPORT_MUTANTS_H

#include <weft/support.h>
#include <weft/verify.h>

#include "support_draft.h"

/* Where the finding must be. */
enum expected_place {
  AT_RECORD,  /* at this very record */
  AT_PAIR,    /* something is missing: on the stage's rank, at another computation of the same
                 stage and microbatch or at the row as a whole */
  AT_ROW_END, /* on this rank, at no action */
  ANYWHERE    /* there is no natural place */
};

struct expected {
  enum weft_rule rule;
  enum expected_place where;
  uint32_t rank;
  uint64_t step;
  struct weft_action action;
};

#define EXPECTED_MAX 4u

struct mutant {
  struct weft_random *random;
  struct draft draft;      /* in: the valid program; out: the mutant */
  const uint32_t *rank_of; /* [stage_count] */
  uint32_t stage_count, microbatch_count;
  struct expected expected[EXPECTED_MAX]; /* all of them must be found */
  uint32_t expected_count;
};

/* Which programs a kind is for. */
enum mutant_shape { MUTANT_OF_ANY, MUTANT_OF_CHAIN, MUTANT_OF_GRAPH };

struct mutant_kind {
  const char *name;
  /* False when the program has no place for it. */
  bool (*make)(struct mutant *mutant);
  enum mutant_shape shape;
};

size_t mutant_kind_count(void);
const struct mutant_kind *mutant_kind_at(size_t index);

/* Whether a finding is what was expected. */
bool mutant_matches(const struct expected *expected, const struct weft_finding *finding);

#endif
