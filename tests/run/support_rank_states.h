/* A transport that is nothing but states, filled by hand: for tests of what is
 * said about ranks that hang. */
#ifndef TESTS_SUPPORT_RANK_STATES_H
#define TESTS_SUPPORT_RANK_STATES_H

#include <weft/run.h>

struct rank_states {
  struct weft_transport transport;
  struct weft_transport_ops ops;
  struct weft_rank_status *items; /* [rank_count] */
  int64_t now;
  bool has_failed;
  struct weft_failure failure;
};

/* In nanoseconds, or in ticks when the name has "loopback" in it. */
void rank_states_init(struct rank_states *states, uint32_t rank_count, const char *name);
void rank_states_finish(struct rank_states *states);

/* What weft_hang_diagnose() says of a transport's ranks as they are. */
void rank_states_diagnose(struct weft_transport *transport, const struct weft_program *program,
                          uint32_t first_rank, enum weft_send_model comm, uint32_t reporter,
                          struct weft_failure *failure);

/* The bits of an action written as text: "2RECV_F5"; "": none. */
uint64_t packed_action(const char *text);

/* Puts a rank somewhere, `ago` before now. */
void rank_state_set(struct rank_states *states, uint32_t rank, enum weft_rank_phase phase,
                    const char *action, uint32_t peer, const char *wants, int64_t ago);

/* Adds to its recent actions. */
void rank_state_note(struct rank_states *states, uint32_t rank, const char *action, int64_t begin,
                     int64_t end);

#endif
