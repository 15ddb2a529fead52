/* Each block carries its size before it, so that a wrong old_size is caught. */
#include "support_memory.h"

#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADER = alignof(max_align_t) > sizeof(size_t) ? alignof(max_align_t) : sizeof(size_t) };

static void *block_of(void *pointer) { return (char *)pointer - HEADER; }

static void check_old_size(void *pointer, size_t old_size) {
  const size_t size = pointer == NULL ? 0 : *(size_t *)block_of(pointer);
  if (size != old_size) {
    (void)fprintf(stderr, "reallocate: old_size is %zu, the block has %zu\n", old_size, size);
    abort();
  }
}

static void *reallocate(void *context, void *pointer, size_t old_size, size_t new_size) {
  struct test_memory *memory = context;
  check_old_size(pointer, old_size);
  if (new_size == 0) {
    memory->blocks -= pointer != NULL;
    memory->bytes -= old_size;
    free(pointer != NULL ? block_of(pointer) : NULL);
    return NULL;
  }
  memory->calls++;
  if (memory->fail_at != 0 && memory->calls >= memory->fail_at) {
    return NULL;
  }
  char *block = realloc(pointer != NULL ? block_of(pointer) : NULL, new_size + HEADER);
  if (block == NULL) {
    abort();
  }
  *(size_t *)(void *)block = new_size;
  memory->blocks += pointer == NULL;
  /* While a block moves, old and new exist both. */
  if (memory->bytes + new_size > memory->bytes_peak) {
    memory->bytes_peak = memory->bytes + new_size;
  }
  memory->bytes += new_size - old_size;
  return block + HEADER;
}

void test_memory_init(struct test_memory *memory) {
  *memory = (struct test_memory){.allocator = {.reallocate = reallocate, .context = memory}};
}
