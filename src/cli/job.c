/* One rank of a job: its world, its messages, and its end. */
#define _GNU_SOURCE /* memfd_create */
#include "cli/job.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/support.h>

enum { REFRESH_NS = 500 * 1000 * 1000, ALONE_S = 10, HELD_MAX = 16384 };

/* ---- All-gather ---- */

enum weft_status weft_cli_job_await(struct weft_transport *transport, struct weft_message *message,
                                    struct weft_error *error) {
  const struct weft_transport_ops *ops = transport->ops;
  enum weft_status status;
  while ((status = ops->progress(transport, error)) == WEFT_OK &&
         (status = ops->test(transport, message, error)) == WEFT_IN_PROGRESS) {
    if ((status = ops->wait(transport, WEFT_TIME_NEVER, error)) < 0) {
      break;
    }
  }
  return status;
}

/* A rank whose process is stopped, or that is still at an action. */
static uint32_t find_late(struct weft_transport *transport) {
  uint32_t late = UINT32_MAX;
  if (transport->ops->refresh_status != NULL) {
    transport->ops->refresh_status(transport, transport->ops->now(transport) + REFRESH_NS);
  }
  for (uint32_t r = transport->rank_count; r-- > 0;) {
    const struct weft_rank_status *status = transport->ops->rank_status(transport, r);
    const uint32_t phase = __atomic_load_n(&status->phase, __ATOMIC_RELAXED);
    if ((__atomic_load_n(&status->flags, __ATOMIC_RELAXED) & WEFT_RANK_STOPPED) != 0) {
      return r;
    }
    late = phase != WEFT_PHASE_IDLE && phase != WEFT_PHASE_DONE ? r : late;
  }
  return late;
}

static enum weft_status fail_late(struct weft_transport *transport, int64_t limit,
                                  struct weft_error *error) {
  struct weft_failure failure = {.rank = find_late(transport),
                                 .error = {.status = WEFT_ERR_STALLED}};
  char who[WEFT_RANK_NAME_SIZE] = "one of the ranks";
  if (failure.rank < transport->rank_count) {
    (void)weft_rank_name(transport, failure.rank, who);
  }
  (void)snprintf(failure.error.message, sizeof failure.error.message,
                 "%s has not come to the end of the step; rank %" PRIu32
                 " has waited there for %.1f s",
                 who, transport->rank, (double)limit / 1e9);
  (void)snprintf(failure.error.hint, sizeof failure.error.hint,
                 "is its process stopped, or its host gone?");
  transport->ops->fail(transport, &failure);
  *error = failure.error;
  return WEFT_ERR_STALLED;
}

enum weft_status weft_cli_job_synchronize(struct weft_transport *transport, const void *mine,
                                          void *all, size_t size, int64_t limit,
                                          struct weft_error *error) {
  const struct weft_transport_ops *ops = transport->ops;
  const int64_t until = limit > 0 ? ops->now(transport) + limit : WEFT_TIME_NEVER;
  enum weft_status status;
  do {
    status = ops->progress(transport, error);
    if (status == WEFT_OK) {
      status = ops->exchange(transport, mine, all, size, error);
    }
    if (status == WEFT_IN_PROGRESS) {
      const enum weft_status waited = ops->wait(transport, until, error);
      status = waited < 0 ? waited : WEFT_IN_PROGRESS;
    }
    if (status == WEFT_IN_PROGRESS && ops->now(transport) >= until) {
      status = fail_late(transport, limit, error);
    }
  } while (status == WEFT_IN_PROGRESS);
  return status;
}

enum weft_status weft_cli_job_exchange(struct weft_transport *transport, const void *mine,
                                       void *all, size_t size, struct weft_error *error) {
  return weft_cli_job_synchronize(transport, mine, all, size, 0, error);
}

/* In pieces that an exchange can carry. */
static enum weft_status gather(struct weft_transport *transport, const unsigned char *mine,
                               uint64_t bytes, unsigned char *all, unsigned char *pieces,
                               struct weft_error *error) {
  enum weft_status status = WEFT_OK;
  for (uint64_t at = 0; at < bytes && status == WEFT_OK; at += WEFT_EXCHANGE_MAX) {
    const size_t size =
        bytes - at < WEFT_EXCHANGE_MAX ? (size_t)(bytes - at) : (size_t)WEFT_EXCHANGE_MAX;
    status = weft_cli_job_exchange(transport, mine + at, pieces, size, error);
    for (uint32_t r = 0; r < transport->rank_count && status == WEFT_OK; r++) {
      memcpy(all + r * bytes + at, pieces + r * size, size);
    }
  }
  return status;
}

enum weft_status weft_cli_job_gather(const struct weft_cli_job *job, const void *mine,
                                     uint64_t bytes, void *all, struct weft_error *error) {
  const struct weft_allocator *allocator = job->cli.allocator;
  const uint32_t p = job->transport->rank_count;
  unsigned char *pieces = weft_array_allocate(allocator, p, WEFT_EXCHANGE_MAX);
  if (pieces == NULL) {
    return weft_fail_memory(error, (size_t)p * WEFT_EXCHANGE_MAX);
  }
  const enum weft_status status = gather(job->transport, mine, bytes, all, pieces, error);
  weft_array_free(allocator, pieces, p, WEFT_EXCHANGE_MAX);
  return status;
}

/* ---- Messages that are held back ---- */

/* From here on messages wait. They do not name the rank, so that ranks can compare them. */
static void hold_messages(struct weft_cli_job *job) {
  assert(job->held < 0);
  job->held = job->transport->rank_count > 1 ? memfd_create("weft-messages", MFD_CLOEXEC) : -1;
  job->cli.messages = job->held >= 0 ? job->held : job->messages;
  job->cli.who = job->held >= 0 ? NULL : job->who;
}

static size_t read_held(const struct weft_cli_job *job, char text[HELD_MAX]) {
  const ssize_t size = job->held >= 0 ? pread(job->held, text, HELD_MAX, 0) : 0;
  return size > 0 ? (size_t)size : 0;
}

/* Later messages do not wait. */
static void stop_holding(struct weft_cli_job *job) {
  if (job->held >= 0) {
    (void)close(job->held);
  }
  job->held = -1;
  job->cli.messages = job->messages;
  job->cli.who = job->who;
}

/* Writes what waits in the name of this rank. */
static void release_messages(struct weft_cli_job *job) {
  char text[HELD_MAX];
  const size_t size = read_held(job, text);
  stop_holding(job);
  if (size > 0) {
    weft_cli_say_as(&job->cli, job->who, text, size);
  }
}

/* ---- Agreement ---- */

/* What a rank tells the others about itself. */
struct outcome {
  int64_t status;
  uint64_t text;  /* checksum of what was held back; 0: nothing */
  uint64_t build; /* checksum of this program's file; 0: not known */
};

static uint64_t checksum_of_file(const char *path) {
  struct stat status;
  uint64_t checksum = 0;
  const int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0) {
    const size_t size = (size_t)status.st_size;
    void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes != MAP_FAILED) {
      checksum = weft_checksum(bytes, size);
      (void)munmap(bytes, size);
    }
  }
  if (fd >= 0) {
    (void)close(fd);
  }
  return checksum;
}

/* Another file of the same version is what a half-finished installation looks like; it
 * would fail later, and worse. The odd rank is one that differs from most. */
static int check_builds(const struct weft_cli_job *job, const struct outcome *all) {
  const uint32_t p = job->transport->rank_count;
  uint32_t others = 0, first_other = 0;
  for (uint32_t r = p; r-- > 1;) {
    if (all[r].build != all[0].build) {
      others++;
      first_other = r;
    }
  }
  if (others == 0) {
    return WEFT_CLI_OK;
  }
  if (job->transport->rank == 0) {
    const uint32_t odd = 2 * others > p ? 0 : first_other;
    weft_cli_say(&job->cli, "install the same build of Weft on all hosts",
                 "rank %" PRIu32 " runs another build of weft than %s: file %016" PRIx64
                 " instead of %016" PRIx64,
                 odd, p > 2 ? "the others" : "rank 0", all[odd].build,
                 all[odd == 0 ? first_other : 0].build);
  }
  return WEFT_CLI_PEER;
}

/* The lowest of the ranks with the same text writes it, for all of them. */
static void write_held(const struct weft_cli_job *job, const struct outcome *all, const char *text,
                       size_t size) {
  const uint32_t p = job->transport->rank_count, rank = job->transport->rank;
  char who[WEFT_CLI_WHO_SIZE];
  uint32_t same = 0, lowest = rank;
  for (uint32_t r = p; r-- > 0;) {
    if (all[r].text == all[rank].text) {
      lowest = r;
      same++;
    }
  }
  if (lowest != rank || size == 0) {
    return;
  }
  (void)snprintf(who, sizeof who, "rank %" PRIu32 " and %" PRIu32 " other%s: ", rank, same - 1,
                 same == 2 ? "" : "s");
  weft_cli_say_as(&job->cli, same == p ? "" : same > 1 ? who : job->who, text, size);
}

static int compare(struct weft_cli_job *job, const struct outcome *all) {
  char text[HELD_MAX];
  const size_t size = read_held(job, text);
  stop_holding(job);
  write_held(job, all, text, size);
  for (uint32_t r = 0; r < job->transport->rank_count; r++) {
    if (all[r].status != WEFT_CLI_OK) {
      return (int)all[r].status;
    }
  }
  return check_builds(job, all);
}

int weft_cli_job_agree(struct weft_cli_job *job, int status) {
  assert(job->transport != NULL);
  char text[HELD_MAX];
  const uint32_t p = job->transport->rank_count;
  const size_t size = read_held(job, text);
  const struct outcome mine = {.status = status,
                               .text = size > 0 ? weft_checksum(text, size) : 0,
                               .build = checksum_of_file(job->cli.program_path)};
  struct weft_error error;
  struct outcome *all = weft_array_allocate(job->cli.allocator, p, sizeof *all);
  int agreed;
  if (all == NULL) {
    release_messages(job);
    return weft_cli_fail_memory(&job->cli);
  }
  if (weft_cli_job_exchange(job->transport, &mine, all, sizeof mine, &error) == WEFT_OK) {
    agreed = compare(job, all);
  } else {
    release_messages(job);
    agreed = weft_launch_is_reporter(job->transport) ? weft_cli_fail(&job->cli, NULL, &error)
                                                     : WEFT_CLI_PEER;
  }
  weft_array_free(job->cli.allocator, all, p, sizeof *all);
  return agreed;
}

/* ---- Failures ---- */

void weft_cli_job_fail(struct weft_cli_job *job, const struct weft_error *error) {
  struct weft_failure failure;
  if (!job->transport->ops->get_failure(job->transport, &failure)) {
    failure = (struct weft_failure){.rank = job->transport->rank, .error = *error};
    job->transport->ops->fail(job->transport, &failure);
  }
}

void weft_cli_job_leave(struct weft_cli_job *job, int status) {
  struct weft_error error;
  (void)weft_fail(&error, WEFT_ERR_PEER, "its own message says why",
                  "rank %" PRIu32 " has ended with status %d", job->transport->rank, status);
  weft_cli_job_fail(job, &error);
}

void weft_cli_job_report_activity(const struct weft_cli_job *job) {
  char activity[256];
  if (weft_launch_rank_activity(job->transport, activity, sizeof activity)[0] != '\0') {
    weft_cli_say(&job->cli, NULL, "%s", activity);
  }
}

/* ---- Beginning and end ---- */

static enum weft_status join(struct weft_cli_job *job, const struct weft_cli *cli,
                             const struct weft_mpi_options *options, const char *refusal,
                             int exit_status, struct weft_error *error) {
  *job = (struct weft_cli_job){.cli = *cli, .messages = cli->messages, .held = -1, .input = -1};
  weft_launch_startup_begin(refusal, exit_status);
  const enum weft_status status = weft_mpi_create(cli->allocator, options, &job->world, error);
  weft_launch_startup_end();
  if (status < 0) {
    return status;
  }
  job->transport = weft_mpi_endpoint(job->world);
  weft_mpi_facts(job->world, &job->facts);
  if (job->transport->rank_count > 1) {
    (void)snprintf(job->who, sizeof job->who, "rank %" PRIu32 ": ", job->transport->rank);
  }
  hold_messages(job);
  return WEFT_OK;
}

int weft_cli_job_begin(struct weft_cli_job *job, const struct weft_cli *cli,
                       const struct weft_mpi_options *options) {
  struct weft_error error;
  if (join(job, cli, options, NULL, WEFT_CLI_PEER, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  /* A rank with a wrong command line takes part in this and in nothing else. */
  const int status = weft_cli_job_agree(job, WEFT_CLI_OK);
  if (status == WEFT_CLI_OK) {
    hold_messages(job);
  }
  return status;
}

/* The refusal in the name of this rank, for the supervisor to write. */
static void name_refusal(const struct weft_cli_refusal *refusal, char *out, size_t size) {
  static const char name[] = "weft: ";
  const bool has_name =
      refusal->size >= sizeof name - 1 && memcmp(refusal->text, name, sizeof name - 1) == 0;
  const size_t skipped = has_name ? sizeof name - 1 : 0;
  (void)snprintf(out, size, "%srank %" PRIu32 ": %.*s", name, weft_launch_info().rank,
                 (int)(refusal->size - skipped), refusal->text + skipped);
}

/* Without a world rank 0 reports at once, and its exit makes the launcher end all. The others
 * report when that does not happen. */
static int refuse_alone(const struct weft_cli *cli, const struct weft_cli_refusal *refusal,
                        const char *named) {
  const struct timespec grace = {.tv_sec = ALONE_S};
  if (weft_launch_info().rank == 0) {
    weft_cli_say_as(cli, "", refusal->text, refusal->size);
  } else {
    (void)nanosleep(&grace, NULL);
    (void)!write(cli->messages, named, strlen(named));
  }
  return refusal->status;
}

int weft_cli_job_refuse(const struct weft_cli *cli, const struct weft_cli_refusal *refusal) {
  const struct weft_mpi_options options = {.progress = WEFT_MPI_CALLS};
  struct weft_error error;
  struct weft_cli_job job;
  char named[4096];
  name_refusal(refusal, named, sizeof named);
  if (join(&job, cli, &options, named, refusal->status, &error) < 0) {
    return refuse_alone(cli, refusal, named);
  }
  weft_cli_say_as(&job.cli, "", refusal->text, refusal->size);
  return weft_cli_job_end(&job, weft_cli_job_agree(&job, refusal->status));
}

int weft_cli_job_share_input(struct weft_cli_job *job) {
  struct weft_error error;
  if (job->transport->rank_count == 1) {
    return WEFT_CLI_OK;
  }
  if (weft_launch_share_input(job->transport, job->cli.input, &job->input, &error) < 0) {
    return weft_cli_fail(&job->cli, NULL, &error);
  }
  job->cli.input = job->input;
  job->cli.input_terminal = false;
  return WEFT_CLI_OK;
}

int weft_cli_job_end(struct weft_cli_job *job, int status) {
  struct weft_failure failure;
  if (job->world == NULL) {
    return status;
  }
  release_messages(job);
  if (job->input >= 0) {
    (void)close(job->input);
  }
  if (job->transport->ops->get_failure(job->transport, &failure)) {
    weft_mpi_abandon(job->world, status);
  }
  weft_mpi_destroy(job->world);
  return status;
}
