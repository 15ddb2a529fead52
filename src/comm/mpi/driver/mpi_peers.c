/* The other ranks. Those on this host share their status in memory that is mapped here, so that
 * it can be read while they compute or are stopped; and their processes are watched: one that
 * ends before the world does fails it. The memory has no name in any file system, so nothing
 * is left over after a crash. */
#define _GNU_SOURCE /* memfd_create, syscall */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <weft/support.h>

#include "comm/mpi/driver/mpi_world.h"

/* ---- processes of this host ---- */

/* The first bytes of a small file, without a newline; "" when it cannot be read. */
static void read_line(const char *path, char *out, size_t size) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t length = file >= 0 ? read(file, out, size - 1) : -1;
  out[length > 0 ? length : 0] = '\0';
  out[strcspn(out, "\n")] = '\0';
  if (file >= 0) {
    (void)close(file);
  }
}

/* State and start time of a process; false when there is none. */
static bool read_process(int pid, char *state, uint64_t *started) {
  char path[64];
  char text[512];
  (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
  read_line(path, text, sizeof text);
  const char *at = strrchr(text, ')'); /* the name before it may hold anything */
  if (at == NULL || at[1] != ' ') {
    return false;
  }
  *state = at[2];
  at += 2;
  for (int field = 3; field < 22 && at != NULL; field++) {
    at = strchr(at + 1, ' ');
  }
  *started = at != NULL ? strtoull(at, NULL, 10) : 0;
  return at != NULL;
}

/* ---- this rank's info and shared status ---- */

static void write_info(const struct weft_mpi_world *world, struct weft_mpi_peer_info *info) {
  struct stat space;
  char state;
  memset(info, 0, sizeof *info); /* it travels */
  (void)snprintf(info->version, sizeof info->version, "%s", WEFT_VERSION);
  if (gethostname(info->host, sizeof info->host - 1) != 0) {
    (void)snprintf(info->host, sizeof info->host, "unknown");
  }
  if (world->host != NULL) {
    (void)snprintf(info->machine, sizeof info->machine, "%s", world->host);
    (void)snprintf(info->host, sizeof info->host, "%s", world->host);
  } else {
    read_line("/proc/sys/kernel/random/boot_id", info->machine, sizeof info->machine);
  }
  info->piece = world->piece;
  info->pid = (int32_t)getpid();
  info->pid_space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
  (void)read_process(info->pid, &state, &info->started);
  info->status_file = world->status_file;
}

static struct weft_mpi_shared_status *map_shared(int file) {
  void *shared = mmap(NULL, sizeof(struct weft_mpi_shared_status), PROT_READ | PROT_WRITE,
                      MAP_SHARED, file, 0);
  return shared != MAP_FAILED ? shared : NULL;
}

/* Where there is no such memory, it is private, and ranks ask for statuses. */
static enum weft_status need_status(const struct weft_mpi_world *world, struct weft_mpi_peer *peer,
                                    struct weft_error *error) {
  if (peer->shared == NULL) {
    peer->shared = weft_array_allocate_zero(world->allocator, 1, sizeof *peer->shared);
    if (peer->shared == NULL) {
      return weft_fail_memory(error, sizeof *peer->shared);
    }
    peer->shared->status.peer = UINT32_MAX;
  }
  return WEFT_OK;
}

static enum weft_status make_shared(struct weft_mpi_world *world, struct weft_error *error) {
  struct weft_mpi_peer *self = &world->peers[world->transport.rank];
  world->status_file = memfd_create("weft-status", MFD_CLOEXEC);
  if (world->status_file >= 0 && ftruncate(world->status_file, sizeof *self->shared) == 0) {
    self->shared = map_shared(world->status_file);
    self->mapped = self->shared != NULL;
  }
  if (self->mapped) {
    self->shared->status.peer = UINT32_MAX;
  }
  return need_status(world, self, error);
}

/* ---- the others ---- */

bool weft_mpi_same_machine(const struct weft_mpi_world *world, uint32_t a, uint32_t b) {
  assert(a < world->transport.rank_count && b < world->transport.rank_count);
  return strncmp(world->peers[a].info.machine, world->peers[b].info.machine,
                 sizeof world->peers[a].info.machine) == 0;
}

void weft_mpi_location(struct weft_transport *transport, uint32_t rank, char *buffer, size_t size) {
  assert(rank < transport->rank_count && size > 0);
  const struct weft_mpi_peer_info *info = &weft_mpi_world_of(transport)->peers[rank].info;
  (void)snprintf(buffer, size, "%s, process %" PRId32, info->host, info->pid);
}

static bool is_visible(const struct weft_mpi_world *world, uint32_t rank) {
  const struct weft_mpi_peer_info *mine = &world->peers[world->transport.rank].info;
  const struct weft_mpi_peer_info *info = &world->peers[rank].info;
  uint64_t started;
  char state;
  return weft_mpi_same_machine(world, rank, world->transport.rank) &&
         info->pid_space == mine->pid_space && read_process(info->pid, &state, &started) &&
         started == info->started;
}

static void watch_process(struct weft_mpi_world *world, uint32_t rank) {
  assert(rank < world->transport.rank_count);
#ifdef SYS_pidfd_open
  const int file = (int)syscall(SYS_pidfd_open, world->peers[rank].info.pid, 0U);
  world->processes[rank] = (struct pollfd){.fd = file, .events = POLLIN};
#else
  (void)world;
  (void)rank;
#endif
}

static void map_peer(struct weft_mpi_peer *peer) {
  assert(peer->visible && peer->shared == NULL);
  const struct weft_mpi_peer_info *info = &peer->info;
  char path[64];
  (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", info->pid, info->status_file);
  const int file = info->status_file >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file >= 0) {
    peer->shared = map_shared(file);
    peer->mapped = peer->shared != NULL;
    (void)close(file);
  }
}

static enum weft_status inspect_peer(struct weft_mpi_world *world, uint32_t rank,
                                     struct weft_error *error) {
  struct weft_mpi_peer *peer = &world->peers[rank];
  if (is_visible(world, rank)) {
    peer->visible = true;
    watch_process(world, rank);
    map_peer(peer);
  }
  return need_status(world, peer, error);
}

/* All ranks come to the same result: they compare the same infos. */
static enum weft_status check_infos(const struct weft_mpi_world *world, struct weft_error *error) {
  const struct weft_mpi_peer_info *first = &world->peers[0].info;
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    const struct weft_mpi_peer_info *info = &world->peers[r].info;
    if (strncmp(info->version, first->version, sizeof info->version) != 0) {
      return weft_fail(error, WEFT_ERR_PEER, "install the same version everywhere",
                       "rank %" PRIu32 " (%.64s) has Weft %.16s, rank 0 (%.64s) has %.16s", r,
                       info->host, info->version, first->host, first->version);
    }
    if (info->status != WEFT_OK) {
      return weft_fail(error, (enum weft_status)info->status, "",
                       "rank %" PRIu32 " (%.64s) could not make its part of the world: %s", r,
                       info->host, weft_status_name((enum weft_status)info->status));
    }
    if (info->piece != first->piece) {
      return weft_fail(error, WEFT_ERR_PEER, "give all ranks the same piece_bytes",
                       "rank %" PRIu32 " sends pieces of %" PRIu64 " bytes, rank 0 of %" PRIu64, r,
                       info->piece, first->piece);
    }
  }
  return WEFT_OK;
}

static enum weft_status gather_infos(struct weft_mpi_world *world, enum weft_status status,
                                     struct weft_error *error) {
  const uint32_t count = world->transport.rank_count;
  const size_t size = sizeof(struct weft_mpi_peer_info);
  struct weft_mpi_peer_info mine;
  write_info(world, &mine);
  mine.status = status;
  struct weft_mpi_peer_info *all = weft_array_allocate(world->allocator, count, size);
  MPI_Request request;
  int result = all == NULL ? MPI_ERR_OTHER
                           : MPI_Iallgather(&mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE,
                                            world->control, &request);
  if (result == MPI_SUCCESS) {
    result = weft_mpi_await(&request);
  }
  for (uint32_t r = 0; r < count && result == MPI_SUCCESS; r++) {
    world->peers[r].info = all[r];
    world->peers[r].info.host[WEFT_MPI_HOST_SIZE - 1] = '\0';
  }
  weft_array_free(world->allocator, all, count, size);
  if (result != MPI_SUCCESS) {
    return weft_fail(error, all == NULL ? WEFT_ERR_MEMORY : WEFT_ERR_PEER, "",
                     "the ranks could not exchange their peer infos");
  }
  return status != WEFT_OK ? status : check_infos(world, error);
}

static enum weft_status inspect_all(struct weft_mpi_world *world, struct weft_error *error) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    if (weft_mpi_same_machine(world, r, world->transport.rank)) {
      world->ranks_on_host++;
      world->rank_on_host += r < world->transport.rank;
    }
    if (r != world->transport.rank) {
      WEFT_TRY(inspect_peer(world, r, error));
    }
  }
  return WEFT_OK;
}

enum weft_status weft_mpi_peers_create(struct weft_mpi_world *world, struct weft_error *error) {
  const uint32_t count = world->transport.rank_count;
  for (uint32_t r = 0; r < count; r++) {
    for (uint32_t k = 0; k < WEFT_MPI_CONTROL_KINDS; k++) {
      world->peers[r].sent[k] = MPI_REQUEST_NULL;
    }
  }
  const enum weft_status made = make_shared(world, error);
  WEFT_TRY(gather_infos(world, made, error));
  return inspect_all(world, error);
}

void weft_mpi_peers_finish(struct weft_mpi_world *world) {
  for (uint32_t r = 0; world->processes != NULL && r < world->transport.rank_count; r++) {
    struct weft_mpi_peer *peer = &world->peers[r];
    if (world->processes[r].fd >= 0) {
      (void)close(world->processes[r].fd);
    }
    if (peer->mapped) {
      (void)munmap(peer->shared, sizeof *peer->shared);
    } else {
      weft_array_free(world->allocator, peer->shared, 1, sizeof *peer->shared);
    }
  }
  if (world->status_file >= 0) {
    (void)close(world->status_file);
  }
}

/* ---- watching ---- */

static void end_of_process(struct weft_mpi_world *world, uint32_t rank) {
  struct weft_mpi_peer *peer = &world->peers[rank];
  peer->gone = true;
  weft_mpi_failure_heard(world, rank);
  if (peer->mapped && __atomic_load_n(&peer->shared->finalizing, __ATOMIC_ACQUIRE)) {
    return;
  }
  (void)__atomic_fetch_or(&peer->shared->status.flags, WEFT_RANK_DEAD, __ATOMIC_RELAXED);
  struct weft_failure failure = {.rank = rank};
  (void)weft_fail(&failure.error, WEFT_ERR_PEER, "look for what ended it: memory, a signal, exit()",
                  "rank %" PRIu32 " (%s, process %" PRId32 ") died", rank, peer->info.host,
                  peer->info.pid);
  weft_mpi_failure_report(world, &failure);
}

void weft_mpi_peers_check(struct weft_mpi_world *world) {
  const uint32_t count = world->transport.rank_count;
  if (count < 2 || poll(world->processes, count, 0) <= 0) {
    return;
  }
  for (uint32_t r = 0; r < count; r++) {
    if (world->processes[r].revents != 0) {
      end_of_process(world, r);
      (void)close(world->processes[r].fd);
      world->processes[r] = (struct pollfd){.fd = -1};
    }
  }
}

void weft_mpi_peers_mark_stopped(struct weft_mpi_world *world) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    struct weft_mpi_peer *peer = &world->peers[r];
    uint64_t started;
    char state;
    if (!peer->visible || !read_process(peer->info.pid, &state, &started)) {
      continue;
    }
    uint64_t *flags = &peer->shared->status.flags;
    if (state == 'T' || state == 't') {
      (void)__atomic_fetch_or(flags, WEFT_RANK_STOPPED, __ATOMIC_RELAXED);
    } else {
      (void)__atomic_fetch_and(flags, ~(uint64_t)WEFT_RANK_STOPPED, __ATOMIC_RELAXED);
    }
  }
}
