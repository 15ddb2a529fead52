/* Hangs: what all ranks are doing, and the diagnosis that follows from it.
 *
 *   hang.c         reads the ranks' status, and says it in words
 *   waits.c        follows who waits for whom to the culprit
 *   hang_dump.c    writes a dump as JSON, with sentences that explain it
 *   hang_explain.c prints the sentences of a dump */
#ifndef RUN_HANG_H
#define RUN_HANG_H

#include <weft/run.h>

#define WEFT_HANG_SCHEMA "weft-hang/2"

/* What a rank is doing, as its status shows it. */
struct weft_rank_state {
  enum weft_rank_phase phase;
  uint32_t peer; /* the rank it waits for; UINT32_MAX: none */
  uint64_t step;
  uint64_t cell;
  struct weft_action action;
  struct weft_action wants; /* what the peer has to do; IDLE: unknown */
  int64_t since;
  uint64_t flags; /* WEFT_RANK_STOPPED, _SILENT, _DEAD */
  bool has_acted; /* it has finished an action */
  bool has_gpu;   /* in messages of this process; a dump has it with on_device only */
  bool on_device; /* its GPU is at the action; its stages have enqueued all */
  uint64_t gpu;   /* that GPU's number */
};

/* All ranks of a transport. */
struct weft_hang {
  struct weft_transport *transport;
  int64_t now;
  bool has_failure;
  struct weft_failure failure;
};

/* Updates this process's copies of other ranks' status; waits at most half a second, a tenth
 * when the world has failed. */
void weft_hang_refresh(struct weft_transport *transport);

struct weft_hang weft_hang_of(struct weft_transport *transport);
/* A rank's state; one whose process is gone has failed. Read by one relaxed load per field, while the
 * rank may be writing it: two moments may be mixed, but a rank that hangs writes nothing. */
void weft_hang_read(const struct weft_hang *hang, uint32_t rank, struct weft_rank_state *state);

/* Where the path of waits from a rank ends. */
struct weft_waits_end {
  uint32_t culprit;      /* the last rank; of a cycle, the smallest */
  uint32_t cycle_length; /* 0: the path ends at the culprit */
  uint32_t moves;        /* from the reporter to the culprit, or to its first rank on the cycle */
};

/* Follows the waits from `reporter`, whose wait was too long, to a rank that waits for none
 * (it computes, has failed, is idle or done), or whose process is stopped or does not answer,
 * or round a cycle. Describes it in `failure`: "rank 3 has waited 31.2 s in 2RECV_F5 for rank
 * 2, which is in 1F6 since 31.5 s", or the cycle with every member. failure->rank is the
 * culprit, the status WEFT_ERR_STALLED. Linear in the ranks; allocates nothing.
 *
 * Given the program of the ranks (NULL: not known), it also finds a rank that waits for what is
 * done already, because it or its network is slow; it is linear in the program then. Row r runs on
 * rank first_rank + r, and the other replicas before and after it. */
struct weft_waits_end weft_hang_diagnose(const struct weft_hang *hang,
                                         const struct weft_program *program, uint32_t first_rank,
                                         enum weft_send_model comm, uint32_t reporter,
                                         struct weft_failure *failure);

/* Calls `each` for the members of the cycle, starting with its smallest rank. */
void weft_waits_cycle(const struct weft_hang *hang, const struct weft_waits_end *end,
                      void (*each)(void *context, uint32_t rank), void *context);

/* ---- Words. Another process may have written a rank's status: they rely on no value of it ---- */

/* Room for any action ("65535REDUCE_GRAD", "65535SEND_F4294967295") or time; and for a wait. */
enum { WEFT_HANG_WORD = 48, WEFT_HANG_WAIT = 4 * WEFT_HANG_WORD };

/* An action without its sub-actions, so an overlap is "OVERLAP_F_B". "" for IDLE, "?" for what
 * is not an op. Returns buffer, as those below. */
char *weft_hang_action(struct weft_action action, char buffer[WEFT_HANG_WORD]);
/* " in 2RECV_F5", " before 2F5", " in the handshake", or "": where a rank waits. */
char *weft_hang_location(const struct weft_rank_state *state, char buffer[WEFT_HANG_WORD]);
/* "waits in 2RECV_F5 for rank 2 (1SEND_F5)", of a rank; peer UINT32_MAX: for none. */
char *weft_hang_wait(const struct weft_rank_state *state, uint32_t rank, uint32_t peer,
                     char buffer[WEFT_HANG_WAIT]);
/* "31.2 s" since then, or "31 ticks"; 0 of them when it is in the future. */
char *weft_hang_time(const struct weft_hang *hang, int64_t since, char buffer[WEFT_HANG_WORD]);
uint64_t weft_hang_elapsed(const struct weft_hang *hang, int64_t since);

#endif
