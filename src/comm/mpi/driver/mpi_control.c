/* Control messages: failures, and the statuses of ranks whose memory is not mapped here. They are
 * probed for now and then instead of being received in advance. The kind is the tag.
 *
 * The agreed failure: a rank that fails reports it to all, with the time. A rank that receives its
 * first report forwards it to all, once. A rank that has heard from all others takes the earliest
 * failure, and so does every other one. A rank that does not hear from all (they compute, or are
 * dead) takes the earliest that it knows after AGREE_MS. In worlds of many ranks nothing is
 * forwarded, and all ranks wait that long. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "comm/mpi/driver/mpi_world.h"
#include "comm/rank_status.h"

enum {
  FORWARD_RANKS_MAX = 64,
  AGREE_MS = 100,
  REPORTER_MS = 200,
  OTHERS_MS = 1700,
  ABORT_MS = 700
};

static void send_control(struct weft_mpi_world *world, uint32_t rank, enum weft_mpi_control kind,
                         const void *data, size_t size) {
  assert(rank < world->transport.rank_count && rank != world->transport.rank);
  MPI_Request *request = &world->peers[rank].sent[kind];
  (void)weft_mpi_await(request); /* the one before: it has come, or was small enough to be gone */
  (void)MPI_Isend(data, (int)size, MPI_BYTE, (int)rank, (int)kind, world->control, request);
}

/* ---- reporting ---- */

static bool is_earlier(const struct weft_mpi_report *a, const struct weft_mpi_report *b) {
  return a->time != b->time ? a->time < b->time : a->rank < b->rank;
}

/* The first that this rank knows of. */
static void record_failure(struct weft_mpi_world *world, const struct weft_mpi_report *report) {
  assert(!world->has_failed);
  world->report = *report;
  world->failed_at = weft_clock_ns();
  world->events++;
  __atomic_store_n(&world->has_failed, 1, __ATOMIC_SEQ_CST);
}

static void send_to_all(struct weft_mpi_world *world, const struct weft_mpi_report *report) {
  world->own = *report;
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    if (r != world->transport.rank) {
      send_control(world, r, WEFT_MPI_FAILURE, &world->own, sizeof world->own);
    }
  }
}

void weft_mpi_failure_report(struct weft_mpi_world *world, const struct weft_failure *failure) {
  assert(failure->error.status < 0);
  if (world->has_failed) {
    return;
  }
  const struct weft_mpi_report report = {
      .time = weft_mpi_time(world), .rank = world->transport.rank, .failure = *failure};
  record_failure(world, &report);
  send_to_all(world, &report);
}

void weft_mpi_failure_heard(struct weft_mpi_world *world, uint32_t rank) {
  assert(rank < world->transport.rank_count);
  if (!world->peers[rank].heard) {
    world->peers[rank].heard = true;
    world->heard_count++;
  }
}

static void receive_failure(struct weft_mpi_world *world, uint32_t from,
                            const struct weft_mpi_report *report) {
  weft_mpi_failure_heard(world, from);
  if (!world->has_failed) {
    record_failure(world, report);
    if (world->transport.rank_count <= FORWARD_RANKS_MAX) {
      send_to_all(world, report);
    }
  } else if (!world->agreed && is_earlier(report, &world->report)) {
    world->report = *report;
  }
}

void weft_mpi_failure_of_mpi(struct weft_mpi_world *world, int result, const char *what) {
  assert(result != MPI_SUCCESS && what != NULL);
  struct weft_failure failure = {.rank = UINT32_MAX};
  char text[MPI_MAX_ERROR_STRING + 1], location[WEFT_RANK_NAME_SIZE];
  weft_mpi_error_text(result, text);
  weft_mpi_location(&world->transport, world->transport.rank, location, sizeof location);
  (void)weft_fail(&failure.error, WEFT_ERR_PEER, "a process or the network has gone",
                  "rank %" PRIu32 " (%s): MPI failed at %s: %.300s", world->transport.rank,
                  location, what, text);
  weft_mpi_failure_report(world, &failure);
}

/* ---- receiving ---- */

/* Our status; it may be read while the rank writes it, as everywhere. */
static void send_status(struct weft_mpi_world *world, uint32_t rank) {
  const struct weft_mpi_shared_status *shared = world->peers[world->transport.rank].shared;
  send_control(world, rank, WEFT_MPI_STATUS, &shared->status, sizeof shared->status);
}

static void take_status(struct weft_mpi_world *world, uint32_t rank,
                        const struct weft_rank_status *received) {
  struct weft_mpi_peer *peer = &world->peers[rank];
  if (!peer->mapped) {
    peer->shared->status = *received;
    world->asked_count -= peer->asked;
    peer->asked = false;
  }
}

/* Receives one; a size that is wrong for its kind is ignored. */
static void receive_control(struct weft_mpi_world *world, MPI_Status *status) {
  union {
    struct weft_mpi_report report;
    struct weft_rank_status status;
  } content;
  int size = 0;
  (void)MPI_Get_count(status, MPI_BYTE, &size);
  const uint32_t from = (uint32_t)status->MPI_SOURCE;
  const int kind = status->MPI_TAG;
  const int result = MPI_Recv(&content, sizeof content, MPI_BYTE, status->MPI_SOURCE, kind,
                              world->control, MPI_STATUS_IGNORE);
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "a control message");
  } else if (kind == WEFT_MPI_FAILURE && size == (int)sizeof content.report) {
    receive_failure(world, from, &content.report);
  } else if (kind == WEFT_MPI_QUESTION) {
    send_status(world, from);
  } else if (kind == WEFT_MPI_STATUS && size == (int)sizeof content.status) {
    take_status(world, from, &content.status);
  }
}

void weft_mpi_control_poll(struct weft_mpi_world *world) {
  MPI_Status status;
  int flag = 1;
  while (flag) {
    const int result = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world->control, &flag, &status);
    if (result != MPI_SUCCESS) {
      weft_mpi_failure_of_mpi(world, result, "probing for control messages");
      return;
    }
    if (flag) {
      receive_control(world, &status);
    }
  }
}

/* ---- statuses ---- */

/* One question at a time: a rank that has not answered the last one is not asked again. */
static void ask_ranks(struct weft_mpi_world *world) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    struct weft_mpi_peer *peer = &world->peers[r];
    if (r != world->transport.rank && !peer->mapped && !peer->asked) {
      peer->asked = true;
      world->asked_count++;
      send_control(world, r, WEFT_MPI_QUESTION, NULL, 0);
    }
  }
}

/* Ranks whose status is not mapped here, and which have not answered. */
static void mark_silent(struct weft_mpi_world *world) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    const struct weft_mpi_peer *peer = &world->peers[r];
    if (!peer->mapped && !peer->gone) {
      uint64_t *flags = &peer->shared->status.flags;
      const uint64_t stopped = WEFT_STATUS_LOAD(*flags) & WEFT_RANK_STOPPED;
      WEFT_STATUS_STORE(*flags, stopped | (peer->asked ? WEFT_RANK_SILENT : 0));
    }
  }
}

void weft_mpi_refresh_status(struct weft_transport *transport, int64_t until) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_lock(world);
  weft_mpi_peers_mark_stopped(world);
  ask_ranks(world);
  while (world->asked_count > 0 && weft_mpi_time(world) < until) {
    weft_mpi_control_poll(world);
    weft_mpi_unlock(world);
    weft_mpi_sleep(50 * WEFT_MPI_NS_PER_US);
    weft_mpi_lock(world);
  }
  mark_silent(world);
  weft_mpi_unlock(world);
}

/* ---- agreeing ---- */

static void agree_failure(struct weft_mpi_world *world) {
  const bool asks_all = world->transport.rank_count <= FORWARD_RANKS_MAX;
  while (!world->agreed) {
    weft_mpi_control_poll(world);
    weft_mpi_peers_check(world);
    const bool heard_all = asks_all && world->heard_count + 1 == world->transport.rank_count;
    const int64_t waited = weft_clock_ns() - world->failed_at;
    if (heard_all || waited >= AGREE_MS * (int64_t)WEFT_MPI_NS_PER_MS) {
      world->agreed = true;
      return;
    }
    weft_mpi_unlock(world);
    weft_mpi_sleep(100 * WEFT_MPI_NS_PER_US);
    weft_mpi_lock(world);
  }
}

enum weft_status weft_mpi_failure_check(struct weft_mpi_world *world, struct weft_error *error) {
  if (!world->has_failed) {
    return WEFT_OK;
  }
  agree_failure(world);
  if (error != NULL) {
    *error = world->report.failure.error;
  }
  return world->report.failure.error.status;
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
  agree_failure(world);
  *failure = world->report.failure;
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
  const struct weft_failure *failure = &world->report.failure;
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
