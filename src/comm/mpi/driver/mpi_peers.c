/* Who the other ranks are. Those on this machine show their boards in memory that is
 * mapped here, so that they can be read while they compute, or are stopped; and their
 * processes are watched: one that ends without having said so fails the world. The
 * memory has no name in any file system, so nothing can stay behind. */
#define _GNU_SOURCE /* memfd_create, syscall */
#include <errno.h>
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

#include "base/memory.h"
#include "comm/mpi/driver/mpi_world.h"

/* ---- what the system says ---- */

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

/* ---- this rank's card and page ---- */

static void write_card(const struct weft_mpi_world *world, struct weft_mpi_card *card) {
  struct stat space;
  char state;
  const char *name = getenv("WEFT_MPI_HOST"); /* for tests: as if on another machine */
  const char *letters = getenv("WEFT_MPI_LETTERBOX");
  memset(card, 0, sizeof *card); /* it travels */
  (void)snprintf(card->version, sizeof card->version, "%s", WEFT_VERSION);
  if (gethostname(card->host, sizeof card->host - 1) != 0) {
    (void)snprintf(card->host, sizeof card->host, "unknown");
  }
  if (name != NULL && name[0] != '\0') {
    (void)snprintf(card->machine, sizeof card->machine, "%s", name);
    (void)snprintf(card->host, sizeof card->host, "%s", name);
  } else {
    read_line("/proc/sys/kernel/random/boot_id", card->machine, sizeof card->machine);
  }
  card->piece = world->piece;
  card->pid = (int32_t)getpid();
  card->pid_space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
  (void)read_process(card->pid, &state, &card->started);
  card->net_space = stat("/proc/self/ns/net", &space) == 0 ? (uint64_t)space.st_ino : 0;
  card->page = world->page_file;
  card->letters = letters == NULL || strcmp(letters, "0") != 0;
}

static struct weft_mpi_page *map_page(int file) {
  void *page =
      mmap(NULL, sizeof(struct weft_mpi_page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return page != MAP_FAILED ? page : NULL;
}

/* Where there is no such memory, the page is our own, and others ask for it. */
static enum weft_status make_page(struct weft_mpi_world *world, struct weft_error *error) {
  struct weft_mpi_peer *self = &world->peers[world->transport.rank];
  world->page_file = memfd_create("weft-board", MFD_CLOEXEC);
  if (world->page_file >= 0 && ftruncate(world->page_file, sizeof *self->page) == 0) {
    self->page = map_page(world->page_file);
    self->mapped = self->page != NULL;
  }
  if (self->page == NULL) {
    self->page = weft_array_allocate_zero(world->allocator, 1, sizeof *self->page);
  }
  if (self->page == NULL) {
    return weft_fail_memory(error, sizeof *self->page);
  }
  self->page->board.peer = UINT32_MAX;
  return WEFT_OK;
}

/* ---- the others ---- */

bool weft_mpi_same_machine(const struct weft_mpi_world *world, uint32_t a, uint32_t b) {
  return strncmp(world->peers[a].card.machine, world->peers[b].card.machine,
                 sizeof world->peers[a].card.machine) == 0;
}

void weft_mpi_place(struct weft_transport *transport, uint32_t rank, char *buffer, size_t size) {
  const struct weft_mpi_card *card = &weft_mpi_world_of(transport)->peers[rank].card;
  (void)snprintf(buffer, size, "%s, process %" PRId32, card->host, card->pid);
}

static bool is_visible(const struct weft_mpi_world *world, uint32_t rank) {
  const struct weft_mpi_card *mine = &world->peers[world->transport.rank].card;
  const struct weft_mpi_card *card = &world->peers[rank].card;
  uint64_t started;
  char state;
  return weft_mpi_same_machine(world, rank, world->transport.rank) &&
         card->pid_space == mine->pid_space && read_process(card->pid, &state, &started) &&
         started == card->started;
}

static void watch(struct weft_mpi_world *world, uint32_t rank) {
#ifdef SYS_pidfd_open
  const int file = (int)syscall(SYS_pidfd_open, world->peers[rank].card.pid, 0U);
  if (file >= 0) {
    world->processes[world->process_count] = (struct pollfd){.fd = file, .events = POLLIN};
    world->process_rank[world->process_count++] = rank;
  }
#else
  (void)world;
  (void)rank;
#endif
}

int weft_mpi_page_open(const struct weft_mpi_card *card) {
  char path[64];
  (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", card->pid, card->page);
  return card->page >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

static void map_board(struct weft_mpi_peer *peer) {
  const int file = weft_mpi_page_open(&peer->card);
  if (file < 0) {
    return;
  }
  peer->page = map_page(file);
  peer->mapped = peer->page != NULL;
  (void)close(file);
}

static enum weft_status meet(struct weft_mpi_world *world, uint32_t rank,
                             struct weft_error *error) {
  struct weft_mpi_peer *peer = &world->peers[rank];
  if (is_visible(world, rank)) {
    peer->visible = true;
    watch(world, rank);
    map_board(peer);
  }
  if (peer->page == NULL) {
    peer->page = weft_array_allocate_zero(world->allocator, 1, sizeof *peer->page);
    if (peer->page == NULL) {
      return weft_fail_memory(error, sizeof *peer->page);
    }
    peer->page->board.peer = UINT32_MAX;
  }
  return WEFT_OK;
}

/* All ranks come to the same verdict: they look at the same cards. */
static enum weft_status check_cards(const struct weft_mpi_world *world, struct weft_error *error) {
  const struct weft_mpi_card *first = &world->peers[0].card;
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    const struct weft_mpi_card *card = &world->peers[r].card;
    if (strncmp(card->version, first->version, sizeof card->version) != 0) {
      return weft_fail(error, WEFT_ERR_PEER, "install the same version everywhere",
                       "rank %" PRIu32 " (%.64s) has Weft %.16s, rank 0 (%.64s) has %.16s", r,
                       card->host, card->version, first->host, first->version);
    }
    if (card->status != WEFT_OK) {
      return weft_fail(error, (enum weft_status)card->status, "",
                       "rank %" PRIu32 " (%.64s) could not make its part of the world: %s", r,
                       card->host, weft_status_name((enum weft_status)card->status));
    }
    if (card->piece != first->piece) {
      return weft_fail(error, WEFT_ERR_PEER, "set WEFT_MPI_PIECE alike on all ranks",
                       "rank %" PRIu32 " sends pieces of %" PRIu64 " bytes, rank 0 of %" PRIu64, r,
                       card->piece, first->piece);
    }
  }
  return WEFT_OK;
}

static enum weft_status gather_cards(struct weft_mpi_world *world, enum weft_status status,
                                     struct weft_error *error) {
  const uint32_t count = world->transport.rank_count;
  const size_t size = sizeof(struct weft_mpi_card);
  struct weft_mpi_card mine;
  write_card(world, &mine);
  mine.status = status;
  struct weft_mpi_card *all = weft_array_allocate(world->allocator, count, size);
  MPI_Request request;
  int result = all == NULL ? MPI_ERR_OTHER
                           : MPI_Iallgather(&mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE,
                                            world->control, &request);
  if (result == MPI_SUCCESS) {
    result = weft_mpi_await(&request);
  }
  for (uint32_t r = 0; r < count && result == MPI_SUCCESS; r++) {
    world->peers[r].card = all[r];
    world->peers[r].card.host[WEFT_MPI_HOST_SIZE - 1] = '\0';
  }
  weft_array_free(world->allocator, all, count, size);
  if (result != MPI_SUCCESS) {
    return weft_fail(error, all == NULL ? WEFT_ERR_MEMORY : WEFT_ERR_PEER, "",
                     "the ranks could not tell each other who they are");
  }
  return status != WEFT_OK ? status : check_cards(world, error);
}

/* Letters go one way or both, where the reader sees the writer's memory. Ranks with networks
 * of their own are hosts of their own, even on one machine: they are kept on their wires. */
static bool reads_letters_of(const struct weft_mpi_world *world, uint32_t rank) {
  const struct weft_mpi_card *mine = &world->peers[world->transport.rank].card;
  const struct weft_mpi_peer *peer = &world->peers[rank];
  return rank != world->transport.rank && peer->mapped && peer->card.letters && mine->letters &&
         peer->card.net_space == mine->net_space;
}

/* Every rank tells every other whether it reads that one's letters. It needs no memory: the
 * others would wait for who has none. */
static enum weft_status agree_on_letters(struct weft_mpi_world *world, struct weft_error *error) {
  const uint32_t count = world->transport.rank_count;
  unsigned char *mine = world->exchange_all;
  unsigned char *theirs = mine + count;
  MPI_Request request;
  for (uint32_t r = 0; r < count; r++) {
    world->peers[r].writes = reads_letters_of(world, r);
    mine[r] = world->peers[r].writes;
  }
  int result = MPI_Ialltoall(mine, 1, MPI_BYTE, theirs, 1, MPI_BYTE, world->control, &request);
  if (result == MPI_SUCCESS) {
    result = weft_mpi_await(&request);
  }
  if (result != MPI_SUCCESS) {
    return weft_fail(error, WEFT_ERR_PEER, "", "the ranks could not agree on letterboxes");
  }
  for (uint32_t r = 0; r < count; r++) {
    world->peers[r].reads = theirs[r] != 0;
  }
  return WEFT_OK;
}

static enum weft_status meet_all(struct weft_mpi_world *world, struct weft_error *error) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    if (weft_mpi_same_machine(world, r, world->transport.rank)) {
      world->ranks_on_host++;
      world->rank_on_host += r < world->transport.rank;
    }
    if (r != world->transport.rank) {
      WEFT_TRY(meet(world, r, error));
    }
  }
  return WEFT_OK;
}

enum weft_status weft_mpi_peers_create(struct weft_mpi_world *world, struct weft_error *error) {
  const uint32_t count = world->transport.rank_count;
  for (uint32_t r = 0; r < count; r++) {
    world->peers[r].failure_request = MPI_REQUEST_NULL;
    world->peers[r].board_request = MPI_REQUEST_NULL;
    world->peers[r].question_request = MPI_REQUEST_NULL;
  }
  const enum weft_status made = make_page(world, error);
  WEFT_TRY(gather_cards(world, made, error));
  const enum weft_status met = meet_all(world, error);
  struct weft_error later;
  const enum weft_status agreed = agree_on_letters(world, met == WEFT_OK ? error : &later);
  return met != WEFT_OK ? met : agreed;
}

void weft_mpi_peers_finish(struct weft_mpi_world *world) {
  for (uint32_t k = 0; k < world->process_count; k++) {
    (void)close(world->processes[k].fd);
  }
  world->process_count = 0;
  for (uint32_t r = 0; world->peers != NULL && r < world->transport.rank_count; r++) {
    struct weft_mpi_peer *peer = &world->peers[r];
    if (peer->mapped) {
      (void)munmap(peer->page, sizeof *peer->page);
    } else {
      weft_array_free(world->allocator, peer->page, 1, sizeof *peer->page);
    }
  }
  if (world->page_file >= 0) {
    (void)close(world->page_file);
  }
}

/* ---- watching ---- */

static void end_of_process(struct weft_mpi_world *world, uint32_t rank) {
  struct weft_mpi_peer *peer = &world->peers[rank];
  peer->gone = true;
  weft_mpi_failure_heard(world, rank);
  if (peer->mapped && __atomic_load_n(&peer->page->leaving, __ATOMIC_ACQUIRE)) {
    return;
  }
  struct weft_failure failure = {.rank = rank};
  (void)weft_fail(&failure.error, WEFT_ERR_PEER, "look for what killed it: memory, a signal",
                  "rank %" PRIu32 " (%s, process %" PRId32 ") died", rank, peer->card.host,
                  peer->card.pid);
  weft_mpi_failure_say(world, &failure);
}

void weft_mpi_peers_look(struct weft_mpi_world *world) {
  if (world->process_count == 0 || poll(world->processes, world->process_count, 0) <= 0) {
    return;
  }
  for (uint32_t k = world->process_count; k-- > 0;) {
    if (world->processes[k].revents == 0) {
      continue;
    }
    end_of_process(world, world->process_rank[k]);
    (void)close(world->processes[k].fd);
    world->process_count--;
    world->processes[k] = world->processes[world->process_count];
    world->process_rank[k] = world->process_rank[world->process_count];
  }
}

void weft_mpi_peers_mark_stopped(struct weft_mpi_world *world) {
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    struct weft_mpi_peer *peer = &world->peers[r];
    uint64_t started;
    char state;
    if (!peer->visible || !read_process(peer->card.pid, &state, &started)) {
      continue;
    }
    const bool stopped = state == 'T' || state == 't';
    __atomic_store_n(&peer->page->board.flags, stopped ? WEFT_RANK_STOPPED : 0, __ATOMIC_RELAXED);
  }
}
