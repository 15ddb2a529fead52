/* The agreed failure. A rank that fails reports it to all, with the time. A rank that receives
 * its first report forwards it to all, once. A rank that has heard from all others takes the
 * earliest failure, and so does every other one. A rank that does not hear from all (they
 * compute, or are dead) takes the earliest that it knows after WEFT_MPI_SETTLE_MS. In worlds of
 * many ranks nothing is forwarded, and all ranks wait that long. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi/driver/mpi_world.h"

enum { FORWARD_RANKS_MAX = 64, REPORTER_MS = 200, OTHERS_MS = 1700, ABORT_MS = 700 };

/* ---- reporting ---- */

static bool is_earlier(const struct weft_mpi_failure_note *a,
                       const struct weft_mpi_failure_note *b) {
  return a->time != b->time ? a->time < b->time : a->rank < b->rank;
}

/* The first that this rank knows of. */
static void know(struct weft_mpi_world *world, const struct weft_mpi_failure_note *note) {
  assert(!world->has_failed);
  world->note = *note;
  world->failed_at = weft_clock_ns();
  world->events++;
  __atomic_store_n(&world->has_failed, 1, __ATOMIC_SEQ_CST);
}

static void send_to_all(struct weft_mpi_world *world, const struct weft_mpi_failure_note *note) {
  world->own = *note;
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    if (r != world->transport.rank) {
      weft_mpi_control_send(world, r, WEFT_MPI_FAILURE, &world->own, sizeof world->own,
                            &world->peers[r].failure_request);
    }
  }
}

void weft_mpi_failure_report(struct weft_mpi_world *world, const struct weft_failure *failure) {
  assert(failure->error.status < 0);
  if (world->has_failed) {
    return;
  }
  const struct weft_mpi_failure_note note = {
      .time = weft_mpi_time(world), .rank = world->transport.rank, .failure = *failure};
  know(world, &note);
  send_to_all(world, &note);
}

void weft_mpi_failure_heard(struct weft_mpi_world *world, uint32_t rank) {
  assert(rank < world->transport.rank_count);
  if (!world->peers[rank].heard) {
    world->peers[rank].heard = true;
    world->heard_count++;
  }
}

void weft_mpi_failure_receive(struct weft_mpi_world *world, uint32_t from,
                              const struct weft_mpi_failure_note *note) {
  weft_mpi_failure_heard(world, from);
  if (!world->has_failed) {
    know(world, note);
    if (world->transport.rank_count <= FORWARD_RANKS_MAX) {
      send_to_all(world, note);
    }
  } else if (!world->agreed && is_earlier(note, &world->note)) {
    world->note = *note;
  }
}

void weft_mpi_failure_of_mpi(struct weft_mpi_world *world, int result, const char *what) {
  assert(result != MPI_SUCCESS && what != NULL);
  struct weft_failure failure = {.rank = UINT32_MAX};
  char text[MPI_MAX_ERROR_STRING + 1] = "", place[WEFT_RANK_NAME_SIZE];
  int length = 0;
  (void)MPI_Error_string(result, text, &length);
  text[strcspn(text, "\n")] = '\0';
  weft_mpi_location(&world->transport, world->transport.rank, place, sizeof place);
  (void)weft_fail(&failure.error, WEFT_ERR_PEER, "a process or the network has gone",
                  "rank %" PRIu32 " (%s): MPI failed at %s: %.300s", world->transport.rank, place,
                  what, text);
  weft_mpi_failure_report(world, &failure);
}

/* ---- agreeing ---- */

static void agree(struct weft_mpi_world *world) {
  const bool asks_all = world->transport.rank_count <= FORWARD_RANKS_MAX;
  while (!world->agreed) {
    weft_mpi_control_poll(world);
    weft_mpi_peers_check(world);
    const bool heard_all = asks_all && world->heard_count + 1 == world->transport.rank_count;
    const int64_t waited = weft_clock_ns() - world->failed_at;
    if (heard_all || waited >= WEFT_MPI_SETTLE_MS * (int64_t)WEFT_MPI_NS_PER_MS) {
      world->agreed = true;
      return;
    }
    weft_mpi_unlock(world);
    weft_mpi_sleep(100 * WEFT_MPI_NS_PER_US);
    weft_mpi_lock(world);
  }
}

enum weft_status weft_mpi_failure_agreed(struct weft_mpi_world *world, struct weft_error *error) {
  assert(world->has_failed);
  agree(world);
  if (error != NULL) {
    *error = world->note.failure.error;
  }
  return world->note.failure.error.status;
}

void weft_mpi_fail(struct weft_transport *transport, const struct weft_failure *failure) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_lock(world);
  weft_mpi_failure_report(world, failure);
  weft_mpi_unlock(world);
}

bool weft_mpi_get_failure(struct weft_transport *transport, struct weft_failure *failure) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  if (!__atomic_load_n(&world->has_failed, __ATOMIC_ACQUIRE)) {
    return false;
  }
  weft_mpi_lock(world);
  agree(world);
  *failure = world->note.failure;
  weft_mpi_unlock(world);
  return true;
}

/* ---- ending the job ---- */

/* MPI_Abort may neither return nor end anything. */
static void *exit_later(void *context) {
  const int *exit_status = context;
  weft_mpi_sleep((int64_t)(OTHERS_MS + ABORT_MS) * WEFT_MPI_NS_PER_MS);
  _exit(*exit_status);
}

/* The rank that reports the failure to the user (launch): the first one but the one to blame,
 * which may be dead; for a signal, the rank that received it. */
static uint32_t reporter_of(const struct weft_mpi_world *world) {
  const struct weft_failure *failure = &world->note.failure;
  if (failure->error.status == WEFT_ERR_CANCELLED && failure->rank < world->transport.rank_count) {
    return failure->rank;
  }
  return failure->rank == 0 ? 1 : 0;
}

/* Other ranks receive the failure and print theirs before the job ends. The reporter ends it;
 * the others wait longer for that, and keep answering. */
static void wait_for_reports(struct weft_mpi_world *world) {
  const bool reports = world->transport.rank == reporter_of(world);
  const int64_t wait_ms = reports ? REPORTER_MS : OTHERS_MS;
  const int64_t until = weft_clock_ns() + wait_ms * WEFT_MPI_NS_PER_MS;
  while (weft_clock_ns() < until) {
    if (pthread_mutex_trylock(&world->lock) == 0) {
      weft_mpi_control_poll(world);
      weft_mpi_unlock(world);
    }
    weft_mpi_sleep(WEFT_MPI_NS_PER_MS);
  }
}

void weft_mpi_abandon(struct weft_comm *comm, int exit_status) {
  struct weft_mpi_world *world = (struct weft_mpi_world *)comm;
  pthread_t guard;
  if (pthread_create(&guard, NULL, exit_later, &exit_status) != 0) {
    (void)alarm((OTHERS_MS + ABORT_MS) / 1000 + 1);
  }
  (void)fflush(NULL);
  if (world->transport.rank_count > 1) {
    wait_for_reports(world);
    (void)MPI_Abort(MPI_COMM_WORLD, exit_status);
  }
  _exit(exit_status);
}
