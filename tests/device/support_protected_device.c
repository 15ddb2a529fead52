/* See support_protected_device.h. */
#define _GNU_SOURCE 1 /* memfd_create */
#include "support_protected_device.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <weft/support.h>

#define REGION_BYTES (UINT64_C(1) << 28)

/* A free block, for the next request of its size. */
struct hole {
  struct hole *next;
  uint64_t offset, size;
};

static struct {
  struct weft_device base;
  pthread_mutex_t lock;
  unsigned char *shown;  /* [REGION_BYTES] without permissions: what addresses point into */
  unsigned char *hidden; /* [REGION_BYTES] the same memory */
  uint64_t used;         /* the region's first so many bytes have been given out */
  uint64_t blocks, allocations;
  struct hole *holes;
} device = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *test_device_view(const struct weft_device *of, const void *data) {
  if (of == NULL) {
    void *same;
    memcpy(&same, &data, sizeof same); /* without const */
    return same;
  }
  assert(of == &device.base);
  const uint64_t offset = (uint64_t)((const unsigned char *)data - device.shown);
  assert(offset < REGION_BYTES); /* else the host's address */
  return device.hidden + offset;
}

void *test_tensor_view(const struct weft_tensor *tensor) {
  return test_device_view(tensor->device, tensor->data);
}

/* ---- The device's functions ---- */

static uint64_t rounded(uint64_t bytes) {
  return (bytes / WEFT_DEVICE_ALIGN + 1) * WEFT_DEVICE_ALIGN;
}

static bool take_hole(uint64_t size, uint64_t *offset) {
  for (struct hole **link = &device.holes; *link != NULL; link = &(*link)->next) {
    struct hole *hole = *link;
    if (hole->size == size) {
      *offset = hole->offset;
      *link = hole->next;
      free(hole);
      return true;
    }
  }
  return false;
}

static void *allocate(struct weft_device *self, const struct weft_allocator *allocator,
                      uint64_t bytes) {
  (void)self;
  (void)allocator;
  uint64_t offset = 0;
  if (bytes >= REGION_BYTES) {
    return NULL;
  }
  const uint64_t size = rounded(bytes);
  pthread_mutex_lock(&device.lock);
  bool found = take_hole(size, &offset);
  if (!found && size <= REGION_BYTES - device.used) {
    offset = device.used;
    device.used += size;
    found = true;
  }
  device.blocks += found;
  device.allocations += found;
  pthread_mutex_unlock(&device.lock);
  if (!found) {
    return NULL;
  }
  memset(device.hidden + offset, 0, size);
  return device.shown + offset;
}

/* When nothing is left the region begins anew, so that holes of all sizes go. */
static void release(struct weft_device *self, const struct weft_allocator *allocator, void *data,
                    uint64_t bytes) {
  (void)self;
  (void)allocator;
  if (data == NULL) {
    return;
  }
  struct hole *hole = malloc(sizeof *hole);
  assert(hole != NULL);
  hole->offset = (uint64_t)((unsigned char *)data - device.shown);
  hole->size = rounded(bytes);
  memset(test_device_view(&device.base, data), 0xdd, hole->size);
  pthread_mutex_lock(&device.lock);
  assert(device.blocks > 0 && hole->offset + hole->size <= device.used);
  hole->next = device.holes;
  device.holes = hole;
  if (--device.blocks == 0) {
    while ((hole = device.holes) != NULL) {
      device.holes = hole->next;
      free(hole);
    }
    device.used = 0;
  }
  pthread_mutex_unlock(&device.lock);
}

static enum weft_status copy(struct weft_device *self, const struct weft_copy *copy,
                             struct weft_stream *stream, struct weft_error *error) {
  unsigned char *to = test_device_view(copy->to_device, copy->to);
  const unsigned char *from = test_device_view(copy->from_device, copy->from);
  (void)self;
  (void)stream;
  (void)error;
  for (uint64_t k = 0; k < copy->rows; k++) {
    memcpy(to + k * copy->to_stride, from + k * copy->from_stride, copy->row_bytes);
  }
  return WEFT_OK;
}

static enum weft_status fill(struct weft_device *self, void *data, unsigned char value,
                             uint64_t bytes, struct weft_stream *stream, struct weft_error *error) {
  (void)stream;
  (void)error;
  if (bytes > 0) {
    memset(test_device_view(self, data), value, bytes);
  }
  return WEFT_OK;
}

static enum weft_status checksum(struct weft_device *self, const void *data, uint64_t bytes,
                                 uint64_t *sum, struct weft_error *error) {
  (void)error;
  *sum = weft_checksum(test_device_view(self, data), bytes);
  return WEFT_OK;
}

static const struct weft_device_ops ops = {.name = "protected",
                                           .memory = WEFT_MEMORY_DEVICE,
                                           .allocate = allocate,
                                           .free = release,
                                           .copy = copy,
                                           .fill = fill,
                                           .checksum = checksum};

/* ---- One for the process ---- */

static void open_device(void) {
  const int file = memfd_create("weft-protected-device", 0);
  if (file < 0 || ftruncate(file, (off_t)REGION_BYTES) != 0) {
    abort();
  }
  void *shown = mmap(NULL, REGION_BYTES, PROT_NONE, MAP_SHARED, file, 0);
  void *hidden = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shown == MAP_FAILED || hidden == MAP_FAILED) {
    abort();
  }
  (void)close(file);
  device.shown = shown;
  device.hidden = hidden;
  device.base.ops = &ops;
}

struct weft_device *protected_device(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, open_device);
  return &device.base;
}

uint64_t protected_device_blocks(void) {
  pthread_mutex_lock(&device.lock);
  const uint64_t blocks = device.blocks;
  pthread_mutex_unlock(&device.lock);
  return blocks;
}

uint64_t protected_device_allocations(void) {
  pthread_mutex_lock(&device.lock);
  const uint64_t allocations = device.allocations;
  pthread_mutex_unlock(&device.lock);
  return allocations;
}

/* ---- The device of a suite ---- */

static bool is_chosen(const char *name) {
  const char *chosen = getenv("WEFT_TEST_DEVICE");
  return chosen != NULL && strcmp(chosen, name) == 0;
}

struct weft_device *test_device(void) {
  return is_chosen("protected") || is_chosen("staged") ? protected_device() : NULL;
}

void test_device_restrict(struct weft_transport *transport) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct weft_transport_ops restricted[8]; /* they outlive worlds, which own theirs */
  struct weft_transport_ops weaker;
  unsigned k = 0;
  if (!is_chosen("staged") || !transport->ops->device_memory) {
    return;
  }
  memcpy(&weaker, transport->ops, sizeof weaker);
  weaker.device_memory = false;
  pthread_mutex_lock(&lock);
  while (restricted[k].name != NULL && memcmp(&restricted[k], &weaker, sizeof weaker) != 0) {
    k++;
    assert(k < 8);
  }
  memcpy(&restricted[k], &weaker, sizeof weaker);
  transport->ops = &restricted[k];
  pthread_mutex_unlock(&lock);
}

void *test_device_copy(const void *data, uint64_t bytes) {
  void *to = weft_device_allocate(test_device(), NULL, bytes);
  assert(to != NULL);
  memcpy(test_device_view(test_device(), to), data, bytes);
  return to;
}

void *test_block_allocate(uint64_t bytes) {
  return test_device() != NULL ? weft_device_allocate(test_device(), NULL, bytes) : malloc(bytes);
}

void test_block_free(void *data, uint64_t bytes) {
  if (test_device() != NULL) {
    weft_device_free(test_device(), NULL, data, bytes);
  } else {
    free(data);
  }
}
