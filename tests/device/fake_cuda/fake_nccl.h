/* The fake NCCL, inside: fake_nccl.c says what it does; fake_nccl_parts.c has what is called between
 * ncclGroupStart and ncclGroupEnd. */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/nccl/nccl_api.h"
#include "device/cuda/cuda_api.h"
#include "fake_cuda.h"

enum { RANKS_MAX = 8 };

enum frame_kind { FRAME_HELLO = 1, FRAME_CONNECT, FRAME_READY, FRAME_DATA };
struct frame {
  uint32_t kind;
  uint32_t rank;
  uint64_t bytes;
  uint64_t captured; /* its end of the operation is */
};

/* What has to be connected before an operation, each by the first that needs it: sends and receives,
 * and the algorithms that NCCL takes for short and for long collectives. */
enum { WAY_PARTS, WAY_SHORT, WAY_LONG, WAYS };

/* A connection with another rank. */
struct link {
  int fd; /* -1: none */
  bool said_connect[WAYS], heard_connect[WAYS];
  uint64_t ready; /* receives that the other rank has reached, */
  uint64_t begun; /* and sends to it that have begun */
  bool has_frame; /* of data, whose content has not been read */
  struct frame frame;
  struct frame partial;
  size_t partial_bytes;
};

enum op_kind {
  OP_SEND,
  OP_RECEIVE,
  OP_ALL_GATHER,
  OP_REDUCE_SCATTER,
  OP_ALL_REDUCE,
  OP_PARTS /* sends and receives of a group, at once */
};

/* An operation; a node of a graph runs it again and again. */
struct op {
  struct ncclComm *comm;
  enum op_kind kind;
  int peer;
  bool captured;
  uint64_t bytes; /* of what is sent, and of what is received by a peer */
  /* How far it is. */
  bool begun, sent_ready, complete;
  uint32_t step;  /* of a collective: the rank it is at */
  uint64_t moved; /* bytes of the frame */
  size_t header_moved;
  unsigned char *staging;
  /* As it was called, until it is enqueued. */
  uint64_t from, to;
  CUstream stream;
  struct op *next;
  /* OP_PARTS: sends and receives, of other members each. */
  struct op *parts;
  uint32_t part_count;
  unsigned char *view; /* of a part's memory, for the host */
};

struct ncclComm {
  uint32_t magic;
  int rank, count;
  bool blocking;
  int listener; /* until all with higher ranks have come */
  int joined;
  struct link links[RANKS_MAX];
  uint64_t eager;
  uint64_t place; /* a hash of host and GPU */
  ncclResult_t error;
  bool aborted, ends;
  bool unasked;       /* an operation was not done when it returned, and nobody has seen it done */
  uint64_t graphs;    /* operations in them, atomic */
  struct op *active;  /* that runs */
  struct op *waiting; /* has been called and is not enqueued */
  struct op *all;     /* ever made */
  char address[64];
  pthread_mutex_t lock;
  struct ncclComm *older;
};

/* fake_nccl.c */
/* With the lock of the communicator. True when all of it has been moved. */
bool fake_nccl_advance_send(struct op *op, unsigned char *from);
bool fake_nccl_advance_receive(struct op *op);
/* Enqueues it, or later; a copy of `made`. */
ncclResult_t fake_nccl_submit(struct ncclComm *comm, const struct op *made);

/* fake_nccl_parts.c */
/* Whether the call is one of a group, which it is kept for. */
bool fake_nccl_keep(struct ncclComm *comm, const struct op *made, ncclResult_t *result);
void fake_nccl_group_begin(void);
ncclResult_t fake_nccl_group_end(void);
/* As a kernel's functions; with the lock. */
bool fake_nccl_parts_advance(struct op *op);
void fake_nccl_parts_run(struct op *op);
uint32_t fake_nccl_parts_accesses(const struct op *op, struct fake_cuda_access *out);
/* Of a copy of an operation. */
bool fake_nccl_parts_copy(struct op *op);

#endif
