/* Opening and closing a world, and what the mpi world does for it. */
#include "comm/nccl/nccl_world.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "comm/rank_threads.h"

enum { WAIT_NS = 50 * 1000 }; /* between two polls of an event */

/* ---- The endpoint ---- */

static enum weft_status endpoint_progress(struct weft_transport *transport,
                                          struct weft_error *error) {
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  enum weft_status status = world->inner->ops->progress(world->inner, error);
  if (status == WEFT_OK && world->communicator_count > 0) {
    weft_nccl_poll(world);
  }
  if (status < 0) {
    (void)weft_nccl_abort(world);
  }
  return status;
}

static enum weft_status endpoint_wait(struct weft_transport *transport, int64_t until,
                                      struct weft_error *error) {
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  if (world->polled > 0) {
    const int64_t soon = world->inner->ops->now(world->inner) + WAIT_NS;
    until = soon < until ? soon : until;
  }
  return world->inner->ops->wait(world->inner, until, error);
}

/* Others learn of it first: aborting may take a moment. */
static void endpoint_fail(struct weft_transport *transport, const struct weft_failure *failure) {
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  world->inner->ops->fail(world->inner, failure);
  (void)weft_nccl_abort(world);
}

/* What is not here is the mpi world's own. */
static void set_ops(struct weft_transport_ops *ops, const struct weft_transport_ops *inner) {
  *ops = *inner;
  ops->name = "nccl";
  ops->device_memory = ops->enqueues = true;
  ops->open = weft_nccl_open;
  ops->post = weft_nccl_post;
  ops->test = weft_nccl_test;
  ops->cancel = weft_nccl_cancel;
  ops->progress = endpoint_progress;
  ops->wait = endpoint_wait;
  ops->fail = endpoint_fail;
  ops->group = weft_nccl_group;
}

/* ---- The world ---- */

static struct weft_nccl_world *world_of(struct weft_comm *comm) {
  assert(comm->kind == &weft_nccl_kind);
  return (struct weft_nccl_world *)comm;
}

/* Of whole numbers. */
static uint64_t piece_of(const struct weft_comm_options *options) {
  const uint64_t bytes = options->piece_bytes / sizeof(float) * sizeof(float);
  return bytes > 0 ? bytes : WEFT_NCCL_PIECE;
}

static enum weft_status make_world(const struct weft_comm_kind *kind,
                                   const struct weft_allocator *allocator,
                                   const struct weft_comm_options *options,
                                   const struct weft_nccl_api *nccl, struct weft_comm *mpi,
                                   struct weft_comm **out, struct weft_error *error) {
  struct weft_nccl_world *world = weft_array_allocate_zero(allocator, 1, sizeof *world);
  if (world == NULL) {
    return weft_fail_memory(error, sizeof *world);
  }
  world->comm = (struct weft_comm){.kind = kind, .local = &world->transport};
  world->mpi = mpi;
  world->inner = weft_comm_local(mpi);
  world->allocator = allocator;
  world->nccl = nccl;
  world->own_order = options->sums == WEFT_COMM_SUMS_OF_NCCL;
  world->piece = piece_of(options);
  set_ops(&world->ops, world->inner->ops);
  world->transport = (struct weft_transport){.ops = &world->ops,
                                             .rank = world->inner->rank,
                                             .rank_count = world->inner->rank_count,
                                             .inner = world->inner};
  (void)pthread_mutex_init(&world->lock, NULL);
  (void)weft_condition_init(&world->ended);
  *out = &world->comm;
  return WEFT_OK;
}

/* NCCL first: without it nobody should start MPI. */
static enum weft_status open_comm(const struct weft_comm_kind *kind,
                                  const struct weft_allocator *allocator,
                                  const struct weft_comm_options *options, struct weft_comm **out,
                                  struct weft_error *error) {
  const struct weft_nccl_api *nccl = NULL;
  struct weft_comm *mpi = NULL;
  WEFT_TRY(weft_nccl_api_load(&nccl, error));
  WEFT_TRY(weft_comm_open(allocator, "mpi", options, &mpi, error));
  const enum weft_status status = make_world(kind, allocator, options, nccl, mpi, out, error);
  if (status < 0) {
    weft_comm_close(mpi);
  }
  return status;
}

/* Whether no rank has a transfer that could still be under way, when all ranks are here. */
static bool is_quiet(struct weft_nccl_world *world) {
  const uint32_t count = world->transport.rank_count;
  const unsigned char mine = world->cancelled;
  unsigned char *all = weft_array_allocate_zero(world->allocator, count, 1);
  struct weft_failure failure;
  struct weft_error error;
  bool quiet = all != NULL && !world->inner->ops->get_failure(world->inner, &failure) &&
               weft_allgather(world->inner, &mine, all, 1, 0, &error) == WEFT_OK;
  for (uint32_t r = 0; quiet && r < count; r++) {
    quiet = all[r] == 0;
  }
  weft_array_free(world->allocator, all, count, 1);
  return quiet;
}

/* After a failure communicators may still use what is the world's, and the process is about to
 * end. */
static void disconnect(struct weft_comm *comm) {
  struct weft_nccl_world *world = world_of(comm);
  __atomic_store_n(&world->recorded, false,
                   __ATOMIC_RELAXED); /* recordings have gone with pipelines */
  struct weft_error error;
  if (world->any_communicators && is_quiet(world)) {
    weft_nccl_finalize(world);
    (void)weft_barrier(world->inner, 0, &error); /* a rank that dies in it is noticed */
  } else if (world->communicator_count > 0) {
    world->stuck = !weft_nccl_abort(world);
  }
  if (!world->stuck) {
    weft_nccl_close_ends(world);
  }
}

static void close_comm(struct weft_comm *comm) {
  struct weft_nccl_world *world = world_of(comm);
  struct weft_comm *mpi = world->mpi;
  disconnect(comm);
  if (!world->stuck) {
    (void)pthread_mutex_destroy(&world->lock);
    (void)pthread_cond_destroy(&world->ended);
    weft_array_free(world->allocator, world, 1, sizeof *world);
  }
  weft_comm_close(mpi);
}

static void abandon_comm(struct weft_comm *comm, int exit_status) {
  struct weft_nccl_world *world = world_of(comm);
  (void)weft_nccl_abort(world);
  weft_comm_abandon(world->mpi, exit_status);
}

static void comm_facts(const struct weft_comm *comm, struct weft_comm_facts *facts) {
  weft_comm_facts(((const struct weft_nccl_world *)comm)->mpi, facts);
}

const struct weft_comm_kind weft_nccl_kind = {
    .info = {.name = "nccl",
             .process_per_rank = true,
             .progress_thread = true,
             .own_sums = true,
             .gpus = true,
             .gpus_only = true,
             .library = "NCCL",
             .base = "mpi"},
    .open = open_comm,
    .close = close_comm,
    .disconnect = disconnect,
    .abandon = abandon_comm,
    .library_version = weft_nccl_version,
    .facts = comm_facts,
};
