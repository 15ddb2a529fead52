/* The end of a rank: one report for the whole job, and its exit status. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/ir.h>
#include <weft/support.h>

#include "comm/rank_status.h"
#include "launch/supervisor.h"

/* In larger jobs only ranks that have to do with the failure say what they were doing. */
enum { ACTIVITIES_MAX = 32 };

/* The lowest rank that can report: not the culprit, and neither stopped nor dead, as far as is known. */
static uint32_t reporter_of(struct weft_transport *transport, uint32_t culprit) {
  for (uint32_t r = 0; r < transport->rank_count; r++) {
    const struct weft_rank_status *status = transport->ops->rank_status(transport, r);
    const uint64_t flags = WEFT_STATUS_LOAD(status->flags);
    if (r != culprit && (flags & (WEFT_RANK_STOPPED | WEFT_RANK_DEAD)) == 0) {
      return r;
    }
  }
  return 0;
}

bool weft_launch_is_reporter(struct weft_transport *transport) {
  struct weft_failure failure;
  assert(transport != NULL);
  if (!transport->ops->get_failure(transport, &failure)) {
    return transport->rank == 0;
  }
  if (failure.error.status == WEFT_ERR_CANCELLED && failure.rank < transport->rank_count) {
    return transport->rank == failure.rank;
  }
  return transport->rank == reporter_of(transport, failure.rank);
}

static const char *phase_name(uint32_t phase) {
  static const char *const names[WEFT_PHASE_COUNT] = {
      [WEFT_PHASE_IDLE] = "between two steps",
      [WEFT_PHASE_HANDSHAKE] = "in the handshake",
      [WEFT_PHASE_COMPUTE] = "computing",
      [WEFT_PHASE_RECEIVE] = "waiting for a message",
      [WEFT_PHASE_SEND] = "sending",
      [WEFT_PHASE_DONE] = "done with its row",
      [WEFT_PHASE_FAILED] = "ended"};
  return phase < WEFT_PHASE_COUNT ? names[phase] : "ended";
}

/* "waiting for a message at 2F1", "waiting for its 1REDUCE_GRAD"; without the action where it is
 * not known. */
static const char *activity_of(const struct weft_rank_status *status, char buffer[128]) {
  const uint32_t phase = WEFT_STATUS_LOAD(status->phase);
  const struct weft_action action = weft_action_unpack(WEFT_STATUS_LOAD(status->action));
  const struct weft_action wants = weft_action_unpack(WEFT_STATUS_LOAD(status->wants));
  char cell[64] = "";
  if (phase == WEFT_PHASE_COMPUTE && weft_op_in(wants.op, WEFT_OPS_SHARD)) {
    /* a collective; members are missing */
    (void)snprintf(buffer, 128, "waiting for its %s",
                   weft_action_format(&wants, cell, sizeof cell));
  } else if (action.op != WEFT_OP_IDLE && action.op != WEFT_OP_OVERLAP_F_B) {
    (void)snprintf(buffer, 128, "%s at %s", phase_name(phase),
                   weft_action_format(&action, cell, sizeof cell));
  } else {
    (void)snprintf(buffer, 128, "%s", phase_name(phase));
  }
  return buffer;
}

void weft_launch_add_last_activity(struct weft_transport *transport, struct weft_error *error) {
  struct weft_failure failure;
  char activity[128], gpu[40] = "";
  assert(transport != NULL && error != NULL);
  if (!transport->ops->get_failure(transport, &failure) || failure.rank >= transport->rank_count ||
      failure.error.status != error->status) {
    return;
  }
  const struct weft_rank_status *status = transport->ops->rank_status(transport, failure.rank);
  const uint64_t flags = WEFT_STATUS_LOAD(status->flags), step = WEFT_STATUS_LOAD(status->step);
  if ((flags & WEFT_RANK_DEAD) == 0 || (step == 0 && (flags & WEFT_RANK_HAS_GPU) == 0)) {
    return;
  }
  if ((flags & WEFT_RANK_HAS_GPU) != 0) {
    (void)snprintf(gpu, sizeof gpu, ", with GPU %" PRIu64, WEFT_STATUS_LOAD(status->gpu));
  }
  (void)weft_fail(error, error->status, error->hint,
                  "%s; rank %" PRIu32 " was %s in step %" PRIu64 "%s", error->message, failure.rank,
                  activity_of(status, activity), step > 0 ? step : 1, gpu);
}

const char *weft_launch_rank_activity(struct weft_transport *transport, char *buffer, size_t size) {
  assert(transport != NULL && buffer != NULL && size > 0);
  const struct weft_rank_status *own = transport->ops->rank_status(transport, transport->rank);
  struct weft_failure failure = {.rank = UINT32_MAX};
  char activity[128], peer[48] = "";
  (void)transport->ops->get_failure(transport, &failure);
  const bool is_near = failure.rank == transport->rank || failure.rank == own->peer;
  if (transport->rank_count > ACTIVITIES_MAX && !is_near) {
    buffer[0] = '\0';
    return buffer;
  }
  if (own->peer < transport->rank_count) {
    (void)snprintf(peer, sizeof peer, ", for rank %" PRIu32, own->peer);
  }
  (void)snprintf(buffer, size, "%s in step %" PRIu64 "%s; ends with the others",
                 activity_of(own, activity), own->step > 0 ? own->step : 1, peer);
  return buffer;
}

static int exit_status_of(const struct weft_error *error) {
  return error->status == WEFT_ERR_CANCELLED && weft_launch_signal() != 0
             ? 128 + weft_launch_signal()
             : WEFT_LAUNCH_FAILED;
}

static void report(struct weft_transport *transport, const struct weft_error *error) {
  char activity[256];
  if (weft_launch_is_reporter(transport)) {
    struct weft_error said = *error;
    weft_launch_add_last_activity(transport, &said);
    weft_launch_report(said.hint, "rank %" PRIu32 ": %s", transport->rank, said.message);
  } else if (weft_launch_rank_activity(transport, activity, sizeof activity)[0] != '\0') {
    weft_launch_report(NULL, "rank %" PRIu32 ": %s", transport->rank, activity);
  }
}

int weft_launch_end(struct weft_comm *comm, const struct weft_error *error) {
  const bool is_well = error == NULL || error->status == WEFT_OK;
  struct weft_failure failure;
  assert(is_well || error->status < 0);
  weft_launch_leave();
  if (comm == NULL) {
    if (!is_well) {
      weft_launch_report(error->hint, "rank %" PRIu32 ": %s", weft_launch_info().rank,
                         error->message);
    }
    return is_well ? 0 : WEFT_LAUNCH_FAILED;
  }
  struct weft_transport *transport = weft_comm_local(comm);
  bool has_failed = transport->ops->get_failure(transport, &failure);
  if (!has_failed && !is_well) {
    failure = (struct weft_failure){.rank = transport->rank, .error = *error};
    transport->ops->fail(transport, &failure);
    has_failed = transport->ops->get_failure(transport, &failure);
    assert(has_failed);
  }
  if (has_failed && !weft_comm_info(comm)->process_per_rank) { /* one process: one report */
    weft_launch_report(failure.error.hint, "%s", failure.error.message);
    weft_comm_close(comm);
    return exit_status_of(&failure.error);
  }
  if (has_failed) {
    report(transport, &failure.error);
    weft_comm_abandon(comm, exit_status_of(&failure.error));
  }
  weft_comm_close(comm);
  return 0;
}
