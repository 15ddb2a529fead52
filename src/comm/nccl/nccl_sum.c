/* Collectives of a group, enqueued. The order of NCCL's own sums depends on sizes, GPUs and their
 * links. So here members exchange parts (comm/group_plan.h), and a kernel adds up what each is to
 * sum, in order of members.
 *
 * Each element crosses the network as often as in a ring. Memory for what is received is bounded:
 * a share is summed in pieces, one after the other in the stream.
 *
 * NCCL connects each of its own algorithms when a collective first takes it, which depends on sizes;
 * it allocates memory for that, and CUDA may let that wait for transfers that wait for this rank.
 * Sends and receives are connected when channels are opened. */
#include <assert.h>

#include <weft/support.h>

#include "comm/group_plan.h"
#include "comm/nccl/nccl_world.h"
#include "device/kernel.h"

/* ---- NCCL's calls ---- */

/* Before a call: one that would run too far ahead of the GPU waits. What it waits for is older than
 * itself, on all ranks, so it does not depend on it. */
static enum weft_status begin_call(struct weft_nccl_world *world,
                                   const struct weft_nccl_communicator *communicator, bool recorded,
                                   struct weft_error *error) {
  struct weft_device_event *mark = weft_nccl_mark_ahead(communicator, recorded);
  return mark == NULL ? WEFT_OK
                      : weft_nccl_await_event(world, mark, "collectives of a group are under way",
                                              UINT32_MAX, weft_nccl_limit(world), error);
}

static enum weft_status end_call(struct weft_nccl_world *world,
                                 struct weft_nccl_communicator *communicator, ncclResult_t result,
                                 const char *call, bool recorded, struct weft_stream *stream,
                                 struct weft_error *error) {
  if (result != ncclSuccess) {
    WEFT_TRY(
        weft_nccl_await(world, communicator->comm, result, call, weft_nccl_limit(world), error));
  }
  return weft_nccl_count_issued(world, communicator, recorded, stream, error);
}

/* Sums in an order that NCCL chooses. */
static enum weft_status collect_by_nccl(struct weft_nccl_world *world,
                                        struct weft_nccl_communicator *communicator,
                                        const struct weft_collective *collective,
                                        struct weft_stream *stream, struct weft_error *error) {
  const struct weft_nccl_api *nccl = world->nccl;
  const size_t floats = (size_t)(collective->bytes / sizeof(float));
  const bool all = collective->kind == WEFT_ALL_REDUCE;
  const bool gathers = collective->kind == WEFT_ALL_GATHER;
  WEFT_TRY(begin_call(world, communicator, collective->recorded, error));
  const ncclResult_t result =
      gathers ? nccl->ncclAllGather(collective->from, collective->to, (size_t)collective->bytes,
                                    ncclInt8, communicator->comm, stream)
              : (all ? nccl->ncclAllReduce : nccl->ncclReduceScatter)(
                    collective->from, collective->to, floats, ncclFloat32, ncclSum,
                    communicator->comm, stream);
  return end_call(world, communicator, result,
                  gathers ? "ncclAllGather"
                  : all   ? "ncclAllReduce"
                          : "ncclReduceScatter",
                  collective->recorded, stream, error);
}

/* ---- Sums in order of members ---- */

/* Empty parts are left out, on both sides. */
static ncclResult_t trade_with(const struct weft_nccl_world *world,
                               const struct weft_nccl_communicator *communicator,
                               const struct weft_group_transfer *transfer, uint32_t other,
                               struct weft_stream *stream) {
  assert(other < communicator->size && other != communicator->member);
  ncclResult_t result = ncclSuccess;
  if (transfer->send_bytes > 0) {
    result = world->nccl->ncclSend(transfer->from, (size_t)transfer->send_bytes, ncclInt8,
                                   (int)other, communicator->comm, stream);
  }
  if (transfer->receive_bytes > 0 && (result == ncclSuccess || result == ncclInProgress)) {
    result = world->nccl->ncclRecv(transfer->to, (size_t)transfer->receive_bytes, ncclInt8,
                                   (int)other, communicator->comm, stream);
  }
  return result;
}

/* A round, with all others at once: NCCL has the parts of a group make progress together. */
static enum weft_status trade_parts(struct weft_nccl_world *world,
                                    struct weft_nccl_communicator *communicator,
                                    const struct weft_group_plan *plan, struct weft_stream *stream,
                                    struct weft_error *error) {
  const bool recorded = plan->collective->recorded;
  WEFT_TRY(begin_call(world, communicator, recorded, error));
  ncclResult_t result = world->nccl->ncclGroupStart();
  if (result != ncclSuccess) {
    return weft_nccl_fail(world->nccl, result, "ncclGroupStart", error);
  }
  for (uint32_t k = 1;
       k < communicator->size && (result == ncclSuccess || result == ncclInProgress); k++) {
    const uint32_t other = (communicator->member + k) % communicator->size;
    const struct weft_group_transfer transfer = weft_group_plan_transfer(plan, other);
    result = trade_with(world, communicator, &transfer, other, stream);
  }
  const ncclResult_t ended = world->nccl->ncclGroupEnd();
  if (result == ncclSuccess || result == ncclInProgress) {
    result = ended;
  }
  return end_call(world, communicator, result, "a group of ncclSend and ncclRecv", recorded, stream,
                  error);
}

static enum weft_status add_up(const struct weft_nccl_world *world,
                               const struct weft_group_plan *plan, struct weft_stream *stream,
                               struct weft_error *error) {
  const struct weft_group_sum sum = weft_group_plan_sum(plan);
  uint64_t count = sum.count, stride = plan->reduce_bytes / sizeof(float);
  uint64_t size = plan->size, member = plan->member;
  void *const parameters[] = {
      (void *)&sum.to, (void *)&sum.own, (void *)&plan->scratch, &count, &stride, &size, &member};
  return count > 0 ? weft_kernel_launch(world->device, WEFT_KERNEL_ADD_MEMBERS, count, parameters,
                                        stream, error)
                   : WEFT_OK;
}

enum weft_status weft_nccl_copy_own(struct weft_device *device,
                                    const struct weft_collective *collective, uint32_t member,
                                    struct weft_stream *stream, struct weft_error *error) {
  void *own = (char *)collective->to + member * collective->bytes;
  return own == collective->from ? WEFT_OK
                                 : weft_copy_bytes(own, device, collective->from, device,
                                                   collective->bytes, stream, error);
}

/* A sum in place: `to` is this member's share, which nobody else reads. */
static enum weft_status collect_in_order(struct weft_nccl_world *world,
                                         struct weft_nccl_communicator *communicator,
                                         const struct weft_collective *collective,
                                         struct weft_stream *stream, struct weft_error *error) {
  struct weft_group_plan plan = {.collective = collective,
                                 .size = communicator->size,
                                 .member = communicator->member,
                                 .scratch = communicator->others,
                                 .reduce_bytes = world->piece,
                                 .gather_bytes = UINT64_MAX};
  if (collective->kind == WEFT_ALL_GATHER) {
    WEFT_TRY(weft_nccl_copy_own(world->device, collective, communicator->member, stream, error));
  }
  for (weft_group_plan_begin(&plan); weft_group_plan_has_round(&plan);
       weft_group_plan_end_round(&plan)) {
    WEFT_TRY(trade_parts(world, communicator, &plan, stream, error));
    if (!plan.gathers) {
      WEFT_TRY(add_up(world, &plan, stream, error));
    }
  }
  return WEFT_OK;
}

/* ---- All of them ---- */

enum weft_status weft_nccl_collect(struct weft_nccl_world *world,
                                   struct weft_nccl_communicator *communicator,
                                   const struct weft_collective *collective,
                                   struct weft_stream *stream, struct weft_error *error) {
  assert(communicator->size > 1 && communicator->comm != NULL);
  if (collective->bytes == 0) {
    return WEFT_OK;
  }
  return (world->own_order ? collect_by_nccl : collect_in_order)(world, communicator, collective,
                                                                 stream, error);
}

enum weft_status weft_nccl_collect_first(struct weft_nccl_world *world,
                                         struct weft_nccl_communicator *communicator, float *data,
                                         struct weft_error *error) {
  assert(data != NULL && communicator->member < communicator->size);
  static const enum weft_collective_kind kinds[] = {WEFT_ALL_GATHER, WEFT_REDUCE_SCATTER,
                                                    WEFT_ALL_REDUCE};
  float *own = data + communicator->member;
  for (uint32_t k = 0; k < WEFT_ARRAY_LENGTH(kinds); k++) {
    const struct weft_collective one = {
        .kind = kinds[k],
        .from = kinds[k] == WEFT_ALL_GATHER ? own : data,
        .to = kinds[k] == WEFT_REDUCE_SCATTER ? own : data,
        .bytes = (kinds[k] == WEFT_ALL_REDUCE ? communicator->size : 1) * sizeof *data};
    WEFT_TRY(weft_nccl_collect(world, communicator, &one, world->stream, error));
  }
  return WEFT_OK;
}
