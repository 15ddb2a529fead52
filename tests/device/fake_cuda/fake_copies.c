/* Work: copies, fills and writes of a word; and what all work has in common. */
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

/* ---- What work accesses ---- */

static CUresult visit_rows(struct fake_visitor *visitor, uintptr_t data, uint64_t width,
                           uint64_t rows, uint64_t stride, bool writes) {
  if (width == stride) {
    return visitor->visit(visitor, data, width * rows, !writes, writes);
  }
  for (uint64_t k = 0; k < rows; k++) {
    FAKE_TRY(visitor->visit(visitor, data + k * stride, width, !writes, writes));
  }
  return CUDA_SUCCESS;
}

/* Neither the device's nor pinned: any memory of the host, which only copies access. */
static bool is_pageable(uintptr_t data) {
  return !fake_address_is_devices(data) && fake_block_at(data, 1) == NULL;
}

CUresult fake_work_visit(const struct fake_work *work, struct fake_visitor *visitor) {
  switch (work->kind) {
    case FAKE_WORK_COPY:
      if (!work->of.copy.from_pageable) {
        FAKE_TRY(visit_rows(visitor, work->of.copy.from, work->of.copy.width, work->of.copy.rows,
                            work->of.copy.from_stride, false));
      }
      return work->of.copy.to_pageable
                 ? CUDA_SUCCESS
                 : visit_rows(visitor, work->of.copy.to, work->of.copy.width, work->of.copy.rows,
                              work->of.copy.to_stride, true);
    case FAKE_WORK_FILL:
      return visitor->visit(visitor, work->of.fill.data, work->of.fill.bytes, false, true);
    case FAKE_WORK_WRITE:
      return visitor->visit(visitor, work->of.write.data, sizeof work->of.write.value, false, true);
    case FAKE_WORK_KERNEL: return fake_kernel_visit(work, visitor);
  }
  abort();
}

static CUresult check_access(struct fake_visitor *visitor, uintptr_t data, uint64_t bytes,
                             bool reads, bool writes) {
  struct fake_block *block = fake_block_at(data, bytes);
  const int device = visitor->work->device;
  char text[200];
  if (bytes == 0) {
    return CUDA_SUCCESS;
  }
  if (block != NULL && block->device >= 0 && block->device != device &&
      !fake.peers[device][block->device] &&
      strcmp(visitor->work->name, "cuMemcpyPeerAsync") != 0) { /* which says whose it is */
    fake_find(FAKE_CUDA_FAULT,
              "%s runs on device %d and accesses memory of device %d, which is not enabled",
              fake_operation_text(visitor->operation, text, sizeof text), device, block->device);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (block == NULL) {
    block = fake_block_at(data, 1);
    fake_find(FAKE_CUDA_FAULT, "%s %s %llu bytes at 0x%llx, %s",
              fake_operation_text(visitor->operation, text, sizeof text),
              writes ? "writes" : "reads", (unsigned long long)bytes, (unsigned long long)data,
              block == NULL ? "where no memory is" : "which is over the end of its block");
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  const uint64_t offset = data - block->begin;
  fake_access(block, offset, offset + bytes, reads, writes, visitor->operation, visitor->clock,
              visitor->component);
  return CUDA_SUCCESS;
}

CUresult fake_work_check(const struct fake_work *work, const struct fake_operation *operation,
                         const struct fake_clock *clock, uint32_t component) {
  struct fake_visitor visitor = {.visit = check_access,
                                 .work = work,
                                 .operation = operation,
                                 .clock = clock,
                                 .component = component};
  fake_order_add(operation, clock, component);
  return fake_work_visit(work, &visitor);
}

static CUresult check_memory(struct fake_visitor *visitor, uintptr_t data, uint64_t bytes,
                             bool reads, bool writes) {
  (void)visitor;
  (void)reads;
  (void)writes;
  return bytes == 0 || fake_block_at(data, bytes) != NULL ? CUDA_SUCCESS
                                                          : CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* ---- Execution ---- */

bool fake_work_may_run(const struct fake_work *work, const struct fake_plan *plan) {
  if (plan != NULL && plan->action == FAKE_PLAN_CRASH && fake.crash_left > 0) {
    fake.crash_begun = true;
    return false;
  }
  return work->kind != FAKE_WORK_KERNEL ||
         ((plan == NULL || plan->action != FAKE_PLAN_HANG || plan->over) &&
          fake_kernel_is_ready(work));
}

const struct fake_plan *fake_work_plan(const struct fake_work *work) {
  return work->kind == FAKE_WORK_KERNEL
             ? fake_plan_of(work->name, ++work->of.launch.kernel->launches, true)
             : NULL;
}

CUresult fake_work_run(const struct fake_work *work, const struct fake_plan *plan) {
  struct fake_visitor visitor = {.visit = check_memory, .work = work};
  if (plan != NULL && plan->action == FAKE_PLAN_CRASH) {
    return plan->result;
  }
  FAKE_TRY(fake_work_visit(work, &visitor));
  fake.statistics.nodes++;
  switch (work->kind) {
    case FAKE_WORK_COPY: {
      unsigned char *to = fake_address_view(work->of.copy.to);
      const unsigned char *from = fake_address_view(work->of.copy.from);
      const bool staged = work->of.copy.staged != NULL;
      for (uint64_t k = 0; k < work->of.copy.rows; k++) {
        memmove(to + k * work->of.copy.to_stride,
                staged ? work->of.copy.staged + k * work->of.copy.width
                       : from + k * work->of.copy.from_stride,
                work->of.copy.width);
      }
      break;
    }
    case FAKE_WORK_FILL:
      memset(fake_address_view(work->of.fill.data), work->of.fill.value, work->of.fill.bytes);
      break;
    case FAKE_WORK_WRITE: /* the host may look at it any time */
      __atomic_store_n((uint32_t *)fake_address_view(work->of.write.data), work->of.write.value,
                       __ATOMIC_RELEASE);
      break;
    case FAKE_WORK_KERNEL: fake_kernel_run(work); break;
  }
  return CUDA_SUCCESS;
}

uint64_t fake_work_time_ns(const struct fake_work *work) {
  switch (work->kind) {
    case FAKE_WORK_KERNEL: return fake_kernel_time_ns(work);
    case FAKE_WORK_WRITE: return 0;
    default: return 1000;
  }
}

/* A word tells the host how far the stream is: without work or a wait before it, a wait is
 * missing. */
static void check_word(CUstream stream, const struct fake_work *work) {
  const bool tells = work->kind == FAKE_WORK_WRITE ||
                     (work->kind == FAKE_WORK_KERNEL && work->of.launch.kernel->kernel->tells_host);
  char text[200];
  if (tells && !stream->fresh) {
    const struct fake_operation operation = fake_operation_of(work->name, stream);
    fake_find(FAKE_CUDA_EARLY, "%s writes a word, and the stream did nothing since it wrote last",
              fake_operation_text(&operation, text, sizeof text));
  }
  stream->fresh = !tells;
}

CUresult fake_work_submit(CUstream stream, struct fake_work *work) {
  work->device = stream->device;
  check_word(stream, work);
  if (stream->capture != NULL) {
    return fake_capture_add(stream, work, NULL);
  }
  struct fake_node *node =
      fake_node_create(FAKE_NODE_WORK, stream, fake_operation_of(work->name, stream));
  node->work = *work;
  node->plan = fake_work_plan(work);
  fake_stream_follow_host(stream);
  stream->work_tick = fake_clock_tick(&stream->clock, stream->component);
  node->result = fake_work_check(work, &node->operation, &stream->clock, stream->component);
  fake_node_push(node);
  return CUDA_SUCCESS;
}

/* ---- Calls ---- */

/* From pageable memory the driver takes the data at the call; to it, the call ends with the copy. */
static CUresult copy(CUstream handle, struct fake_work work) {
  CUstream stream;
  FAKE_TRY(fake_stream_of(handle, &stream));
  if (work.of.copy.width == 0 || work.of.copy.rows == 0) {
    return CUDA_SUCCESS;
  }
  work.of.copy.from_pageable = is_pageable(work.of.copy.from);
  work.of.copy.to_pageable = is_pageable(work.of.copy.to);
  fake.statistics.pageable_copies += work.of.copy.from_pageable || work.of.copy.to_pageable;
  if (work.of.copy.from_pageable && stream->capture == NULL) {
    work.of.copy.staged = fake_allocate(work.of.copy.width * work.of.copy.rows);
    const unsigned char *from = fake_address_view(work.of.copy.from);
    for (uint64_t k = 0; k < work.of.copy.rows; k++) {
      memcpy(work.of.copy.staged + k * work.of.copy.width, from + k * work.of.copy.from_stride,
             work.of.copy.width);
    }
  }
  FAKE_TRY(fake_work_submit(stream, &work));
  if (!work.of.copy.to_pageable || stream->capture != NULL) {
    return CUDA_SUCCESS;
  }
  FAKE_TRY(fake_run_until_empty(stream));
  fake_host_wait(&stream->clock, stream->time_ns);
  return CUDA_SUCCESS;
}

static struct fake_work flat(CUdeviceptr to, CUdeviceptr from, size_t bytes, const char *name) {
  return (struct fake_work){.kind = FAKE_WORK_COPY,
                            .name = name,
                            .of.copy = {.to = to,
                                        .from = from,
                                        .width = bytes,
                                        .rows = 1,
                                        .to_stride = bytes,
                                        .from_stride = bytes}};
}

static CUresult copy_2d(const CUDA_MEMCPY2D *of, CUstream stream) {
  if (of->srcMemoryType != CU_MEMORYTYPE_UNIFIED || of->dstMemoryType != CU_MEMORYTYPE_UNIFIED ||
      (of->Height > 1 && (of->srcPitch < of->WidthInBytes || of->dstPitch < of->WidthInBytes))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct fake_work work = {
      .kind = FAKE_WORK_COPY,
      .name = "cuMemcpy2DAsync",
      .of.copy = {.to = of->dstDevice + of->dstY * of->dstPitch + of->dstXInBytes,
                  .from = of->srcDevice + of->srcY * of->srcPitch + of->srcXInBytes,
                  .width = of->WidthInBytes,
                  .rows = of->Height,
                  .to_stride = of->Height > 1 ? of->dstPitch : of->WidthInBytes,
                  .from_stride = of->Height > 1 ? of->srcPitch : of->WidthInBytes}};
  return copy(stream, work);
}

static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                          CUcontext from_context, size_t bytes, CUstream stream) {
  const struct fake_block *source = fake_block_at(from, 1), *target = fake_block_at(to, 1);
  if (!fake_object_is(to_context, FAKE_CONTEXT) || !fake_object_is(from_context, FAKE_CONTEXT) ||
      (source != NULL && source->device != from_context->device) ||
      (target != NULL && target->device != to_context->device)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return copy(stream, flat(to, from, bytes, "cuMemcpyPeerAsync"));
}

static CUresult submit(CUstream handle, struct fake_work work) {
  CUstream stream;
  FAKE_TRY(fake_stream_of(handle, &stream));
  return fake_work_submit(stream, &work);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_BODY(cuMemcpyAsync, copy(stream, flat(to, from, bytes, "cuMemcpyAsync")));
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *of, CUstream stream) {
  FAKE_BODY(cuMemcpy2DAsync, copy_2d(of, stream));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream) {
  FAKE_BODY(cuMemcpyPeerAsync, copy_peer(to, to_context, from, from_context, bytes, stream));
}

CUresult cuMemsetD8Async(CUdeviceptr data, unsigned char value, size_t count, CUstream stream) {
  FAKE_BODY(cuMemsetD8Async,
            submit(stream,
                   (struct fake_work){.kind = FAKE_WORK_FILL,
                                      .name = "cuMemsetD8Async",
                                      .of.fill = {.data = data, .value = value, .bytes = count}}));
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value,
                              unsigned int flags) {
  FAKE_BODY(
      cuStreamWriteValue32,
      flags != 0 || address % 4 != 0
          ? CUDA_ERROR_INVALID_VALUE
          : submit(stream, (struct fake_work){.kind = FAKE_WORK_WRITE,
                                              .name = "cuStreamWriteValue32",
                                              .of.write = {.data = address, .value = value}}));
}
