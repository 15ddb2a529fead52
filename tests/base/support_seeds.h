/* How many random cases a test tries: `make test` some, `make test-long` more, by WEFT_TEST_SEEDS. */
#ifndef TESTS_SUPPORT_SEEDS_H
#define TESTS_SUPPORT_SEEDS_H

#include <stdint.h>
#include <stdlib.h>

static inline uint32_t test_seeds(uint32_t otherwise) {
  const char *text = getenv("WEFT_TEST_SEEDS");
  return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

#endif
