/* What is called between ncclGroupStart and ncclGroupEnd: sends and receives of one communicator,
 * at most one of each with every other rank. They are one kernel, whose parts make progress in any
 * order; all have been there when it begins. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_nccl.h"

static _Thread_local struct {
  bool open;
  struct ncclComm *comm;
  struct op parts[FAKE_CUDA_PARAMETERS_MAX];
  uint32_t count;
  ncclResult_t result;
} group;

void fake_nccl_group_begin(void) {
  memset(&group, 0, sizeof group);
  group.open = true;
}

static ncclResult_t refuse(const char *why) {
  (void)fprintf(stderr, "fake NCCL: %s\n", why);
  return group.result = ncclInvalidUsage;
}

bool fake_nccl_keep(struct ncclComm *comm, const struct op *made, ncclResult_t *result) {
  if (!group.open) {
    return false;
  }
  if (made->kind > OP_RECEIVE || (group.comm != NULL && group.comm != comm) ||
      group.count == FAKE_CUDA_PARAMETERS_MAX) {
    *result = refuse("a group is of sends and receives of one communicator, twelve at most");
    return true;
  }
  for (uint32_t k = 0; k < group.count; k++) {
    if (group.parts[k].kind == made->kind && group.parts[k].peer == made->peer) {
      *result = refuse("two sends to, or two receives from, the same rank in a group");
      return true;
    }
  }
  struct op *part = &group.parts[group.count++];
  *part = *made;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  part->view = fake_cuda_view((const void *)(uintptr_t)made->from);
  group.comm = comm;
  *result = ncclSuccess;
  return true;
}

ncclResult_t fake_nccl_group_end(void) {
  group.open = false;
  if (group.result != ncclSuccess || group.count == 0) {
    return group.result;
  }
  return fake_nccl_submit(group.comm, &(struct op){.kind = OP_PARTS,
                                                   .from = group.parts[0].from,
                                                   .to = group.parts[0].from,
                                                   .stream = group.parts[0].stream,
                                                   .parts = group.parts,
                                                   .part_count = group.count});
}

bool fake_nccl_parts_copy(struct op *op) {
  if (op->part_count == 0) {
    return true;
  }
  struct op *parts = calloc(op->part_count, sizeof *parts);
  if (parts == NULL) {
    return false;
  }
  memcpy(parts, op->parts, op->part_count * sizeof *parts);
  op->parts = parts;
  for (uint32_t k = 0; k < op->part_count; k++) {
    parts[k].comm = op->comm;
    parts[k].staging = calloc(1, (size_t)parts[k].bytes + 1);
    if (parts[k].staging == NULL) {
      return false;
    }
  }
  return true;
}

bool fake_nccl_parts_advance(struct op *op) {
  bool all = true;
  for (uint32_t k = 0; k < op->part_count; k++) {
    struct op *part = &op->parts[k];
    if (!part->complete) {
      part->complete = part->kind == OP_SEND ? fake_nccl_advance_send(part, part->view)
                                             : fake_nccl_advance_receive(part);
    }
    all = all && part->complete;
  }
  return all;
}

void fake_nccl_parts_run(struct op *op) {
  for (uint32_t k = 0; k < op->part_count; k++) {
    struct op *part = &op->parts[k];
    if (part->kind == OP_RECEIVE) {
      memcpy(part->view, part->staging, (size_t)part->bytes);
    }
    part->begun = part->sent_ready = part->complete = false;
  }
}

uint32_t fake_nccl_parts_accesses(const struct op *op, struct fake_cuda_access *out) {
  for (uint32_t k = 0; k < op->part_count; k++) {
    const struct op *part = &op->parts[k];
    out[k] = (struct fake_cuda_access){.data = part->from,
                                       .bytes = part->bytes,
                                       .reads = part->kind == OP_SEND,
                                       .writes = part->kind == OP_RECEIVE};
  }
  return op->part_count;
}
