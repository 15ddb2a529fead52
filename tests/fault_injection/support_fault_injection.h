/* Fault injection: a wrapper around any transport that delays or damages messages, slows a
 * rank down or kills it, reproducibly for a seed. */
#ifndef SUPPORT_FAULT_INJECTION_H
#define SUPPORT_FAULT_INJECTION_H

#include <weft/comm.h>

struct weft_fault_options {
  uint64_t seed;
  int64_t delay_max;       /* each received message is held back 0 ... max of now()'s time;
                              channels overtake each other, a channel keeps its order */
  uint64_t damage_receive; /* the n-th received message (from 1) has a bit of its header,
                              shapes or, when `damage_payload`, payload flipped; 0: none */
  bool damage_payload;
  uint64_t die_at; /* at the n-th call of send or receive (from 1) this rank goes silent:
                              progress() fails on it with WEFT_ERR_CANCELLED, without telling the
                              others; 0: never */
  int64_t slow_by; /* every test() that succeeds is seen this much later */
};

/* Wraps an endpoint, which must outlive the wrapper; the wrapper is given back by
 * its ops->destroy(). */
enum weft_status weft_fault_injector_create(const struct weft_allocator *allocator,
                                            struct weft_transport *inner,
                                            const struct weft_fault_options *options,
                                            struct weft_transport **out, struct weft_error *error);

#endif
