/* Control messages: failures, and the statuses of ranks whose memory is not mapped here. They
 * are probed for now and then instead of being received in advance. The kind is the tag. */
#include <assert.h>

#include "comm/mpi/driver/mpi_world.h"

void weft_mpi_control_send(struct weft_mpi_world *world, uint32_t rank,
                           enum weft_mpi_control_kind kind, const void *data, size_t size,
                           MPI_Request *request) {
  assert(rank < world->transport.rank_count && rank != world->transport.rank);
  (void)weft_mpi_await(request); /* the one before: it has come, or was small enough to be gone */
  (void)MPI_Isend(data, (int)size, MPI_BYTE, (int)rank, (int)kind, world->control, request);
}

/* Our status; it may be read while the rank writes it, as everywhere. */
static void answer(struct weft_mpi_world *world, uint32_t rank) {
  const struct weft_mpi_shared_status *shared = world->peers[world->transport.rank].shared;
  weft_mpi_control_send(world, rank, WEFT_MPI_STATUS, &shared->status, sizeof shared->status,
                        &world->peers[rank].status_request);
}

static void take_status(struct weft_mpi_world *world, uint32_t rank,
                        const struct weft_rank_status *received) {
  struct weft_mpi_peer *peer = &world->peers[rank];
  if (!peer->mapped) {
    peer->shared->status = *received;
    peer->asked = false;
  }
}

/* Receives one; a size that is wrong for its kind is ignored. */
static void take(struct weft_mpi_world *world, MPI_Status *status) {
  union {
    struct weft_mpi_failure_note note;
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
  } else if (kind == WEFT_MPI_FAILURE && size == (int)sizeof content.note) {
    weft_mpi_failure_receive(world, from, &content.note);
  } else if (kind == WEFT_MPI_QUESTION) {
    answer(world, from);
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
      take(world, &status);
    }
  }
}

/* ---- statuses ---- */

/* One question at a time: a rank that has not answered the last one is not asked again. */
static void ask(struct weft_mpi_world *world) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    struct weft_mpi_peer *peer = &world->peers[r];
    if (r != world->transport.rank && !peer->mapped && !peer->asked) {
      peer->asked = true;
      weft_mpi_control_send(world, r, WEFT_MPI_QUESTION, NULL, 0, &peer->question_request);
    }
  }
}

bool weft_mpi_control_is_quiet(const struct weft_mpi_world *world) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    if (world->peers[r].asked) {
      return false;
    }
  }
  return true;
}

/* Ranks whose status is not mapped here, and which have not answered. */
static void mark_silent(struct weft_mpi_world *world) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    const struct weft_mpi_peer *peer = &world->peers[r];
    if (!peer->mapped && !peer->gone) {
      uint64_t *flags = &peer->shared->status.flags;
      const uint64_t stopped = __atomic_load_n(flags, __ATOMIC_RELAXED) & WEFT_RANK_STOPPED;
      __atomic_store_n(flags, stopped | (peer->asked ? WEFT_RANK_SILENT : 0), __ATOMIC_RELAXED);
    }
  }
}

void weft_mpi_refresh_status(struct weft_transport *transport, int64_t until) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_lock(world);
  weft_mpi_peers_mark_stopped(world);
  ask(world);
  while (!weft_mpi_control_is_quiet(world) && weft_mpi_time(world) < until) {
    weft_mpi_control_poll(world);
    weft_mpi_unlock(world);
    weft_mpi_sleep(50 * WEFT_MPI_NS_PER_US);
    weft_mpi_lock(world);
  }
  mark_silent(world);
  weft_mpi_unlock(world);
}
