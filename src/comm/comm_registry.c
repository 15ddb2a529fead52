/* The table of transports, and the calls that go through it. */
#include "comm/comm_registry.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#define KIND(name, words) &weft_##name##_kind,
static const struct weft_comm_kind *const kinds[] = {WEFT_TRANSPORTS(KIND)};
#undef KIND

static const struct weft_comm_kind *find_kind(const char *name) {
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(kinds); k++) {
    if (strcmp(kinds[k]->info.name, name) == 0) {
      return kinds[k];
    }
  }
  return NULL;
}

const struct weft_comm_info *weft_comm_transport(uint32_t k) {
  return k < WEFT_ARRAY_LENGTH(kinds) ? &kinds[k]->info : NULL;
}

const struct weft_comm_info *weft_comm_find(const char *name) {
  const struct weft_comm_kind *kind = name != NULL ? find_kind(name) : NULL;
  return kind != NULL ? &kind->info : NULL;
}

enum weft_status weft_comm_library_version(const struct weft_comm_info *info, int *version,
                                           struct weft_error *error) {
  WEFT_NEED(info, error);
  WEFT_NEED(version, error);
  const struct weft_comm_kind *kind = find_kind(info->name);
  *version = 0;
  return kind != NULL && kind->library_version != NULL ? kind->library_version(version, error)
                                                       : WEFT_OK;
}

static enum weft_status fail_unknown(const char *name, struct weft_error *error) {
  char quoted[64], names[128] = "";
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(kinds); k++) {
    (void)strncat(names, k > 0 ? ", " : "", sizeof names - strlen(names) - 1);
    (void)strncat(names, kinds[k]->info.name, sizeof names - strlen(names) - 1);
  }
  return weft_fail(error, WEFT_ERR_USAGE, "weft_comm_transport() lists them",
                   "no transport is called '%s'; there are %s",
                   weft_escape(quoted, sizeof quoted, name, strlen(name)), names);
}

struct weft_comm_options weft_comm_options_default(void) {
  return (struct weft_comm_options){.stage_limit_ns = INT64_C(30000000000),
                                    .progress = WEFT_COMM_PROGRESS_CALLS};
}

static enum weft_status check_options(const struct weft_comm_options *options,
                                      struct weft_error *error) {
  const struct {
    const char *name;
    int64_t value;
  } times[] = {{"latency_ticks", options->latency_ticks},
               {"occupied_ticks", options->occupied_ticks},
               {"delay_ticks_max", options->delay_ticks_max},
               {"stage_limit_ns", options->stage_limit_ns}};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(times); k++) {
    if (times[k].value < 0) {
      return weft_fail(error, WEFT_ERR_USAGE, "a time is 0 or more",
                       "weft_comm_options.%s is %" PRId64, times[k].name, times[k].value);
    }
  }
  for (uint32_t k = 0; k < options->channel_count; k++) {
    if (options->channel_ticks == NULL || options->channel_ticks[k] < 0) {
      return weft_fail(error, WEFT_ERR_USAGE, "a time is 0 or more",
                       "weft_comm_options.channel_ticks has no time for channel %" PRIu32, k);
    }
  }
  if (options->progress != WEFT_COMM_PROGRESS_CALLS &&
      options->progress != WEFT_COMM_PROGRESS_THREAD) {
    return weft_fail(error, WEFT_ERR_USAGE, "WEFT_COMM_PROGRESS_CALLS or WEFT_COMM_PROGRESS_THREAD",
                     "weft_comm_options.progress is %d, which does not exist",
                     (int)options->progress);
  }
  if ((uint32_t)options->sums > WEFT_COMM_SUMS_OF_NCCL) {
    return weft_fail(error, WEFT_ERR_USAGE, "weft/comm.h has two orders of sums",
                     "weft_comm_options.sums is %d, which does not exist", (int)options->sums);
  }
  return WEFT_OK;
}

enum weft_status weft_comm_open(const struct weft_allocator *allocator, const char *name,
                                const struct weft_comm_options *options, struct weft_comm **out,
                                struct weft_error *error) {
  WEFT_NEED(name, error);
  WEFT_NEED(out, error);
  const struct weft_comm_options defaults = weft_comm_options_default();
  const struct weft_comm_kind *kind = find_kind(name);
  if (kind == NULL) {
    return fail_unknown(name, error);
  }
  options = options != NULL ? options : &defaults;
  WEFT_TRY(check_options(options, error));
  allocator = allocator != NULL ? allocator : weft_allocator_default();
  WEFT_TRY(kind->open(kind, allocator, options, out, error));
  assert(strcmp((*out)->kind->info.name, name) == 0);
  return WEFT_OK;
}

void weft_comm_close(struct weft_comm *comm) {
  if (comm != NULL && comm->stuck_ranks == 0) {
    comm->kind->close(comm);
  }
}

void weft_comm_disconnect(struct weft_comm *comm) {
  if (comm != NULL && comm->kind->disconnect != NULL) {
    comm->kind->disconnect(comm);
  }
}

const struct weft_comm_info *weft_comm_info(const struct weft_comm *comm) {
  assert(comm != NULL);
  return &comm->kind->info;
}

struct weft_transport *weft_comm_endpoint(struct weft_comm *comm, uint32_t rank) {
  assert(comm != NULL);
  if (comm->kind->endpoint != NULL) {
    return comm->kind->endpoint(comm, rank);
  }
  return comm->local->rank == rank ? comm->local : NULL;
}

struct weft_transport *weft_comm_local(struct weft_comm *comm) {
  assert(comm != NULL);
  return comm->local != NULL ? comm->local : comm->kind->endpoint(comm, 0);
}

struct weft_failure weft_comm_rank_failure(uint32_t rank, enum weft_status status,
                                           const struct weft_error *reason) {
  assert(status < 0 && reason != NULL);
  struct weft_failure failure = {.rank = rank, .error = *reason};
  if (reason->status != status) { /* rank_main gave none */
    (void)weft_fail(&failure.error, status, "have rank_main fill in its error",
                    "rank %" PRIu32 " failed: %s", rank, weft_status_name(status));
  }
  return failure;
}

static enum weft_status run_local(struct weft_comm *comm, struct weft_transport *const *endpoints,
                                  weft_rank_main *rank_main, void *context,
                                  struct weft_error *error) {
  struct weft_transport *local = weft_comm_local(comm);
  struct weft_error reason = {.status = WEFT_OK};
  struct weft_failure failure;
  const enum weft_status status =
      rank_main(context, endpoints != NULL ? endpoints[local->rank] : local, &reason);
  if (status >= 0) {
    return WEFT_OK;
  }
  if (!local->ops->get_failure(local, &failure)) {
    failure = weft_comm_rank_failure(local->rank, status, &reason);
    local->ops->fail(local, &failure);
  }
  return local->ops->progress(local, error);
}

enum weft_status weft_comm_run_endpoints(struct weft_comm *comm,
                                         struct weft_transport *const *endpoints,
                                         weft_rank_main *rank_main, void *context,
                                         struct weft_error *error) {
  return (comm->kind->run != NULL ? comm->kind->run : run_local)(comm, endpoints, rank_main,
                                                                 context, error);
}

enum weft_status weft_comm_run(struct weft_comm *comm, weft_rank_main *rank_main, void *context,
                               struct weft_error *error) {
  WEFT_NEED(comm, error);
  WEFT_NEED(rank_main, error);
  return weft_comm_run_endpoints(comm, NULL, rank_main, context, error);
}

uint32_t weft_comm_stuck_ranks(const struct weft_comm *comm) {
  return comm != NULL ? comm->stuck_ranks : 0;
}

enum weft_status weft_comm_next(struct weft_comm *comm, uint32_t *rank, struct weft_error *error) {
  WEFT_NEED(comm, error);
  WEFT_NEED(rank, error);
  if (comm->kind->next == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "use weft_comm_run()",
                     "the transport %s has no virtual time in which ranks could be stepped",
                     comm->kind->info.name);
  }
  return comm->kind->next(comm, rank, error);
}

void weft_comm_wake(struct weft_comm *comm, uint32_t rank) {
  assert(comm->kind->wake != NULL);
  comm->kind->wake(comm, rank);
}

void weft_comm_abandon(struct weft_comm *comm, int exit_status) {
  assert(comm->kind->abandon != NULL);
  comm->kind->abandon(comm, exit_status);
  abort(); /* abandon() does not return */
}

void weft_comm_facts(const struct weft_comm *comm, struct weft_comm_facts *facts) {
  assert(comm != NULL && facts != NULL);
  const uint32_t count = weft_comm_local((struct weft_comm *)comm)->rank_count;
  *facts = (struct weft_comm_facts){.implementation = comm->kind->info.name,
                                    .library = "",
                                    .threading = "",
                                    .host = "",
                                    .binding = "",
                                    .ranks_on_host = count};
  if (comm->kind->facts != NULL) {
    comm->kind->facts(comm, facts);
  }
}

enum weft_status weft_comm_pingpong(struct weft_comm *comm, const void *out, void *in,
                                    uint64_t bytes, uint64_t *round_ns, struct weft_error *error) {
  WEFT_NEED(comm, error);
  WEFT_NEED(round_ns, error);
  if (comm->kind->pingpong == NULL) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "it is for transports with a network",
                     "the transport %s has nothing to compare with", comm->kind->info.name);
  }
  return comm->kind->pingpong(comm, out, in, bytes, round_ns, error);
}
