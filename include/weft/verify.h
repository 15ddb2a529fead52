/* Weft verify: is this schedule right, can it hang, and where.
 *
 * The proof needs the table or program alone, never the schedule's name, and
 * takes time linear in its size. */
#ifndef WEFT_VERIFY_H
#define WEFT_VERIFY_H

#include <weft/ir.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The communication model. A rank takes its actions one by one, in order. A
 * RECV is done when its message is the oldest one on its channel. A SEND is
 * done
 *   rendezvous  when its message has been received (capacity 0),
 *   slots:K     when fewer than K older messages wait on its channel,
 *   eager       at once (capacity WEFT_CAPACITY_UNLIMITED).
 * Rendezvous is the strictest: what completes there completes everywhere. */
#define WEFT_CAPACITY_UNLIMITED UINT32_MAX

/* What one channel, a FIFO, carries.
 *
 * The NCCL models are asynchronous: a SEND or RECV does not hold up its rank, but is put into a
 * queue of its communicator at that rank. It starts when the compute before it in its row is done
 * and everything before it in the queue, sends and receives alike; compute waits for the compute
 * before it, and for the RECVs of its inputs. Messages between two ranks are one channel, and the
 * capacity is that of such a channel. */
enum weft_channel_model {
  WEFT_CHANNEL_EDGE, /* one directed stage boundary: activations s -> s+1, or gradients s -> s-1; of
                        a graph: one direction of an edge */
  WEFT_CHANNEL_PAIR, /* everything one rank sends to one other rank */
  WEFT_CHANNEL_RANK, /* everything one rank sends, to any rank */
  WEFT_CHANNEL_NCCL_DIRECTED, /* an NCCL communicator per directed pair of ranks */
  WEFT_CHANNEL_NCCL_PAIR,     /* one per pair of ranks, for both directions */
  WEFT_CHANNEL_NCCL_WORLD     /* one for all ranks */
};
#define WEFT_CHANNEL_COUNT (WEFT_CHANNEL_NCCL_WORLD + 1)

struct weft_comm_model {
  uint32_t capacity; /* default 0: rendezvous */
  enum weft_channel_model channel;
};

/* Every rule has a stable id; weft/rules.def lists them from most basic
 * to least, and docs/rules.md is made from it. */
enum weft_rule {
#define WEFT_RULE(NAME, id, summary) WEFT_RULE_##NAME,
#include <weft/rules.def>
#undef WEFT_RULE
  WEFT_RULE_COUNT
};

/* "order.receive", "deadlock", ...; static storage. */
WEFT_API const char *weft_rule_id(enum weft_rule rule);

/* A place in a program. step counts cells from 0; an overlap part has the step
 * of its overlap. */
struct weft_place {
  uint32_t rank;
  uint64_t step;
  const struct weft_action *action; /* into the verified program; NULL: the row */
};

struct weft_finding {
  enum weft_rule rule;
  struct weft_place place;
  const char *message; /* a sentence to act on */
  /* For a deadlock: each member waits for the next, the last for the first. No other finding has
   * a member of a shorter cycle. */
  const struct weft_place *cycle;
  const char *const
      *cycle_waits;    /* what each member waits for: "rank 1 to do 1RECV_F1 (step 4): ..." */
  size_t cycle_length; /* 0 for other rules */
};

struct weft_report {
  bool ok;               /* no finding at all */
  bool liveness_checked; /* false when basic findings made it meaningless */
  bool has_backward;     /* false: a forward-only table */
  uint32_t stage_count;  /* as understood */
  uint32_t microbatch_count;
  const struct weft_finding *findings; /* most basic first, then by rank and step */
  size_t finding_count;
  uint64_t findings_left_out; /* over findings_max */
  /* After a deadlock: the smallest capacity of the channels without one, the rest of the model
   * unchanged; WEFT_CAPACITY_UNLIMITED: every capacity has one. Otherwise that of the model. */
  uint32_t least_capacity;
};

struct weft_verify_options {
  struct weft_comm_model model; /* for programs with communication */
  uint32_t stage_count;         /* 0: inferred from the table; with a graph: 0, or the graph's */
  uint32_t microbatch_count;    /* 0: inferred */
  size_t findings_max;          /* default 100; at least one of every rule that fired is kept */
};

WEFT_API struct weft_verify_options weft_verify_options_default(void);

/* NULL options: default. The report borrows `program` until it is destroyed.
 * WEFT_OK also when there are findings: look at report->ok. WEFT_ERR_USAGE for another number of
 * stages than the program's graph has. */
WEFT_API enum weft_status weft_verify(const struct weft_allocator *allocator,
                                      const struct weft_program *program,
                                      const struct weft_verify_options *options,
                                      struct weft_report **out, struct weft_error *error);
WEFT_API void weft_report_destroy(struct weft_report *report);

#ifdef __cplusplus
}
#endif
#endif
