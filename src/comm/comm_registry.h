/* The table of transports, for those who implement one: a folder here, a struct weft_comm_kind
 * in it, and a line in comm_registry.c. */
#ifndef COMM_REGISTRY_H
#define COMM_REGISTRY_H

#include <weft/comm.h>

typedef enum weft_status weft_rank_main(void *context, struct weft_transport *transport,
                                        struct weft_error *error);

struct weft_comm_kind {
  struct weft_comm_info info;
  bool one_thread; /* of the world of threads: one thread drives all ranks */
  /* As the functions of weft/comm.h; `allocator` and `options` are never NULL. The world is of
   * `kind`, which is this one. */
  enum weft_status (*open)(const struct weft_comm_kind *kind,
                           const struct weft_allocator *allocator,
                           const struct weft_comm_options *options, struct weft_comm **out,
                           struct weft_error *error);
  void (*close)(struct weft_comm *comm);
  void (*disconnect)(struct weft_comm *comm); /* NULL: it uses no devices */
  /* With all ranks in this process: a rank's endpoint, or NULL, there is no such rank; else NULL. */
  struct weft_transport *(*endpoint)(struct weft_comm *comm, uint32_t rank);
  /* `endpoints` (NULL: the world's own) are what the ranks are given: tests wrap them. NULL with a
   * process per rank: this one's, in the caller's thread. */
  enum weft_status (*run)(struct weft_comm *comm, struct weft_transport *const *endpoints,
                          weft_rank_main *rank_main, void *context, struct weft_error *error);
  /* Virtual time only, else NULL. */
  enum weft_status (*next)(struct weft_comm *comm, uint32_t *rank, struct weft_error *error);
  void (*wake)(struct weft_comm *comm, uint32_t rank);
  /* A process per rank only, else NULL. */
  void (*abandon)(struct weft_comm *comm, int exit_status);
  /* May be NULL. */
  enum weft_status (*library_version)(int *version, struct weft_error *error);
  void (*facts)(const struct weft_comm *comm, struct weft_comm_facts *facts);
  enum weft_status (*pingpong)(struct weft_comm *comm, const void *out, void *in, uint64_t bytes,
                               uint64_t *round_ns, struct weft_error *error);
};

/* Base of every world: put it first. */
struct weft_comm {
  const struct weft_comm_kind *kind;
  struct weft_transport *local; /* with a process per rank: this one's endpoint; else NULL */
  uint32_t stuck_ranks;         /* whose threads run on: nothing may be freed */
};

/* weft_comm_run(), with such endpoints. */
enum weft_status weft_comm_run_endpoints(struct weft_comm *comm,
                                         struct weft_transport *const *endpoints,
                                         weft_rank_main *rank_main, void *context,
                                         struct weft_error *error);
/* Why a rank failed whose rank_main returned `status`, and gave this reason or none. */
struct weft_failure weft_comm_rank_failure(uint32_t rank, enum weft_status status,
                                           const struct weft_error *reason);

#define WEFT_DECLARE_KIND(name, words) extern const struct weft_comm_kind weft_##name##_kind;
WEFT_TRANSPORTS(WEFT_DECLARE_KIND)
#undef WEFT_DECLARE_KIND

#endif
