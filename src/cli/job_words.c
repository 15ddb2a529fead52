/* What a rank has to say: before the ranks have met, and when it is over. */
#include "cli/job_words.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/ir.h>

#include "cli/io/error_message.h"

/* ---- Held messages ---- */

/* As much as a pipe holds everywhere; more is cut off. */
enum { HELD_MAX = 16384 };

void weft_cli_job_hold(struct weft_cli_job *job) {
  if (pipe(job->held) != 0) {
    job->held[0] = job->held[1] = -1;
    job->cli.who = job->who;
    return;
  }
  for (int k = 0; k < 2; k++) {
    (void)fcntl(job->held[k], F_SETFD, FD_CLOEXEC);
    (void)fcntl(job->held[k], F_SETFL, O_NONBLOCK);
  }
  job->cli.messages = job->held[1];
}

static size_t read_held(const struct weft_cli_job *job, char *text, size_t room) {
  size_t size = 0;
  while (size < room) {
    const ssize_t got = read(job->held[0], text + size, room - size);
    if (got <= 0 && errno != EINTR) {
      break;
    }
    size += got > 0 ? (size_t)got : 0;
  }
  return size;
}

uint64_t weft_cli_job_held(struct weft_cli_job *job) {
  char text[HELD_MAX];
  if (job->held[0] < 0) {
    return 0;
  }
  const size_t size = read_held(job, text, sizeof text);
  (void)!write(job->held[1], text, size); /* back, to be read again */
  return size > 0 ? weft_checksum(text, size) : 0;
}

/* In this rank's name, or in that of several who would say the same. */
static void say_in_own_name(const struct weft_cli_job *job, const char *text, size_t size) {
  char who[WEFT_CLI_WHO_SIZE];
  struct weft_cli cli = job->cli;
  cli.messages = job->messages;
  (void)snprintf(who, sizeof who,
                 "rank %" PRIu32 " and %" PRIu32 " other%s: ", job->transport->rank, job->others,
                 job->others == 1 ? "" : "s");
  weft_cli_say_as(&cli, job->others > 0 ? who : job->who, text, size);
}

void weft_cli_job_release(struct weft_cli_job *job, enum weft_cli_job_saying saying) {
  char text[HELD_MAX];
  if (job->held[0] < 0) {
    return;
  }
  const size_t size = saying != WEFT_CLI_JOB_DROP ? read_held(job, text, sizeof text) : 0;
  (void)close(job->held[0]);
  (void)close(job->held[1]);
  job->held[0] = job->held[1] = -1;
  job->cli.messages = job->messages;
  job->cli.who = job->who;
  if (size > 0 && saying == WEFT_CLI_JOB_SAY) {
    say_in_own_name(job, text, size);
  } else if (size > 0) {
    (void)!write(job->messages, text, size);
  }
}

/* ---- When it is over ---- */

/* Beyond this many ranks only those that have to do with it say where they stood. */
enum { ALL_SPEAK_MAX = 32 };

static uint32_t culprit_of(const struct weft_cli_job *job) {
  struct weft_failure failure;
  return job->transport->ops->get_failure(job->transport, &failure) ? failure.rank : UINT32_MAX;
}

/* Who was reached by a signal is alive. */
bool weft_cli_job_speaks(const struct weft_cli_job *job) {
  const struct weft_transport *transport = job->transport;
  struct weft_failure failure;
  if (!transport->ops->get_failure(job->transport, &failure)) {
    return transport->rank == 0;
  }
  if (failure.error.status == WEFT_ERR_CANCELLED && failure.rank < transport->rank_count) {
    return transport->rank == failure.rank;
  }
  return transport->rank == (failure.rank == 0 && transport->rank_count > 1 ? 1 : 0);
}

static const char *phase_words(uint32_t phase) {
  static const char *const words[WEFT_PHASE_COUNT] = {
      [WEFT_PHASE_IDLE] = "between two steps",
      [WEFT_PHASE_HANDSHAKE] = "in the handshake",
      [WEFT_PHASE_COMPUTE] = "computing",
      [WEFT_PHASE_RECEIVE] = "waiting for a message",
      [WEFT_PHASE_SEND] = "sending",
      [WEFT_PHASE_DONE] = "done with its row",
      [WEFT_PHASE_FAILED] = "ended"};
  return phase < WEFT_PHASE_COUNT ? words[phase] : "ended";
}

void weft_cli_job_say_stand(const struct weft_cli_job *job) {
  const struct weft_transport *transport = job->transport;
  const struct weft_rank_status *board =
      transport->ops->rank_status(job->transport, transport->rank);
  const uint32_t culprit = culprit_of(job);
  const bool is_near = culprit == transport->rank || culprit == board->peer;
  struct weft_action action;
  char cell[64] = "", place[96] = "", whom[48] = "";
  if (transport->rank_count > ALL_SPEAK_MAX && !is_near) {
    return;
  }
  memcpy(&action, &board->action, sizeof action);
  if (action.op != WEFT_OP_IDLE && action.op < WEFT_OP_COUNT && action.parts == 0) {
    (void)snprintf(place, sizeof place, " at %s", weft_action_format(&action, cell, sizeof cell));
  }
  if (board->peer < transport->rank_count) {
    (void)snprintf(whom, sizeof whom, ", for rank %" PRIu32, board->peer);
  }
  weft_cli_say(&job->cli, NULL, "%s%s in step %" PRIu64 "%s; ends with the others",
               phase_words(board->phase), place, board->step + 1, whom);
}
