/* The conformance suite of transports: what every one of them must do, whatever
 * carries its messages (weft/transport.h). A transport says how its worlds are
 * made and how their ranks are driven; the test bodies are step functions, so
 * that a thread per rank and one thread in virtual time run the same ones.
 *
 *     static const struct conformance_transport threads = {"threads", NULL, create, ...};
 *     int main(void) { return conformance_run(&threads); }
 *
 * Where a rank is a process, each process runs the suite with its own rank alone; the
 * others' endpoints are NULL, all of them in a process that has no part in a world. */
#ifndef TESTS_SUPPORT_CONFORMANCE_H
#define TESTS_SUPPORT_CONFORMANCE_H

#include <weft/comm.h>

/* One rank of a test. */
struct conformance_rank {
  struct weft_transport *transport;
  /* Goes on as far as it can. WEFT_OK: done. WEFT_IN_PROGRESS: call again when
   * something has happened, or when now() is `until`. Runs in the rank's thread,
   * so it reports by `error` and never asserts. */
  enum weft_status (*advance)(struct conformance_rank *rank, struct weft_error *error);
  /* Called once when the rank has ended, in its thread. May be NULL. */
  void (*end)(struct conformance_rank *rank);
  void *state;
  int64_t until; /* WEFT_TIME_NEVER before each advance() */

  enum weft_status status; /* how it ended */
  struct weft_error error;
};

struct conformance_transport {
  const char *name;
  void *context;
  /* A world of that many ranks, and their endpoints. Asserts that it worked. */
  void *(*create)(void *context, uint32_t rank_count, struct weft_transport **endpoints);
  void (*destroy)(void *context, void *world, uint32_t rank_count,
                  struct weft_transport **endpoints);
  /* Runs ranks[rank_count] to their ends, with one of the two below. */
  void (*drive)(void *world, struct conformance_rank *ranks, uint32_t rank_count);
  bool real_time;     /* now() is in nanoseconds, and deadlines can be missed */
  uint32_t ranks_max; /* 0: as many as the tests want */
  /* Where ranks are processes: waits for all of them; false unless all came with the
   * same bytes. NULL: all ranks are in this process. */
  bool (*same_everywhere)(void *world, const void *data, size_t size);
};

/* One round of a rank: progress, advance, wait. False when it has ended; after a
 * failure of its own it has failed the world. */
bool conformance_step(struct conformance_rank *rank);

/* The world's time. */
int64_t conformance_now(struct weft_comm *comm);

/* By weft_comm_run(); with the ranks' transports as endpoints, which may be wrapped. */
void conformance_drive_run(struct weft_comm *comm, struct conformance_rank *ranks,
                           uint32_t rank_count);
/* In this thread, by weft_comm_next(). */
void conformance_drive_steps(struct weft_comm *comm, struct conformance_rank *ranks,
                             uint32_t rank_count);

/* Says in `error` what did not hold, and where. Returns WEFT_ERR_INVALID. */
enum weft_status conformance_violated(struct weft_error *error, const char *file, int line,
                                      const char *what);
#define CONFORMANCE_CHECK(error, condition)                                 \
  do {                                                                      \
    if (!(condition)) {                                                     \
      return conformance_violated((error), __FILE__, __LINE__, #condition); \
    }                                                                       \
  } while (0)

/* The whole suite, as a group of cmocka tests; returns how many failed. */
int conformance_run(const struct conformance_transport *transport);

#endif
