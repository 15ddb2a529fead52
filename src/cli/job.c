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

enum { ALONE_S = 10, HELD_MAX = 16384 };

/* ---- Waiting ---- */

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
    weft_cli_print_as(&job->cli, job->who, text, size);
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
    weft_cli_print(&job->cli, "install the same build of Weft on all hosts",
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
  weft_cli_print_as(&job->cli, same == p ? "" : same > 1 ? who : job->who, text, size);
}

static int compare_outcomes(struct weft_cli_job *job, const struct outcome *all) {
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

/* Says which rank it was, if the message does not. */
static void name_rank(const struct weft_cli_job *job, struct weft_error *error) {
  struct weft_failure failure;
  if (job->transport->ops->get_failure(job->transport, &failure) &&
      strncmp(error->message, "rank ", 5) != 0) {
    const struct weft_error why = *error;
    (void)weft_fail(error, why.status, why.hint, "rank %" PRIu32 ": %s", failure.rank, why.message);
  }
}

/* That of the world, by one of its ranks. */
static int report_failure(const struct weft_cli_job *job, struct weft_error *error) {
  weft_launch_add_last_activity(job->transport, error);
  return weft_launch_is_reporter(job->transport) ? weft_cli_fail(&job->cli, NULL, error)
                                                 : WEFT_CLI_PEER;
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
  WEFT_SCOPED_ARENA arena = {.allocator = job->cli.allocator};
  struct outcome *all = weft_arena_allocate(&arena, p, sizeof *all);
  if (all == NULL) {
    release_messages(job);
    return weft_cli_fail_memory(&job->cli);
  }
  if (weft_allgather(job->transport, &mine, all, sizeof mine, 0, &error) == WEFT_OK) {
    return compare_outcomes(job, all);
  }
  /* The world has failed, and each rank may have said why in its own words. */
  stop_holding(job);
  name_rank(job, &error);
  return report_failure(job, &error);
}

int weft_cli_job_agree_so_far(struct weft_cli_job *job, int status) {
  const int agreed = weft_cli_job_agree(job, status);
  if (agreed == WEFT_CLI_OK) {
    hold_messages(job);
  }
  return agreed;
}

/* ---- Failures ---- */

void weft_cli_job_fail(struct weft_cli_job *job, const struct weft_error *error) {
  assert(job->transport != NULL && error->status < 0);
  struct weft_failure failure;
  if (!job->transport->ops->get_failure(job->transport, &failure)) {
    failure = (struct weft_failure){.rank = job->transport->rank, .error = *error};
    job->transport->ops->fail(job->transport, &failure);
  }
}

void weft_cli_job_report_activity(const struct weft_cli_job *job) {
  char activity[256];
  if (weft_launch_rank_activity(job->transport, activity, sizeof activity)[0] != '\0') {
    weft_cli_print(&job->cli, NULL, "%s", activity);
  }
}

/* ---- Beginning and end ---- */

static enum weft_status join_world(struct weft_cli_job *job, const struct weft_cli *cli,
                                   const char *transport, const struct weft_comm_options *options,
                                   const char *reason, int exit_status, struct weft_error *error) {
  *job = (struct weft_cli_job){.cli = *cli, .messages = cli->messages, .held = -1, .input = -1};
  weft_launch_startup_begin(reason, exit_status);
  const enum weft_status status =
      weft_comm_open(cli->allocator, transport, options, &job->comm, error);
  weft_launch_startup_end();
  if (status < 0) {
    return status;
  }
  job->transport = weft_comm_local(job->comm);
  if (job->transport->rank_count > 1) {
    (void)snprintf(job->who, sizeof job->who, "rank %" PRIu32 ": ", job->transport->rank);
  }
  hold_messages(job);
  return WEFT_OK;
}

int weft_cli_job_begin(struct weft_cli_job *job, const struct weft_cli *cli, const char *transport,
                       const struct weft_comm_options *options) {
  assert(job != NULL && cli != NULL && transport != NULL && options != NULL);
  const struct weft_comm_info *info = weft_comm_find(transport);
  struct weft_error error, missing;
  int version;
  assert(info != NULL);
  /* Without its library the ranks meet on what it is based on, for one report of all. */
  const bool lacks = weft_comm_library_version(info, &version, &missing) < 0;
  if (join_world(job, cli, lacks ? info->base : transport, options, NULL, WEFT_CLI_PEER, &error) <
      0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  /* A rank with a wrong command line takes part in this and in nothing else. */
  return weft_cli_job_agree_so_far(job,
                                   lacks ? weft_cli_fail(&job->cli, NULL, &missing) : WEFT_CLI_OK);
}

/* The reason in the name of this rank, for the supervisor to write. */
static void name_reason(const struct weft_cli_reason *reason, char *out, size_t size) {
  static const char name[] = "weft: ";
  const bool has_name =
      reason->size >= sizeof name - 1 && memcmp(reason->text, name, sizeof name - 1) == 0;
  const size_t skipped = has_name ? sizeof name - 1 : 0;
  (void)snprintf(out, size, "%srank %" PRIu32 ": %.*s", name, weft_launch_info().rank,
                 (int)(reason->size - skipped), reason->text + skipped);
}

/* Without a world rank 0 reports at once, and its exit makes the launcher end all. The others
 * report when that does not happen. */
static int report_alone(const struct weft_cli *cli, const struct weft_cli_reason *reason,
                        const char *named) {
  const struct timespec grace = {.tv_sec = ALONE_S};
  if (weft_launch_info().rank == 0) {
    weft_cli_print_as(cli, "", reason->text, reason->size);
  } else {
    (void)nanosleep(&grace, NULL);
    (void)!write(cli->messages, named, strlen(named));
  }
  return reason->status;
}

int weft_cli_job_report_reason(const struct weft_cli *cli, const struct weft_cli_reason *reason) {
  assert(cli != NULL && reason->text != NULL && reason->status != WEFT_CLI_OK);
  const struct weft_comm_options options = weft_comm_options_default();
  struct weft_error error;
  struct weft_cli_job job;
  char named[4096];
  name_reason(reason, named, sizeof named);
  if (join_world(&job, cli, "mpi", &options, named, reason->status, &error) < 0) {
    return report_alone(cli, reason, named);
  }
  weft_cli_print_as(&job.cli, "", reason->text, reason->size);
  return weft_cli_job_end(&job, weft_cli_job_agree(&job, reason->status));
}

int weft_cli_job_share_input(struct weft_cli_job *job) {
  assert(job->transport != NULL);
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
  if (job->comm == NULL) {
    return status;
  }
  weft_launch_leave();
  release_messages(job);
  if (job->input >= 0) {
    (void)close(job->input);
  }
  if (job->transport->ops->get_failure(job->transport, &failure)) {
    if (status == WEFT_CLI_OK) { /* a rank has died when all was done but ending */
      status = report_failure(job, &failure.error);
    }
    weft_comm_abandon(job->comm, status);
  }
  weft_comm_close(job->comm);
  return status;
}
