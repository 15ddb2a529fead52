/* Traffic between ranks, for tests of transports: flows of messages whose every
 * byte follows from seed, flow and position, so that the receiver knows what must
 * come. A flow is a channel of its own; its number is the flow's. */
#ifndef TESTS_SUPPORT_TRAFFIC_H
#define TESTS_SUPPORT_TRAFFIC_H

#include <weft/support.h>

#include "support_conformance.h"

/* What holds a rank's k-th send or receive of a flow back: it goes when
 * factor x count + lead > k, where the count is one of this rank's. */
enum traffic_count {
  TRAFFIC_FREE = 0, /* nothing does */
  TRAFFIC_RECEIVED, /* messages it has received from `flow` */
  TRAFFIC_POSTED,   /* receives it has posted for `flow` */
  TRAFFIC_STUCK     /* 1 when its sends of `flow` have all begun, or had to wait once */
};
struct traffic_condition {
  enum traffic_count count;
  uint32_t flow;
  uint64_t factor;
  uint64_t lead;
};
#define TRAFFIC_ALL UINT64_C(1000000) /* a factor: the first opens the door */

enum traffic_sizes { TRAFFIC_RANDOM_SIZES = 0, TRAFFIC_EMPTY, TRAFFIC_LARGEST };

struct traffic_flow {
  uint32_t from;
  uint32_t to;
  uint64_t count;
  uint32_t depth;          /* of the channel */
  uint32_t send_window;    /* messages the sender has; may be more than the depth */
  uint32_t receive_window; /* likewise */
  uint64_t bytes_max;
  enum traffic_sizes sizes;
  struct traffic_condition send_when;
  struct traffic_condition receive_when;
};

enum { TRAFFIC_FLOWS_MAX = 64, TRAFFIC_RANKS_MAX = 16 };

struct traffic {
  struct traffic_flow flows[TRAFFIC_FLOWS_MAX];
  uint32_t flow_count;
  uint64_t seed;
  bool hesitant; /* ranks leave things undone at random, and come back for them */
  /* The rank fails after so many of its sends and receives; 0: never. Then every
   * rank cancels and frees what it has as soon as it sees that. */
  uint64_t fail_after;
  uint32_t fail_rank;

  struct traffic_rank *ranks[TRAFFIC_RANKS_MAX]; /* its own */
};

/* Prepares ranks[rank_count] (their transports are set) to carry it. */
void traffic_begin(struct traffic *traffic, struct conformance_rank *ranks, uint32_t rank_count);
/* After the drive: every message came (unless it failed), and every buffer is in
 * one hand. Frees everything. */
void traffic_finish(struct traffic *traffic, uint32_t rank_count);

#endif
