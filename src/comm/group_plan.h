/* Collectives of a group as rounds of messages: who sends which part of the data to whom, who sums
 * what, and which collectives a group may start. The same on every transport; a sum is taken in
 * member order by the owner of its part, so its bits depend neither on the transport nor on the
 * network.
 *
 *     all-gather      every member sends its share to all others
 *     reduce-scatter  every member sends each other one a piece of that one's share; the owner sums
 *     all-reduce      the same over slices, then every member sends its slice to all others
 *
 * Within a process members read each other's memory, and need no rounds (collectives.c).
 *
 * In a round every member sends a part to each other one and receives one from each. All members
 * have the same rounds, and the pieces of a sum are bounded, so the memory for them is, too. */
#ifndef COMM_GROUP_PLAN_H
#define COMM_GROUP_PLAN_H

#include <weft/transport.h>

struct weft_span {
  uint64_t begin;
  uint64_t bytes;
};

/* The part of the whole that a member owns: slices of ALL_REDUCE may be shorter, or empty. */
struct weft_span weft_group_share(enum weft_collective_kind kind, uint64_t bytes, uint32_t size,
                                  uint32_t member);

struct weft_group_plan {
  const struct weft_collective *collective;
  uint32_t size, member;
  unsigned char *scratch; /* [size - 1][reduce_bytes]: what the other members sent to be summed */
  uint64_t reduce_bytes;  /* of a member's share in a round that sums, */
  uint64_t gather_bytes;  /* and in one that does not */
  bool gathers;           /* the present round */
  uint64_t at;            /* where it begins in each share */
};

/* With all other fields set: the first round. */
void weft_group_plan_begin(struct weft_group_plan *plan);
/* Whether there is a round; after those that sum, an all-reduce has those that gather. */
bool weft_group_plan_has_round(struct weft_group_plan *plan);
void weft_group_plan_end_round(struct weft_group_plan *plan);

/* What this member exchanges with another one in the present round. */
struct weft_group_transfer {
  const unsigned char *from;
  unsigned char *to;
  uint64_t send_bytes, receive_bytes;
};
struct weft_group_transfer weft_group_plan_transfer(const struct weft_group_plan *plan,
                                                    uint32_t other);

/* What this member sums in the present round: `count` floats of its own and of the others'. */
struct weft_group_sum {
  const unsigned char *own;
  unsigned char *to; /* may be `own` */
  uint64_t count;
};
struct weft_group_sum weft_group_plan_sum(const struct weft_group_plan *plan);
/* Where the part of another member is, to be summed. */
unsigned char *weft_group_plan_part(const struct weft_group_plan *plan, uint32_t other);

/* ---- What a group may be asked for ---- */

/* "an all-gather" */
const char *weft_collective_name(enum weft_collective_kind kind);
/* WEFT_ERR_USAGE: an unknown kind, a sum over parts of floats, more bytes than there can be. */
enum weft_status weft_group_check(const struct weft_collective *collective, uint32_t size,
                                  struct weft_error *error);
/* The place of `rank` among the ranks of a group. WEFT_ERR_USAGE: it is none of them, or they are
 * not ranks of the world, each once. */
enum weft_status weft_group_find_member(const struct weft_allocator *allocator, uint32_t rank,
                                        uint32_t rank_count, uint32_t id, const uint32_t *ranks,
                                        uint32_t count, uint32_t *member, struct weft_error *error);

/* ---- Collectives that are started and not done, in order ---- */

struct weft_group_queue {
  struct weft_collective *first, *last; /* linked through state[0]; state[1] is 1 in the queue */
};

/* Whether it is now the first. */
bool weft_group_queue_add(struct weft_group_queue *queue, struct weft_collective *collective);
/* Takes out the first one, which is done. */
void weft_group_queue_pop(struct weft_group_queue *queue);
static inline bool weft_group_is_done(const struct weft_collective *collective) {
  return collective->state[1] == 0;
}

#endif
