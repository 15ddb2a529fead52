/* Who is stuck on what: a picture of all ranks' boards, and who is to blame. */
#ifndef RUN_HANG_H
#define RUN_HANG_H

#include <weft/run.h>

/* One rank as its board shows it. */
struct weft_hang_rank {
  enum weft_rank_phase phase;
  uint32_t peer; /* whom it waits for; UINT32_MAX: nobody */
  uint64_t step;
  uint64_t cell;
  struct weft_action action;
  struct weft_action wants; /* what the peer would have to do; IDLE: unknown */
  int64_t since;
  uint64_t flags;        /* WEFT_BOARD_...: what others have found out */
  uint32_t recent_count; /* oldest first */
  struct weft_recent_action recent[WEFT_STATUS_RECENT];
};

struct weft_hang {
  const struct weft_allocator *allocator;
  int64_t now;
  bool nanoseconds; /* times are real, not virtual ticks */
  uint32_t rank_count;
  struct weft_hang_rank *ranks;
  bool has_failure;
  struct weft_failure failure;
};

/* Brings boards that are copies up to date; waits half a second for it at most, a tenth when
 * the world has failed. */
void weft_hang_refresh(struct weft_transport *transport);

/* Reads all boards now. */
enum weft_status weft_hang_take(const struct weft_allocator *allocator,
                                struct weft_transport *transport, struct weft_hang *hang,
                                struct weft_error *error);
void weft_hang_finish(struct weft_hang *hang);

/* Follows who waits for whom, from `reporter` on (whose wait was too long), to a
 * rank that waits for nobody (it computes, has failed, is away or done), or whose process
 * is stopped or does not answer, or round a circle, and writes what a person needs: "rank 3 has waited 31.2 s in 2RECV_F5
 * for rank 2, which is in 1F6 since 31.5 s", or the circle with every member.
 * failure->rank is the culprit, or the circle's smallest rank; status
 * WEFT_ERR_STALLED. Linear in the ranks; allocates nothing. */
void weft_hang_diagnose(const struct weft_hang *hang, uint32_t reporter,
                        struct weft_failure *failure);

/* The same straight from the boards, without a copy: for a rank whose patience
 * has run out, which must not allocate. With the
 * program that the ranks run (NULL: not known) a rank that waits for what has been done
 * is found too: it is slow, or its network is. Linear in the program then. Row r of it
 * runs on rank first_rank + r; other replicas of the pipeline follow and go before. */
void weft_hang_diagnose_now(struct weft_transport *transport, const struct weft_program *program,
                            uint32_t first_rank, enum weft_run_comm comm, uint32_t reporter,
                            struct weft_failure *failure);

#endif
