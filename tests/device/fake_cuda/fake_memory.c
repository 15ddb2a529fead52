/* Memory of the devices, mapped twice: at the addresses that are given out without any
 * permission, so that an access by anybody but the driver ends the process, and a second time for
 * the driver. Pinned memory is the host's. */
#define _GNU_SOURCE 1 /* memfd_create */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_driver.h"

#define REGION_BYTES (UINT64_C(1) << 32) /* addresses of a device */
#define ALIGNMENT UINT64_C(512)

static unsigned char *shown, *hidden; /* [FAKE_DEVICES_MAX][REGION_BYTES] */
static struct fake_block **blocks;    /* by address */
static uint32_t block_count, block_capacity;
static uint64_t blocks_created, used_bytes[FAKE_DEVICES_MAX];

static void map_regions(void) {
  const uint64_t bytes = FAKE_DEVICES_MAX * REGION_BYTES;
  const int file = memfd_create("weft-fake-cuda", 0);
  if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
    abort();
  }
  void *first = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  void *second = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (first == MAP_FAILED || second == MAP_FAILED) {
    abort();
  }
  (void)close(file);
  shown = first;
  hidden = second;
}

bool fake_address_is_devices(uintptr_t address) {
  return shown != NULL && address - (uintptr_t)shown < FAKE_DEVICES_MAX * REGION_BYTES;
}

void *fake_address_view(uintptr_t address) {
  if (fake_address_is_devices(address)) {
    return hidden + (address - (uintptr_t)shown);
  }
  return (void *)address; // NOLINT(performance-no-int-to-ptr): CUDA's addresses are numbers
}

/* The first block that begins behind the address. */
static uint32_t first_behind(uintptr_t address) {
  uint32_t low = 0, high = block_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (blocks[middle]->begin > address) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

struct fake_block *fake_block_at(uintptr_t address, uint64_t bytes) {
  const uint32_t at = first_behind(address);
  if (at == 0) {
    return NULL;
  }
  struct fake_block *block = blocks[at - 1];
  const uint64_t offset = address - block->begin;
  return offset < block->bytes && bytes <= block->bytes - offset ? block : NULL;
}

void fake_memory_forget(void) {
  for (uint32_t k = 0; k < block_count; k++) {
    fake_ranges_free(blocks[k]);
  }
  fake.statistics.bytes_max = fake.statistics.bytes;
}

static void add_block(uintptr_t begin, uint64_t bytes, int device) {
  const uint32_t at = first_behind(begin);
  struct fake_block *block = fake_allocate(sizeof *block);
  block->begin = begin;
  block->bytes = bytes;
  block->device = device;
  block->number = blocks_created++;
  blocks = fake_array_grow(blocks, &block_capacity, block_count + 1, sizeof(struct fake_block *));
  memmove(&blocks[at + 1], &blocks[at], (block_count - at) * sizeof(struct fake_block *));
  blocks[at] = block;
  block_count++;
  fake.statistics.allocations++;
}

/* The first hole of the device's region; between two blocks at least ALIGNMENT stays free, so that
 * a step over the end of one is not in the next. */
static uintptr_t find_hole(int device, uint64_t bytes) {
  const uintptr_t begin = (uintptr_t)shown + (uint64_t)device * REGION_BYTES;
  uintptr_t at = begin + ALIGNMENT;
  for (uint32_t k = first_behind(begin); k < block_count && blocks[k]->begin < begin + REGION_BYTES;
       k++) {
    if (blocks[k]->begin - at >= bytes + ALIGNMENT) {
      break;
    }
    at = blocks[k]->begin + (blocks[k]->bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  }
  assert(begin + REGION_BYTES - at > bytes + ALIGNMENT);
  return at;
}

static CUresult allocate(CUdeviceptr *data, size_t bytes) {
  const struct CUctx_st *context = fake_thread()->context;
  FAKE_TRY(fake_capture_forbid());
  if (context == NULL) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t *used = &used_bytes[context->device];
  if (bytes > fake.options.memory_bytes - *used || bytes > REGION_BYTES / 2) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (shown == NULL) {
    map_regions();
  }
  const uintptr_t at = find_hole(context->device, bytes);
  add_block(at, bytes, context->device);
  memset(fake_address_view(at), 0xcd, bytes);
  *used += bytes;
  fake.statistics.blocks++;
  fake.statistics.bytes += bytes;
  if (fake.statistics.bytes_max < fake.statistics.bytes) {
    fake.statistics.bytes_max = fake.statistics.bytes;
  }
  *data = at;
  return CUDA_SUCCESS;
}

/* All that uses it must have an order with the host that frees it. */
static CUresult release(uintptr_t data, bool pinned, const char *name) {
  FAKE_TRY(fake_capture_forbid());
  if (data == 0) {
    return CUDA_SUCCESS;
  }
  const uint32_t at = first_behind(data);
  struct fake_block *block = at > 0 ? blocks[at - 1] : NULL;
  if (block == NULL || block->begin != data || (block->device < 0) != pinned) {
    fake_find(FAKE_CUDA_FAULT, "%s of 0x%llx, which is not the address of a block", name,
              (unsigned long long)data);
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool lost = false; /* nobody waits for what does not run */
  for (uint32_t k = 0; k < FAKE_DEVICES_MAX; k++) {
    lost |= fake.lost[k] != CUDA_SUCCESS;
  }
  if (!lost) {
    struct fake_host *host = fake_host();
    const struct fake_operation operation = fake_operation_of(name, NULL);
    (void)fake_clock_tick(&host->clock, host->component);
    fake_access(block, 0, block->bytes, false, true, &operation, &host->clock, host->component);
  }
  memmove(&blocks[at - 1], &blocks[at], (block_count - at) * sizeof(struct fake_block *));
  block_count--;
  if (pinned) {
    fake.statistics.pinned_blocks--;
    free(fake_address_view(data));
  } else {
    fake.statistics.blocks--;
    fake.statistics.bytes -= block->bytes;
    used_bytes[block->device] -= block->bytes;
    memset(fake_address_view(data), 0xdd, block->bytes);
  }
  fake_ranges_free(block);
  free(block);
  return CUDA_SUCCESS;
}

static CUresult allocate_pinned(void **data, size_t bytes) {
  FAKE_TRY(fake_capture_forbid());
  if (fake_thread()->context == NULL) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void *at = NULL;
  if (bytes > fake.options.memory_bytes || posix_memalign(&at, 4096, bytes) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memset(at, 0xcd, bytes);
  add_block((uintptr_t)at, bytes, -1);
  fake.statistics.pinned_blocks++;
  *data = at;
  return CUDA_SUCCESS;
}

static CUresult information(size_t *free_bytes, size_t *total) {
  const struct CUctx_st *context = fake_thread()->context;
  if (context == NULL) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *total = fake.options.memory_bytes;
  *free_bytes = fake.options.memory_bytes - used_bytes[context->device];
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *data, size_t bytes) {
  FAKE_BODY(cuMemAlloc, allocate(data, bytes));
}

CUresult cuMemFree(CUdeviceptr data) { FAKE_BODY(cuMemFree, release(data, false, "cuMemFree")); }

CUresult cuMemHostAlloc(void **data, size_t bytes, unsigned int flags) {
  (void)flags;
  FAKE_BODY(cuMemHostAlloc, allocate_pinned(data, bytes));
}

CUresult cuMemFreeHost(void *data) {
  FAKE_BODY(cuMemFreeHost, release((uintptr_t)data, true, "cuMemFreeHost"));
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
  FAKE_BODY(cuMemGetInfo, information(free_bytes, total));
}

/* ---- The host's own accesses ---- */

static void host_access(const void *data, size_t bytes, bool writes) {
  pthread_mutex_lock(&fake.lock);
  struct fake_block *block = fake_block_at((uintptr_t)data, bytes);
  struct fake_host *host = fake_host();
  const struct fake_operation operation = fake_operation_of("the host", NULL);
  if (block == NULL || block->device >= 0) {
    fake_find(FAKE_CUDA_FAULT, "the host accesses %zu bytes at %p, which is not pinned memory",
              bytes, data);
  } else {
    const uint64_t offset = (uintptr_t)data - block->begin;
    (void)fake_clock_tick(&host->clock, host->component);
    host->version++;
    fake_access(block, offset, offset + bytes, !writes, writes, &operation, &host->clock,
                host->component);
  }
  pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_host_reads(const void *data, size_t bytes) { host_access(data, bytes, false); }
void fake_cuda_host_writes(const void *data, size_t bytes) { host_access(data, bytes, true); }

void *fake_cuda_view(const void *data) {
  pthread_mutex_lock(&fake.lock);
  void *view = fake_address_view((uintptr_t)data);
  pthread_mutex_unlock(&fake.lock);
  return view;
}
