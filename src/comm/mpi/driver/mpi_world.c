/* Opening and closing a world, and the table through which the library calls this driver.
 * Compiled once against each MPI; WEFT_MPI_IMPLEMENTATION is its name.
 *
 * A world that has failed is not freed: MPI may still have requests of ours that never
 * complete, and their memory must stay. It becomes an attribute of its communicator, and the
 * process is about to end. */
#define _GNU_SOURCE /* sched_getaffinity */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "comm/mpi/driver/mpi_world.h"
#include "device/environment_default.h"

enum { ANSWERS_NS = WEFT_MPI_NS_PER_S };

/* ---- the endpoint ---- */

static struct weft_rank_status *endpoint_status(struct weft_transport *transport, uint32_t rank) {
  return &weft_mpi_world_of(transport)->peers[rank].shared->status;
}

static const struct weft_transport_ops mpi_ops = {
    .name = "mpi",
    .open = weft_mpi_open,
    .post = weft_mpi_post,
    .test = weft_mpi_test,
    .cancel = weft_mpi_cancel,
    .progress = weft_mpi_progress,
    .progress_from_compute = weft_mpi_progress_from_compute,
    .wait = weft_mpi_wait,
    .now = weft_mpi_now,
    .exchange = weft_mpi_exchange,
    .fail = weft_mpi_fail,
    .get_failure = weft_mpi_get_failure,
    .rank_status = endpoint_status,
    .refresh_status = weft_mpi_refresh_status,
    .location = weft_mpi_location,
    .group = weft_mpi_group_create,
};

/* ---- MPI itself ---- */

void weft_mpi_error_text(int result, char text[MPI_MAX_ERROR_STRING + 1]) {
  int length = 0;
  text[0] = '\0';
  (void)MPI_Error_string(result, text, &length);
  text[strcspn(text, "\n")] = '\0';
}

static enum weft_status fail_mpi(struct weft_error *error, int result, const char *what) {
  char text[MPI_MAX_ERROR_STRING + 1];
  weft_mpi_error_text(result, text);
  return weft_fail(error, WEFT_ERR_PEER, "", "MPI failed at %s: %.300s", what, text);
}

static const char *threading_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "single";
    case MPI_THREAD_FUNNELED: return "funneled";
    case MPI_THREAD_SERIALIZED: return "serialized";
    default: return "multiple";
  }
}

static enum weft_status check_threading(struct weft_mpi_world *world, struct weft_error *error) {
  int level = MPI_THREAD_SINGLE;
  (void)MPI_Query_thread(&level);
  world->threading = threading_name(level);
  if (level < MPI_THREAD_MULTIPLE && !world->owns_mpi) {
    return weft_fail(error, WEFT_ERR_USAGE, "call MPI_Init_thread with MPI_THREAD_MULTIPLE",
                     "MPI was initialised with threads `%s`", world->threading);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "use an MPI that was built with threads",
                     "this MPI allows threads `%s` only", world->threading);
  }
  return WEFT_OK;
}

/* Without a launcher Open MPI would start a daemon to serve processes that are never
 * spawned. Where ranks outnumber cores, each of its polls would yield the core, however long that
 * takes (core_yield.h); this world waits in its own way. */
static enum weft_status start_mpi(struct weft_mpi_world *world, struct weft_error *error) {
  int flag = 0;
  int level;
  (void)MPI_Finalized(&flag);
  if (flag) {
    return weft_fail(error, WEFT_ERR_USAGE, "a process starts MPI once: make one world",
                     "MPI has been finalised in this process already");
  }
  (void)MPI_Initialized(&flag);
  if (flag) {
    return weft_fail(error, WEFT_ERR_USAGE, "name the communicator to use",
                     "MPI has been initialised already");
  }
  if (getenv("OMPI_COMM_WORLD_RANK") == NULL && getenv("PMIX_RANK") == NULL) {
    weft_environment_default(WEFT_ENVIRONMENT_OMPI_MCA_ess_singleton_isolated, "1");
  }
  weft_environment_default(WEFT_ENVIRONMENT_OMPI_MCA_mpi_yield_when_idle, "0");
  const int result = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  if (result != MPI_SUCCESS) {
    return fail_mpi(error, result, "starting");
  }
  world->owns_mpi = true;
  return WEFT_OK;
}

int weft_mpi_await(MPI_Request *request) {
  int flag = 0;
  int result = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
  while (result == MPI_SUCCESS && !flag) {
    weft_mpi_sleep(20 * WEFT_MPI_NS_PER_US);
    result = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
  }
  return result;
}

static enum weft_status duplicate(MPI_Comm from, MPI_Comm *out, struct weft_error *error) {
  MPI_Request request;
  int result = MPI_Comm_idup(from, out, &request);
  if (result == MPI_SUCCESS) {
    result = weft_mpi_await(&request);
  }
  if (result != MPI_SUCCESS) {
    *out = MPI_COMM_NULL;
    return fail_mpi(error, result, "duplicating a communicator");
  }
  (void)MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
  return WEFT_OK;
}

static enum weft_status make_communicators(struct weft_mpi_world *world, MPI_Comm from,
                                           enum weft_comm_progress progress,
                                           struct weft_error *error) {
  int rank = 0;
  int size = 1;
  WEFT_TRY(duplicate(from, &world->messages, error));
  WEFT_TRY(duplicate(from, &world->control, error));
  WEFT_TRY(duplicate(from, &world->exchanges, error));
  WEFT_TRY(duplicate(from, &world->collectives, error));
  (void)MPI_Comm_rank(world->control, &rank);
  (void)MPI_Comm_size(world->control, &size);
  world->ops = mpi_ops;
  world->ops.async_progress = progress == WEFT_COMM_PROGRESS_THREAD;
  world->transport = (struct weft_transport){
      .ops = &world->ops, .rank = (uint32_t)rank, .rank_count = (uint32_t)size};
  return WEFT_OK;
}

static void free_communicators(struct weft_mpi_world *world) {
  MPI_Comm *all[] = {&world->control, &world->exchanges, &world->collectives, &world->messages};
  const size_t count = sizeof all / sizeof all[0] - (world->any_cancelled ? 1 : 0);
  for (size_t k = 0; k < count; k++) {
    if (*all[k] != MPI_COMM_NULL) {
      (void)MPI_Comm_free(all[k]);
    }
  }
}

/* ---- facts ---- */

/* The word after "Device:"; "" when none is named. */
static void find_device(const char *text, char *out, size_t size) {
  static const char label[] = "Device:";
  const char *at = strstr(text, label);
  at = at != NULL ? at + sizeof label - 1 : "";
  at += strspn(at, " \t");
  (void)snprintf(out, size, "%.*s", (int)strcspn(at, " \t\n"), at);
}

/* Which MPI this is: the first line of its version string, and the device, which MPICH and its kin
 * name further down ("MPICH Device: ch4:ucx"): "MPICH Version: 4.0.2, device ch4:ucx". */
static void describe_library(char *out, size_t size) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "", device[40];
  int length = 0;
  (void)MPI_Get_library_version(text, &length);
  find_device(text, device, sizeof device);
  text[strcspn(text, "\n")] = '\0';
  for (char *at = text; *at != '\0'; at++) {
    if (*at == '\t') {
      *at = ' ';
    }
  }
  (void)snprintf(out, size, "%.200s%s%s", text, device[0] != '\0' ? ", device " : "", device);
}

/* "0-3,8" */
static void describe_binding(char *out, size_t size) {
  cpu_set_t set;
  size_t length = 0;
  out[0] = '\0';
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    return;
  }
  for (size_t first = 0; first < CPU_SETSIZE; first++) {
    size_t last = first;
    if (!CPU_ISSET(first, &set)) {
      continue;
    }
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) {
      last++;
    }
    const int wrote = snprintf(out + length, size - length, last > first ? "%s%zu-%zu" : "%s%zu",
                               length > 0 ? "," : "", first, last);
    if (wrote < 0 || (size_t)wrote >= size - length) {
      return; /* cut */
    }
    length += (size_t)wrote;
    first = last;
  }
}

static void gather_facts(struct weft_mpi_world *world) {
  int flag = 0;
  int *tag_max = NULL;
  describe_library(world->library, sizeof world->library);
  (void)MPI_Comm_get_attr(world->messages, MPI_TAG_UB, (void *)&tag_max, &flag);
  world->tag_max = flag && *tag_max > 0 ? (uint64_t)*tag_max : 32767; /* MPI's least */
  describe_binding(world->binding, sizeof world->binding);
}

static void comm_facts(const struct weft_comm *comm, struct weft_comm_facts *facts) {
  const struct weft_mpi_world *world = (const struct weft_mpi_world *)comm;
  *facts = (struct weft_comm_facts){.implementation = WEFT_MPI_IMPLEMENTATION,
                                    .library = world->library,
                                    .threading = world->threading,
                                    .rank_on_host = world->rank_on_host,
                                    .ranks_on_host = world->ranks_on_host,
                                    .host = world->peers[world->transport.rank].info.host,
                                    .binding = world->binding};
}

/* What MPI itself takes, measured where the transport is measured, by the same clock. The communicator
 * of exchanges otherwise carries collectives only. */
static enum weft_status ping_pong(struct weft_comm *comm, const void *out, void *in, uint64_t bytes,
                                  uint64_t *round_ns, struct weft_error *error) {
  assert(round_ns != NULL);
  struct weft_mpi_world *world = (struct weft_mpi_world *)comm;
  const uint32_t rank = world->transport.rank, rank_count = world->transport.rank_count;
  const int peer = 1 - (int)rank, size = (int)bytes;
  if (rank_count < 2 || rank > 1 || bytes > INT_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "",
                     "rank %" PRIu32 " of %" PRIu32 " starts a ping-pong of %" PRIu64
                     " bytes; it is for ranks 0 and 1, with at most %d",
                     rank, rank_count, bytes, INT_MAX);
  }
  weft_mpi_lock(world);
  const int64_t begin = weft_clock_ns();
  int result = MPI_SUCCESS;
  for (uint32_t k = 0; k < 2 && result == MPI_SUCCESS; k++) { /* rank 0 sends first */
    result = k == rank ? MPI_Send(out, size, MPI_BYTE, peer, 0, world->exchanges)
                       : MPI_Recv(in, size, MPI_BYTE, peer, 0, world->exchanges, MPI_STATUS_IGNORE);
  }
  *round_ns = (uint64_t)(weft_clock_ns() - begin);
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "a ping-pong");
  }
  const enum weft_status status = weft_mpi_failure_check(world, error);
  weft_mpi_unlock(world);
  return status;
}

/* ---- making it ---- */

static enum weft_status make_tables(struct weft_mpi_world *world, struct weft_error *error) {
  const uint32_t count = world->transport.rank_count;
  struct weft_arena *arena = &world->table_arena;
  world->peers = weft_arena_allocate(arena, count, sizeof *world->peers);
  struct pollfd *processes = weft_arena_allocate(arena, count, sizeof *processes);
  world->exchange_all = weft_arena_allocate(arena, count, WEFT_EXCHANGE_MAX);
  WEFT_TRY(weft_arena_status(arena, error));
  world->processes = processes;
  for (uint32_t r = 0; r < count; r++) {
    processes[r].fd = -1;
  }
  return WEFT_OK;
}

static enum weft_status set_up_world(struct weft_mpi_world *world,
                                     const struct weft_comm_options *options,
                                     struct weft_error *error) {
  MPI_Comm from = MPI_COMM_WORLD;
  if (options->piece_bytes > WEFT_MPI_PIECE) {
    return weft_fail(error, WEFT_ERR_USAGE, "leave it 0",
                     "piece_bytes is %" PRIu64 "; at most %d are possible", options->piece_bytes,
                     WEFT_MPI_PIECE);
  }
  world->piece = options->piece_bytes > 0 ? options->piece_bytes : WEFT_MPI_PIECE;
  world->host = options->host;
  if (options->communicator != NULL) {
    memcpy(&from, options->communicator, sizeof(MPI_Comm));
  } else {
    WEFT_TRY(start_mpi(world, error));
  }
  WEFT_TRY(check_threading(world, error));
  WEFT_TRY(make_communicators(world, from, options->progress, error));
  gather_facts(world);
  WEFT_TRY(make_tables(world, error));
  WEFT_TRY(weft_mpi_peers_create(world, error));
  WEFT_TRY(weft_mpi_clock_agree(world, error));
  world->spins = (long)world->ranks_on_host <= sysconf(_SC_NPROCESSORS_ONLN);
  /* Short sleeps are to be short: by default they last 50 us longer. */
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  return options->progress == WEFT_COMM_PROGRESS_THREAD ? weft_mpi_start_thread(world, error)
                                                        : WEFT_OK;
}

/* All but MPI's own. */
static void free_world(struct weft_mpi_world *world) {
  weft_ends_close(&world->ends);
  weft_mpi_peers_finish(world);
  weft_arena_finish(&world->table_arena);
  (void)pthread_mutex_destroy(&world->lock);
  weft_array_free(world->allocator, world, 1, sizeof *world);
}

static enum weft_status open_comm(const struct weft_comm_kind *kind,
                                  const struct weft_allocator *allocator,
                                  const struct weft_comm_options *options, struct weft_comm **out,
                                  struct weft_error *error) {
  assert(allocator != NULL && options != NULL && out != NULL);
  struct weft_mpi_world *world = weft_array_allocate_zero(allocator, 1, sizeof *world);
  if (world == NULL) {
    return weft_fail_memory(error, sizeof *world);
  }
  world->comm = (struct weft_comm){.kind = kind, .local = &world->transport};
  world->allocator = world->table_arena.allocator = allocator;
  world->status_file = -1;
  world->exchange = MPI_REQUEST_NULL;
  world->messages = world->control = world->exchanges = world->collectives = MPI_COMM_NULL;
  if (pthread_mutex_init(&world->lock, NULL) != 0) {
    weft_array_free(allocator, world, 1, sizeof *world);
    return weft_fail_memory(error, sizeof(pthread_mutex_t));
  }
  const enum weft_status status = set_up_world(world, options, error);
  if (status != WEFT_OK) {
    free_world(world); /* communicators stay: the others may not be there to free them */
    return status;
  }
  *out = &world->comm;
  return WEFT_OK;
}

/* ---- ending it ---- */

/* Makes progress, and lets go of the lock for a moment. */
static void advance_and_sleep(struct weft_mpi_world *world) {
  weft_mpi_advance(world);
  weft_mpi_unlock(world);
  weft_mpi_sleep(50 * WEFT_MPI_NS_PER_US);
  weft_mpi_lock(world);
}

/* Until all ranks have come, or the world has failed. No message may be left on a communicator
 * that is freed: MPI gives its number to another one. So answers to this rank's questions are
 * awaited first, and after a cancelled message all ranks keep the communicator of messages. */
static bool wait_for_all(struct weft_mpi_world *world) {
  const int64_t until = weft_clock_ns() + ANSWERS_NS;
  MPI_Request request;
  int flag = 0;
  weft_mpi_lock(world);
  while (!world->has_failed && world->asked_count > 0 && weft_clock_ns() < until) {
    advance_and_sleep(world);
  }
  if (!world->has_failed && MPI_Iallreduce(&world->cancelled, &world->any_cancelled, 1, MPI_INT,
                                           MPI_MAX, world->control, &request) != MPI_SUCCESS) {
    world->has_failed = 1;
  }
  while (!world->has_failed) {
    if (MPI_Test(&request, &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS || flag) {
      break;
    }
    advance_and_sleep(world);
  }
  weft_mpi_unlock(world);
  return flag != 0;
}

/* Keeps what MPI may still access, where a leak checker finds it. */
static void keep_for_mpi(struct weft_mpi_world *world) {
  int key = MPI_KEYVAL_INVALID;
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &key, NULL) ==
      MPI_SUCCESS) {
    (void)MPI_Comm_set_attr(world->control, key, world);
  }
}

static void close_comm(struct weft_comm *comm) {
  struct weft_mpi_world *world = (struct weft_mpi_world *)comm;
  struct weft_mpi_shared_status *shared = world->peers[world->transport.rank].shared;
  const bool well = wait_for_all(world);
  weft_mpi_stop_thread(world);
  if (!well) {
    keep_for_mpi(world);
    return;
  }
  __atomic_store_n(&shared->finalizing, 1, __ATOMIC_RELEASE);
  const bool owns_mpi = world->owns_mpi;
  const bool several_hosts = world->ranks_on_host < world->transport.rank_count;
  free_communicators(world);
  free_world(world);
  if (owns_mpi) {
    weft_mpi_finalize(several_hosts);
  }
}

static const struct weft_comm_kind kind = {
    .info = WEFT_MPI_INFO,
    .open = open_comm,
    .close = close_comm,
    .abandon = weft_mpi_abandon,
    .facts = comm_facts,
    .pingpong = ping_pong,
};

/* The one symbol that a driver exports. */
WEFT_API extern const struct weft_mpi_driver weft_mpi_driver_table;
const struct weft_mpi_driver weft_mpi_driver_table = {.version = WEFT_VERSION, .kind = &kind};
