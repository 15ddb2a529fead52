/* An allocator that counts, checks old sizes, and can be made to fail, for
 * tests of memory: no leak, no crash at any failing allocation, peak bounded. */
#ifndef TESTS_SUPPORT_MEMORY_H
#define TESTS_SUPPORT_MEMORY_H

#include <weft/base.h>

struct test_memory {
  struct weft_allocator allocator; /* pass its address */
  uint64_t calls;                  /* allocations and growths so far */
  uint64_t fail_at;                /* every call from this one on fails, 1 = the first; 0 = none */
  size_t blocks;                   /* held now */
  size_t bytes;                    /* held now */
  size_t bytes_peak;
};

/* The struct must stay where it is while in use. */
void test_memory_init(struct test_memory *memory);

#endif
