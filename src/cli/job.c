/* One rank of a job: its world, its meetings with the others, and its end. */
#include "cli/job.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/guard.h"
#include "cli/job_words.h"
#include "cli/launch.h"

enum { BOARDS_NS = 500 * 1000 * 1000, ALONE_S = 10 };

/* ---- Meetings ---- */

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

/* A rank of which it is known that its process is stopped, or that is still at an action. */
static uint32_t find_late(struct weft_transport *transport) {
  uint32_t late = UINT32_MAX;
  if (transport->ops->refresh_status != NULL) {
    transport->ops->refresh_status(transport, transport->ops->now(transport) + BOARDS_NS);
  }
  for (uint32_t r = transport->rank_count; r-- > 0;) {
    const struct weft_rank_status *board = transport->ops->rank_status(transport, r);
    const uint32_t phase = __atomic_load_n(&board->phase, __ATOMIC_RELAXED);
    if ((__atomic_load_n(&board->flags, __ATOMIC_RELAXED) & WEFT_RANK_STOPPED) != 0) {
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

enum weft_status weft_cli_job_meet(struct weft_transport *transport, const void *mine, void *all,
                                   size_t size, int64_t limit, struct weft_error *error) {
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
  return weft_cli_job_meet(transport, mine, all, size, 0, error);
}

/* In pieces that an exchange can carry: it is for what is said once. */
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

static void *take(const struct weft_cli_job *job, size_t size) {
  const struct weft_allocator *allocator = job->cli.allocator;
  return allocator->reallocate(allocator->context, NULL, 0, size);
}

static void give_back(const struct weft_cli_job *job, void *block, size_t size) {
  const struct weft_allocator *allocator = job->cli.allocator;
  if (block != NULL) {
    (void)allocator->reallocate(allocator->context, block, size, 0);
  }
}

enum weft_status weft_cli_job_gather(const struct weft_cli_job *job, const void *mine,
                                     uint64_t bytes, void *all, struct weft_error *error) {
  const size_t room = (size_t)job->transport->rank_count * WEFT_EXCHANGE_MAX;
  unsigned char *pieces = take(job, room);
  if (pieces == NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
    return WEFT_ERR_MEMORY;
  }
  const enum weft_status status = gather(job->transport, mine, bytes, all, pieces, error);
  give_back(job, pieces, room);
  return status;
}

/* ---- Agreement ---- */

/* What a rank tells the others of itself. */
struct verdict {
  int64_t status;
  uint64_t words; /* checksum of what was held back; 0: nothing */
  uint64_t build; /* checksum of this command's file; 0: not known */
};

static uint64_t checksum_of_file(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || status.st_size <= 0) {
    return 0;
  }
  const size_t size = (size_t)status.st_size;
  void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (bytes == MAP_FAILED) {
    return 0;
  }
  const uint64_t checksum = weft_checksum(bytes, size);
  (void)munmap(bytes, size);
  return checksum;
}

static uint64_t own_build(const struct weft_cli_job *job) {
  const int fd = open(job->cli.program_path, O_RDONLY | O_CLOEXEC);
  const uint64_t checksum = fd >= 0 ? checksum_of_file(fd) : 0;
  if (fd >= 0) {
    (void)close(fd);
  }
  return checksum;
}

/* Another file of the same version is what a half-finished installation looks like; it
 * would go wrong later, and worse. The odd rank is one that differs from most. */
static int check_builds(const struct weft_cli_job *job, const struct verdict *verdicts) {
  const uint32_t p = job->transport->rank_count;
  uint32_t others = 0, first_other = 0;
  for (uint32_t r = p; r-- > 1;) {
    if (verdicts[r].build != verdicts[0].build) {
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
                 odd, p > 2 ? "the others" : "rank 0", verdicts[odd].build,
                 verdicts[odd == 0 ? first_other : 0].build);
  }
  return WEFT_CLI_PEER;
}

static int first_bad(const struct verdict *verdicts, uint32_t count) {
  for (uint32_t r = 0; r < count; r++) {
    if (verdicts[r].status != WEFT_CLI_OK) {
      return (int)verdicts[r].status;
    }
  }
  return WEFT_CLI_OK;
}

/* The first of those who would say the same. */
static enum weft_cli_job_saying who_speaks(struct weft_cli_job *job,
                                           const struct verdict *verdicts) {
  const uint32_t p = job->transport->rank_count, rank = job->transport->rank;
  uint32_t same = 0, first = rank;
  for (uint32_t r = p; r-- > 0;) {
    if (verdicts[r].words == verdicts[rank].words) {
      first = r;
      same++;
    }
  }
  job->others = same - 1;
  if (first != rank) {
    return WEFT_CLI_JOB_DROP;
  }
  return same == p ? WEFT_CLI_JOB_SAY_FOR_ALL : WEFT_CLI_JOB_SAY;
}

static int fail_meeting(struct weft_cli_job *job, const struct weft_error *error) {
  weft_cli_job_release(job, WEFT_CLI_JOB_SAY);
  return weft_cli_job_speaks(job) ? weft_cli_fail(&job->cli, NULL, error) : WEFT_CLI_PEER;
}

static int compare(struct weft_cli_job *job, const struct verdict *mine, struct verdict *verdicts) {
  struct weft_error error;
  if (weft_cli_job_exchange(job->transport, mine, verdicts, sizeof *mine, &error) < 0) {
    return fail_meeting(job, &error);
  }
  weft_cli_job_release(job, who_speaks(job, verdicts));
  const int status = check_builds(job, verdicts);
  return status != WEFT_CLI_OK ? status : first_bad(verdicts, job->transport->rank_count);
}

int weft_cli_job_agree(struct weft_cli_job *job, int status) {
  const struct verdict mine = {
      .status = status, .words = weft_cli_job_held(job), .build = own_build(job)};
  const size_t size = job->transport->rank_count * sizeof(struct verdict);
  struct verdict *verdicts = take(job, size);
  if (verdicts == NULL) {
    weft_cli_job_release(job, WEFT_CLI_JOB_SAY);
    return weft_cli_fail_memory(&job->cli);
  }
  const int agreed = compare(job, &mine, verdicts);
  give_back(job, verdicts, size);
  return agreed;
}

/* ---- Beginning and end ---- */

void weft_cli_job_give_up(struct weft_cli_job *job, const struct weft_error *error) {
  struct weft_failure failure;
  if (!job->transport->ops->get_failure(job->transport, &failure)) {
    failure = (struct weft_failure){.rank = job->transport->rank, .error = *error};
    job->transport->ops->fail(job->transport, &failure);
  }
}

void weft_cli_job_leave(struct weft_cli_job *job, int status) {
  struct weft_error error = {.status = WEFT_ERR_PEER};
  (void)snprintf(error.message, sizeof error.message, "rank %" PRIu32 " has ended with status %d",
                 job->transport->rank, status);
  (void)snprintf(error.hint, sizeof error.hint, "it has said why");
  weft_cli_job_give_up(job, &error);
}

static enum weft_status join(struct weft_cli_job *job, const struct weft_cli *cli,
                             const struct weft_mpi_options *options,
                             const struct weft_cli_refusal *refusal, struct weft_error *error) {
  struct weft_cli_start_watch watch;
  *job =
      (struct weft_cli_job){.cli = *cli, .messages = cli->messages, .held = {-1, -1}, .input = -1};
  weft_cli_start_watch_begin(&watch, cli, refusal);
  const enum weft_status status = weft_mpi_create(cli->allocator, options, &job->world, error);
  weft_cli_start_watch_end(&watch);
  if (status < 0) {
    return status;
  }
  job->transport = weft_mpi_endpoint(job->world);
  weft_mpi_facts(job->world, &job->facts);
  if (job->transport->rank_count > 1) {
    (void)snprintf(job->who, sizeof job->who, "rank %" PRIu32 ": ", job->transport->rank);
    weft_cli_job_hold(job);
  }
  return WEFT_OK;
}

/* One that refuses takes part in nothing but the verdict, so all must know before they do
 * anything else. */
static int call_roll(struct weft_cli_job *job, int status) {
  const int64_t mine = status;
  const size_t size = job->transport->rank_count * sizeof mine;
  struct weft_error error;
  bool all_come = true;
  int64_t *all = take(job, size);
  if (all == NULL) {
    weft_cli_job_release(job, WEFT_CLI_JOB_SAY);
    return weft_cli_fail_memory(&job->cli);
  }
  const enum weft_status met =
      weft_cli_job_exchange(job->transport, &mine, all, sizeof mine, &error);
  for (uint32_t r = 0; r < job->transport->rank_count && met == WEFT_OK; r++) {
    all_come = all_come && all[r] == WEFT_CLI_OK;
  }
  give_back(job, all, size);
  if (met < 0) {
    return fail_meeting(job, &error);
  }
  return all_come ? WEFT_CLI_OK : weft_cli_job_agree(job, status);
}

int weft_cli_job_begin(struct weft_cli_job *job, const struct weft_cli *cli,
                       const struct weft_mpi_options *options) {
  struct weft_error error;
  return join(job, cli, options, NULL, &error) < 0 ? weft_cli_fail(cli, NULL, &error)
                                                   : call_roll(job, WEFT_CLI_OK);
}

/* Where there can be no world, the first process speaks, and the launcher ends all when it
 * has ended so. The others wait for that, and speak when it does not come. */
static int refuse_alone(const struct weft_cli *cli, const struct weft_cli_refusal *refusal) {
  const struct timespec grace = {.tv_sec = ALONE_S};
  const uint32_t rank = weft_cli_launch().rank;
  char who[WEFT_CLI_WHO_SIZE] = "";
  if (rank > 0) {
    (void)nanosleep(&grace, NULL);
    (void)snprintf(who, sizeof who, "rank %" PRIu32 ": ", rank);
  }
  weft_cli_say_as(cli, who, refusal->words, refusal->size);
  return refusal->status;
}

int weft_cli_job_refuse(const struct weft_cli *cli, const struct weft_cli_refusal *refusal) {
  const struct weft_mpi_options options = {.progress = WEFT_MPI_CALLS};
  struct weft_error error;
  struct weft_cli_job job;
  int status = weft_cli_guard(cli);
  if (status != WEFT_CLI_GO_ON) {
    return status;
  }
  if (join(&job, cli, &options, refusal, &error) < 0) {
    return refuse_alone(cli, refusal);
  }
  weft_cli_say_as(&job.cli, "", refusal->words, refusal->size);
  status = call_roll(&job, refusal->status);
  return weft_cli_job_end(&job, status);
}

int weft_cli_job_end(struct weft_cli_job *job, int status) {
  struct weft_failure failure;
  weft_cli_job_release(job, WEFT_CLI_JOB_SAY);
  if (job->input >= 0) {
    (void)close(job->input);
  }
  if (job->world != NULL && job->transport->ops->get_failure(job->transport, &failure)) {
    weft_mpi_abandon(job->world, status);
  }
  weft_mpi_destroy(job->world);
  return status;
}
