/* A thread per rank on loopback, of which one runs at a time. The rank whose turn it is runs
 * until it waits; then it asks the world for the rank with the next event and passes the turn
 * on to that one's thread, by a semaphore. So ranks may block, and a run has the same events at
 * the same times as one in which the caller steps the ranks. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

#include "comm/loopback/loopback.h"
#include "comm/rank_status.h"
#include "comm/rank_threads.h"

enum { RANKS_LISTED = 6 }; /* in the report of a deadlock */

struct turn {
  sem_t given;
  bool returned; /* rank_main has: it gets no turn any more */
};

struct weft_loopback_run {
  uint32_t running; /* ranks that have not returned */
  bool begun;       /* the first turn has been given */
  struct turn turns[];
};

/* ---- Deadlock ---- */

/* "rank 0 waits for rank 1, rank 1 waits", as far as it fits. */
static void list_waits(const struct weft_loopback *world, char *out, size_t size) {
  uint32_t listed = 0, left_out = 0;
  size_t length = 0;
  out[0] = '\0';
  for (uint32_t r = 0; r < world->shared.rank_count; r++) {
    char peer[48] = "";
    const uint32_t waits_for = WEFT_STATUS_LOAD(world->shared.ranks[r].status.peer);
    if (world->run->turns[r].returned) {
      continue;
    }
    if (listed == RANKS_LISTED) {
      left_out++;
      continue;
    }
    if (waits_for < world->shared.rank_count) {
      (void)snprintf(peer, sizeof peer, " for rank %" PRIu32 "%s", waits_for,
                     world->run->turns[waits_for].returned ? ", which has returned" : "");
    }
    length += (size_t)snprintf(out + length, size - length, "%srank %" PRIu32 " waits%s",
                               listed++ > 0 ? ", " : "", r, peer);
    assert(length < size);
  }
  if (left_out > 0) {
    (void)snprintf(out + length, size - length, ", and %" PRIu32 " more", left_out);
  }
}

/* Every rank waits and nothing is in flight: the world fails, and all ranks see it. */
static void fail_deadlock(struct weft_loopback *world) {
  struct weft_failure failure = {.rank = UINT32_MAX};
  char waits[RANKS_LISTED * 64 + 32];
  list_waits(world, waits, sizeof waits);
  (void)weft_fail(&failure.error, WEFT_ERR_STALLED,
                  "with a stall limit, the ranks report the wait cycle",
                  "no rank can continue, and no message is in flight: %s", waits);
  (void)weft_world_fail(&world->shared, &failure); /* unless it has failed before */
  weft_world_wake_all(&world->shared);
}

/* ---- Turns ---- */

/* The rank whose turn it is next; UINT32_MAX: all have returned. */
static uint32_t choose_next(struct weft_loopback *world) {
  const struct weft_loopback_run *run = world->run;
  while (run->running > 0) {
    struct weft_error error;
    uint32_t next;
    if (weft_loopback_next(&world->comm, &next, &error) < 0) {
      fail_deadlock(world);
    } else if (!run->turns[next].returned) {
      return next;
    }
  }
  return UINT32_MAX;
}

static void give_turn(struct weft_loopback_run *run, uint32_t rank) {
  if (rank != UINT32_MAX) {
    (void)sem_post(&run->turns[rank].given);
  }
}

/* A rank that is cancelled here would end without having the turn, so it cannot be. */
static void await_turn(struct weft_loopback_run *run, uint32_t rank) {
  int before;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  while (sem_wait(&run->turns[rank].given) != 0) {
    assert(errno == EINTR);
  }
  (void)pthread_setcancelstate(before, NULL);
}

enum weft_status weft_loopback_yield(struct weft_loopback *world, uint32_t rank,
                                     struct weft_error *error) {
  assert(world->run != NULL && !world->run->turns[rank].returned);
  weft_rank_status_stop_if_left(&world->shared.ranks[rank].status);
  const uint32_t next = choose_next(world);
  if (next != rank) {
    give_turn(world->run, next);
    await_turn(world->run, rank);
  }
  return weft_world_check(&world->shared, error);
}

/* Rank 0 comes last: the other threads are there when it gives the first turn. */
static void begin_rank(struct weft_comm *comm, uint32_t rank) {
  struct weft_loopback *world = weft_loopback_of(comm);
  if (rank == 0) {
    world->run->begun = true;
    give_turn(world->run, choose_next(world));
  }
  await_turn(world->run, rank);
}

/* When a thread could not be started, the caller ends those that are not there, rank 0 last. */
static void end_rank(struct weft_comm *comm, uint32_t rank) {
  struct weft_loopback *world = weft_loopback_of(comm);
  weft_rank_status_stop_if_left(&world->shared.ranks[rank].status);
  world->run->turns[rank].returned = true;
  world->run->running--;
  if (world->run->begun || rank == 0) {
    world->run->begun = true;
    give_turn(world->run, choose_next(world));
  }
}

/* ---- The run ---- */

static void finish_run(struct weft_loopback *world) {
  struct weft_loopback_run *run = world->run;
  const uint32_t count = world->shared.rank_count;
  if (world->comm.stuck_ranks > 0) {
    return;
  }
  for (uint32_t r = 0; r < count; r++) {
    (void)sem_destroy(&run->turns[r].given);
  }
  weft_array_free(world->shared.allocator, run, sizeof *run + count * sizeof run->turns[0], 1);
  world->run = NULL;
}

enum weft_status weft_loopback_run(struct weft_comm *comm, struct weft_transport *const *endpoints,
                                   weft_rank_main *rank_main, void *context,
                                   struct weft_error *error) {
  struct weft_loopback *world = weft_loopback_of(comm);
  const uint32_t count = world->shared.rank_count;
  const struct weft_rank_threads threads = {.world = &world->shared,
                                            .endpoints = endpoints,
                                            .rank_main = rank_main,
                                            .context = context,
                                            .begin = begin_rank,
                                            .end = end_rank,
                                            .takes_turns = true,
                                            .stage_limit_ns = world->options.stage_limit_ns};
  const size_t size = sizeof *world->run + count * sizeof world->run->turns[0];
  struct weft_loopback_run *run = weft_array_allocate_zero(world->shared.allocator, size, 1);
  if (run == NULL) {
    return weft_fail_memory(error, size);
  }
  assert(world->run == NULL);
  run->running = count;
  for (uint32_t r = 0; r < count; r++) {
    (void)sem_init(&run->turns[r].given, 0, 0);
  }
  weft_world_wake_all(&world->shared);
  world->run = run;
  const enum weft_status status = weft_rank_threads_run(&threads, error);
  finish_run(world);
  return status;
}
