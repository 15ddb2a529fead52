/* Collectives of a group, enqueued. The order of NCCL's own sums depends on sizes, GPUs and their
 * links. So here members exchange parts, and a kernel adds up what each is to sum, in order of
 * members:
 *
 *   all-gather      every member sends its share to all others
 *   reduce-scatter  every member sends each other one a piece of that one's share; the owner sums
 *   all-reduce      the same over slices, then every member sends its slice to all others
 *
 * Each element crosses the network as often as in a ring. Memory for what is received is bounded:
 * a share is summed in pieces, one after the other in the stream.
 *
 * NCCL connects each of its own algorithms when a collective first takes it, which depends on sizes;
 * it allocates memory for that, and CUDA may let that wait for transfers that wait for this rank.
 * Sends and receives are connected when channels are opened. */
#include <assert.h>

#include <weft/support.h>

#include "comm/nccl/nccl_world.h"
#include "device/kernel.h"

struct span {
  uint64_t begin;
  uint64_t bytes;
};

/* The part of the whole that a member owns: slices of ALL_REDUCE may be shorter, or empty. */
static struct span share_of(const struct weft_nccl_lane *lane,
                            const struct weft_collective *collective, uint32_t member) {
  assert(lane->size > 1);
  if (collective->kind != WEFT_ALL_REDUCE) {
    return (struct span){member * collective->bytes, collective->bytes};
  }
  const uint64_t floats = collective->bytes / sizeof(float);
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): see the assert
  const uint64_t slice = (floats + lane->size - 1) / lane->size * sizeof(float);
  const uint64_t begin = member * slice < collective->bytes ? member * slice : collective->bytes;
  const uint64_t left = collective->bytes - begin;
  return (struct span){begin, left < slice ? left : slice};
}

/* Of that, at most `size` bytes from `at` on. */
static struct span piece_of(const struct weft_nccl_lane *lane,
                            const struct weft_collective *collective, uint32_t member, uint64_t at,
                            uint64_t size) {
  const struct span share = share_of(lane, collective, member);
  const uint64_t skip = at < share.bytes ? at : share.bytes;
  const uint64_t left = share.bytes - skip;
  return (struct span){share.begin + skip, left < size ? left : size};
}

/* ---- NCCL's calls ---- */

/* Before a call: one that would run too far ahead of the GPU waits (nccl_transfer.c, check_ahead).
 * What it waits for is older than itself, on all ranks, so it does not depend on it. */
static enum weft_status begin_call(struct weft_nccl_world *world, const struct weft_nccl_lane *lane,
                                   bool recorded, struct weft_error *error) {
  const uint64_t mark = lane->issued / WEFT_NCCL_AHEAD;
  if (recorded || lane->issued % WEFT_NCCL_AHEAD != 0 || mark < WEFT_NCCL_MARKS) {
    return WEFT_OK;
  }
  return weft_nccl_await_event(world, lane->marks[mark % WEFT_NCCL_MARKS],
                               "collectives of a group are under way", UINT32_MAX,
                               weft_nccl_limit(world), error);
}

static enum weft_status end_call(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                                 ncclResult_t result, const char *call, bool recorded,
                                 struct weft_stream *stream, struct weft_error *error) {
  struct weft_device *device = world->device;
  if (result != ncclSuccess) {
    WEFT_TRY(weft_nccl_await(world, lane->comm, result, call, weft_nccl_limit(world), error));
  }
  lane->issued++;
  if (recorded || lane->issued % WEFT_NCCL_AHEAD != 0) {
    return WEFT_OK;
  }
  const uint64_t mark = lane->issued / WEFT_NCCL_AHEAD - 1;
  return device->ops->event_record(device, lane->marks[mark % WEFT_NCCL_MARKS], stream, error);
}

/* Sums in an order that NCCL chooses. */
static enum weft_status collect_by_nccl(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                                        const struct weft_collective *collective,
                                        struct weft_stream *stream, struct weft_error *error) {
  const bool all = collective->kind == WEFT_ALL_REDUCE;
  WEFT_TRY(begin_call(world, lane, collective->recorded, error));
  if (collective->kind == WEFT_ALL_GATHER) {
    const ncclResult_t result = world->nccl->ncclAllGather(
        collective->from, collective->to, (size_t)collective->bytes, ncclInt8, lane->comm, stream);
    return end_call(world, lane, result, "ncclAllGather", collective->recorded, stream, error);
  }
  const ncclResult_t result = (all ? world->nccl->ncclAllReduce : world->nccl->ncclReduceScatter)(
      collective->from, collective->to, (size_t)(collective->bytes / sizeof(float)), ncclFloat32,
      ncclSum, lane->comm, stream);
  return end_call(world, lane, result, all ? "ncclAllReduce" : "ncclReduceScatter",
                  collective->recorded, stream, error);
}

/* ---- Sums in order of members ---- */

static ncclResult_t send_part(const struct weft_nccl_world *world,
                              const struct weft_nccl_lane *lane, const char *data, uint64_t bytes,
                              uint32_t other, struct weft_stream *stream) {
  return bytes == 0
             ? ncclSuccess
             : world->nccl->ncclSend(data, (size_t)bytes, ncclInt8, (int)other, lane->comm, stream);
}

static ncclResult_t receive_part(const struct weft_nccl_world *world,
                                 const struct weft_nccl_lane *lane, char *data, uint64_t bytes,
                                 uint32_t other, struct weft_stream *stream) {
  return bytes == 0
             ? ncclSuccess
             : world->nccl->ncclRecv(data, (size_t)bytes, ncclInt8, (int)other, lane->comm, stream);
}

/* With one other member: a piece of its share for a piece of this one's; or, in an all-gather and at
 * the end of an all-reduce, one whole share for the other. */
static ncclResult_t trade_with(const struct weft_nccl_world *world,
                               const struct weft_nccl_lane *lane,
                               const struct weft_collective *collective, uint32_t other,
                               uint64_t at, bool whole, struct weft_stream *stream) {
  const uint64_t size = whole ? UINT64_MAX : world->piece;
  const struct span mine = piece_of(lane, collective, lane->member, at, size);
  const struct span theirs = piece_of(lane, collective, other, at, size);
  const char *from = collective->from;
  char *to = collective->to;
  const uint32_t place = other < lane->member ? other : other - 1;
  const ncclResult_t sent =
      whole ? send_part(world, lane, to + mine.begin, mine.bytes, other, stream)
            : send_part(world, lane, from + theirs.begin, theirs.bytes, other, stream);
  if (sent != ncclSuccess && sent != ncclInProgress) {
    return sent;
  }
  return whole ? receive_part(world, lane, to + theirs.begin, theirs.bytes, other, stream)
               : receive_part(world, lane, (char *)lane->others + place * world->piece, mine.bytes,
                              other, stream);
}

/* With all others at once: NCCL has the parts of a group make progress together. */
static enum weft_status trade(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                              const struct weft_collective *collective, uint64_t at, bool whole,
                              struct weft_stream *stream, struct weft_error *error) {
  WEFT_TRY(begin_call(world, lane, collective->recorded, error));
  ncclResult_t result = world->nccl->ncclGroupStart();
  if (result != ncclSuccess) {
    return weft_nccl_fail(world->nccl, result, "ncclGroupStart", error);
  }
  for (uint32_t k = 1; k < lane->size && (result == ncclSuccess || result == ncclInProgress); k++) {
    const uint32_t other = (lane->member + k) % lane->size;
    result = trade_with(world, lane, collective, other, at, whole, stream);
  }
  const ncclResult_t ended = world->nccl->ncclGroupEnd();
  if (result == ncclSuccess || result == ncclInProgress) {
    result = ended;
  }
  return end_call(world, lane, result, "a group of ncclSend and ncclRecv", collective->recorded,
                  stream, error);
}

static enum weft_status add_up(const struct weft_nccl_world *world,
                               const struct weft_nccl_lane *lane,
                               const struct weft_collective *collective, uint64_t at,
                               struct weft_stream *stream, struct weft_error *error) {
  const struct span share = share_of(lane, collective, lane->member);
  const struct span piece = piece_of(lane, collective, lane->member, at, world->piece);
  const bool all = collective->kind == WEFT_ALL_REDUCE;
  const char *own = (const char *)collective->from + piece.begin;
  char *to = (char *)collective->to + piece.begin - (all ? 0 : share.begin);
  uint64_t count = piece.bytes / sizeof(float), stride = world->piece / sizeof(float);
  uint64_t size = lane->size, member = lane->member;
  const void *others = lane->others;
  void *const parameters[] = {(void *)&to, (void *)&own, (void *)&others, &count,
                              &stride,     &size,        &member};
  return count > 0 ? weft_kernel_launch(world->device, weft_kernel_add_members(), count, parameters,
                                        stream, error)
                   : WEFT_OK;
}

/* In place, `to` is this member's share: nobody else reads it. */
static enum weft_status sum_in_order(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                                     const struct weft_collective *collective,
                                     struct weft_stream *stream, struct weft_error *error) {
  const uint64_t longest = share_of(lane, collective, 0).bytes;
  for (uint64_t at = 0; at < longest; at += world->piece) {
    WEFT_TRY(trade(world, lane, collective, at, false, stream, error));
    WEFT_TRY(add_up(world, lane, collective, at, stream, error));
  }
  return collective->kind == WEFT_ALL_REDUCE
             ? trade(world, lane, collective, 0, true, stream, error)
             : WEFT_OK;
}

static enum weft_status gather(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                               const struct weft_collective *collective, struct weft_stream *stream,
                               struct weft_error *error) {
  char *own = (char *)collective->to + lane->member * collective->bytes;
  if (own != collective->from) {
    WEFT_TRY(weft_copy(&(struct weft_copy){.to = own,
                                           .to_device = world->device,
                                           .from = collective->from,
                                           .from_device = world->device,
                                           .row_bytes = collective->bytes,
                                           .rows = 1},
                       stream, error));
  }
  return trade(world, lane, collective, 0, true, stream, error);
}

/* ---- All of them ---- */

enum weft_status weft_nccl_collect(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                                   const struct weft_collective *collective,
                                   struct weft_stream *stream, struct weft_error *error) {
  assert(lane->size > 1 && lane->comm != NULL);
  if (collective->bytes == 0) {
    return WEFT_OK;
  }
  if (world->own_order) {
    return collect_by_nccl(world, lane, collective, stream, error);
  }
  return (collective->kind == WEFT_ALL_GATHER ? gather : sum_in_order)(world, lane, collective,
                                                                       stream, error);
}

enum weft_status weft_nccl_collect_first(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                                         float *data, struct weft_error *error) {
  static const enum weft_collective_kind kinds[] = {WEFT_ALL_GATHER, WEFT_REDUCE_SCATTER,
                                                    WEFT_ALL_REDUCE};
  float *own = data + lane->member;
  for (uint32_t k = 0; k < WEFT_ARRAY_LENGTH(kinds); k++) {
    const struct weft_collective one = {
        .kind = kinds[k],
        .from = kinds[k] == WEFT_ALL_GATHER ? own : data,
        .to = kinds[k] == WEFT_REDUCE_SCATTER ? own : data,
        .bytes = (kinds[k] == WEFT_ALL_REDUCE ? lane->size : 1) * sizeof *data};
    WEFT_TRY(weft_nccl_collect(world, lane, &one, world->stream, error));
  }
  return WEFT_OK;
}
