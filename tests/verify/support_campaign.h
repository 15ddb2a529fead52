/* The verifier against brute force: random small programs, every model, and
 * everything that must hold between the two. Shared by the test of every run
 * and by the long one. */
#ifndef TESTS_SUPPORT_CAMPAIGN_H
#define TESTS_SUPPORT_CAMPAIGN_H

#include <weft/ir.h>

struct campaign {
  /* in */
  uint64_t seed;
  uint32_t programs;
  bool communicate; /* programs with SEND and RECV, or compute-only tables */
  bool graph;       /* stages that form a random graph, or a chain */
  /* out: counts of (program, model) pairs, and of programs */
  uint64_t complete;  /* pairs that complete */
  uint64_t stuck;     /* pairs that get stuck */
  uint64_t cycles;    /* reported cycles that were replayed */
  uint64_t states;    /* states explored */
  uint64_t skips;     /* transfers between stages that are no neighbours */
  uint64_t grown;     /* stuck pairs that complete with more than one slot and not with fewer */
  uint32_t differing; /* programs whose verdict depends on the model */
  /* programs whose verdict depends on: */
  uint32_t edge_pair;   /* one channel per boundary or per pair of ranks */
  uint32_t pair_rank;   /* ... per pair or per rank */
  uint32_t one_two;     /* one slot or two */
  uint32_t two_eager;   /* two slots or any number */
  uint32_t misordered;  /* programs with a boundary whose two sides differ in order */
  char complaint[8192]; /* the first disagreement, with the program */
};

/* False at the first disagreement. */
bool campaign_run(struct campaign *campaign);

#endif
