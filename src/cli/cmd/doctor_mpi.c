/* `weft doctor`: what it finds out about MPI. The processes of a trial are a job of `weft doctor`
 * that writes a few lines instead of a report. */
#include "cli/cmd/doctor_mpi.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/io/child_process.h"
#include "cli/io/error_message.h"
#include "cli/io/text_columns.h"

/* In the environment of the processes of a trial. */
#define TRIAL_MARK "WEFT_PING"

enum {
  TRIAL_LIMIT_MS = 10000,
  PLACES_SHOWN = 64,
  ROUNDS = 400,
  LARGE_ROUNDS = 12,
  SMALL_BYTES = 64,
  LARGE_BYTES = 4 * 1024 * 1024
};

/* What each rank tells about itself. */
struct weft_cli_rank_location {
  char host[56];
  char binding[56];
  uint32_t on_host, ranks_on_host;
};

/* ---- Ping-pong ---- */

/* Round trips on the channels `out` and `back`; the fastest of them, on rank 0. Every send
 * finds its receive posted. */
static enum weft_status time_rounds(struct weft_transport *transport, uint32_t out, uint32_t back,
                                    uint64_t bytes, uint32_t rounds, void *memory,
                                    uint64_t *fastest_ns, struct weft_error *error) {
  const struct weft_transport_ops *ops = transport->ops;
  const bool first = transport->rank == 0;
  struct weft_message sent = {
      .header = {.magic = WEFT_MESSAGE_MAGIC, .protocol = WEFT_PROTOCOL, .bytes = bytes},
      .data = memory,
      .capacity = bytes};
  struct weft_message received = {.data = (char *)memory + LARGE_BYTES, .capacity = bytes};
  *fastest_ns = UINT64_MAX;
  for (uint32_t k = 0; k < rounds; k++) {
    const int64_t begin = weft_clock_ns();
    sent.header.sequence = k;
    weft_message_seal(&sent);
    WEFT_TRY(ops->post(transport, first ? back : out, false, &received, error));
    if (!first) {
      WEFT_TRY(weft_cli_job_await(transport, &received, error));
    }
    WEFT_TRY(ops->post(transport, first ? out : back, true, &sent, error));
    WEFT_TRY(weft_cli_job_await(transport, &sent, error));
    if (first) {
      WEFT_TRY(weft_cli_job_await(transport, &received, error));
    }
    const uint64_t passed = (uint64_t)(weft_clock_ns() - begin);
    *fastest_ns = passed < *fastest_ns ? passed : *fastest_ns;
  }
  return WEFT_OK;
}

static enum weft_status measure_ping(struct weft_transport *transport, char *memory,
                                     struct weft_cli_ping *ping, struct weft_error *error) {
  const uint32_t rank = transport->rank;
  struct weft_channel_end ends[4];
  uint64_t small_ns, large_ns;
  for (uint32_t k = 0; k < 4; k++) {
    ends[k] = (struct weft_channel_end){.channel = k,
                                        .peer = 1 - rank,
                                        .sends = k % 2 == rank,
                                        .depth = 1,
                                        .bytes_max = k < 2 ? SMALL_BYTES : LARGE_BYTES};
  }
  WEFT_TRY(transport->ops->open(transport, ends, 4, error));
  WEFT_TRY(time_rounds(transport, 0, 1, SMALL_BYTES, ROUNDS, memory, &small_ns, error));
  WEFT_TRY(time_rounds(transport, 2, 3, LARGE_BYTES, LARGE_ROUNDS, memory, &large_ns, error));
  ping->latency_ns = small_ns / 2;
  ping->bytes_per_s = (uint64_t)(2e9 * (double)LARGE_BYTES / (double)large_ns);
  return WEFT_OK;
}

/* ---- Under a launcher ---- */

static enum weft_status gather_locations(struct weft_cli_job *job,
                                         struct weft_cli_mpi_findings *found,
                                         struct weft_error *error) {
  const struct weft_comm_facts *facts = &found->facts;
  struct weft_cli_rank_location mine = {.on_host = facts->rank_on_host,
                                        .ranks_on_host = facts->ranks_on_host};
  (void)snprintf(mine.host, sizeof mine.host, "%s", facts->host);
  (void)snprintf(mine.binding, sizeof mine.binding, "%s", facts->binding);
  WEFT_TRY(weft_allgather(job->transport, &mine, found->locations, sizeof mine, 0, error));
  if (found->rank_count < 2 || job->transport->rank > 1) {
    return WEFT_OK;
  }
  WEFT_SCOPED_ARENA arena = {.allocator = job->cli.allocator};
  char *memory = weft_arena_allocate(&arena, 2, LARGE_BYTES);
  WEFT_TRY(weft_arena_status(&arena, error));
  return measure_ping(job->transport, memory, &found->ping, error);
}

int weft_cli_mpi_examine(struct weft_cli_job *job, struct weft_arena *arena,
                         struct weft_cli_mpi_findings *found) {
  const uint32_t p = job->transport->rank_count;
  struct weft_error error;
  assert(p > 0);
  *found = (struct weft_cli_mpi_findings){.rank_count = p};
  weft_comm_facts(job->comm, &found->facts);
  found->locations = weft_arena_allocate(arena, p, sizeof *found->locations);
  if (found->locations == NULL) {
    return weft_cli_fail_memory(&job->cli);
  }
  if (gather_locations(job, found, &error) < 0) {
    weft_cli_job_fail(job, &error);
    return weft_launch_is_reporter(job->transport) ? weft_cli_fail(&job->cli, NULL, &error)
                                                   : WEFT_CLI_PEER;
  }
  return WEFT_CLI_OK;
}

bool weft_cli_mpi_is_trial(void) { return getenv(TRIAL_MARK) != NULL; }

void weft_cli_mpi_add_lines(struct weft_text *text, const struct weft_cli_mpi_findings *found) {
  weft_text_addf(text, "library %s\nthreading %s\nbinding %s\n", found->facts.library,
                 found->facts.threading, found->facts.binding);
  weft_text_addf(text, "latency_ns %" PRIu64 "\nbytes_per_s %" PRIu64 "\n", found->ping.latency_ns,
                 found->ping.bytes_per_s);
}

/* ---- Without a launcher ---- */

/* The rest of the line that begins with `key` and a space; false when there is none. */
static bool find_line(const char *text, const char *key, char *value, size_t size) {
  const size_t key_size = strlen(key);
  for (const char *at = text; at != NULL; at = strchr(at, '\n')) {
    at += *at == '\n' ? 1 : 0;
    if (strncmp(at, key, key_size) == 0 && at[key_size] == ' ') {
      const char *begin = at + key_size + 1;
      (void)snprintf(value, size, "%.*s", (int)strcspn(begin, "\n"), begin);
      return true;
    }
  }
  return false;
}

static uint64_t find_number(const char *text, const char *key) {
  char digits[32];
  return find_line(text, key, digits, sizeof digits) ? strtoull(digits, NULL, 10) : 0;
}

static void try_mpi(const char *command, struct weft_cli_mpi_trial *trial) {
  /* Open MPI refuses to work for root without these. */
  static const char *const environment[] = {
      TRIAL_MARK, "1", "OMPI_ALLOW_RUN_AS_ROOT", "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", NULL};
  const char *const doctor[] = {command, "doctor", NULL};
  const char *words[WEFT_CLI_MPI_WORDS_MAX];
  struct weft_cli_child child = {.words = words, .sets = environment, .limit_ms = TRIAL_LIMIT_MS};
  weft_cli_mpi_two_processes(&trial->mpi, false, doctor, words);
  weft_cli_child_run(&child);
  trial->ping.latency_ns = find_number(child.output, "latency_ns");
  trial->ping.bytes_per_s = find_number(child.output, "bytes_per_s");
  (void)find_line(child.output, "library", trial->library, sizeof trial->library);
  (void)find_line(child.output, "threading", trial->threading, sizeof trial->threading);
  (void)find_line(child.output, "binding", trial->binding, sizeof trial->binding);
  trial->without_driver = !child.timed_out && child.status == WEFT_CLI_UNAVAILABLE;
  if (child.timed_out) {
    (void)snprintf(trial->message, sizeof trial->message,
                   "two processes had not exchanged messages after %d s", TRIAL_LIMIT_MS / 1000);
  } else if (!trial->without_driver && (child.status != 0 || trial->ping.latency_ns == 0)) {
    const char *line = child.output + strspn(child.output, "\n- "); /* launchers draw rulers */
    (void)snprintf(trial->message, sizeof trial->message, "ended with status %d: %.*s",
                   child.status, (int)strcspn(line, "\n"), line);
  }
}

void weft_cli_mpi_try(const struct weft_cli *cli, bool quick, struct weft_cli_mpi_findings *found) {
  char buffer[PATH_MAX];
  const char *command = cli->words != NULL ? weft_cli_process_file(buffer, sizeof buffer) : NULL;
  assert(found->rank_count == 0);
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    struct weft_cli_mpi_trial *trial = &found->trials[k];
    *trial = (struct weft_cli_mpi_trial){.mpi = weft_cli_mpi_find(k, command != NULL)};
    trial->tested = trial->mpi.launcher != NULL && !quick;
    if (trial->tested) {
      try_mpi(command, trial);
    }
  }
}

/* ---- Text ---- */

static void add_ping(struct weft_text *text, const char *label, const struct weft_cli_ping *ping,
                     const char *more) {
  if (ping->latency_ns > 0) {
    weft_text_addf(text, "%s %d bytes in %.2f us, %d MiB at %.2f GB/s%s\n", label, SMALL_BYTES,
                   (double)ping->latency_ns / 1e3, LARGE_BYTES / (1024 * 1024),
                   (double)ping->bytes_per_s / 1e9, more);
  }
}

static void add_job(struct weft_text *text, const struct weft_cli_mpi_findings *found) {
  const uint32_t shown = found->rank_count < PLACES_SHOWN ? found->rank_count : PLACES_SHOWN;
  weft_text_addf(text, "  launcher      %s, %s\n", found->facts.implementation,
                 weft_cli_count(found->rank_count, "process").text);
  weft_text_addf(text, "  library       %s\n  threading     %s\n", found->facts.library,
                 found->facts.threading);
  add_ping(text, "  ping-pong    ", &found->ping, ", ranks 0 and 1");
  weft_text_add(text, "\n  rank  on host    cores         host\n");
  for (uint32_t r = 0; r < shown; r++) {
    const struct weft_cli_rank_location *location = &found->locations[r];
    weft_text_addf(text, "  %4" PRIu32 "  %2" PRIu32 " of %-4" PRIu32 " %-13s %s\n", r,
                   location->on_host, location->ranks_on_host, location->binding, location->host);
  }
  if (shown < found->rank_count) {
    weft_text_addf(text, "  ... %" PRIu32 " more ranks; --json has them all\n",
                   found->rank_count - shown);
  }
}

static void add_line(struct weft_text *text, const char *label, const char *value) {
  if (value[0] != '\0') {
    weft_text_addf(text, "    %-11s %s\n", label, value);
  }
}

static void add_trial(struct weft_text *text, const struct weft_cli_mpi_trial *trial) {
  const struct weft_cli_mpi *mpi = &trial->mpi;
  if (mpi->launcher == NULL) {
    weft_text_addf(text, "  %-13s none found; '%s'\n", mpi->name, mpi->package);
    return;
  }
  if (trial->message[0] != '\0') {
    weft_text_addf(text, "  %-13s FAILED: %s, two processes: %s\n", mpi->name, mpi->launcher,
                   trial->message);
  } else if (trial->without_driver) {
    weft_text_addf(text,
                   "  %-13s there is %s, but no driver for it in this build\n"
                   "    to do       '%s', then build Weft again\n",
                   mpi->name, mpi->launcher, mpi->package);
    return;
  } else {
    weft_text_addf(text, "  %-13s %s\n", mpi->name,
                   trial->tested ? trial->library : "installed; not tested (--quick)");
  }
  add_line(text, "launcher", mpi->launcher);
  add_line(text, "threading", trial->threading);
  add_line(text, "bound to", trial->binding);
  add_ping(text, "    ping-pong  ", &trial->ping, "");
}

void weft_cli_mpi_add(struct weft_text *text, const struct weft_cli_mpi_findings *found) {
  assert(text != NULL && found != NULL);
  if (found->rank_count > 0) {
    add_job(text, found);
    return;
  }
  weft_text_add(text, "  launcher      none: this is one process\n");
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    add_trial(text, &found->trials[k]);
  }
}

/* ---- JSON ---- */

static void add_json_ping(struct weft_json *json, const struct weft_cli_ping *ping) {
  if (ping->latency_ns == 0) {
    weft_json_null(json, "ping");
    return;
  }
  weft_json_open(json, "ping", '{');
  weft_json_number(json, "latency_ns", ping->latency_ns);
  weft_json_number(json, "bytes_per_s", ping->bytes_per_s);
  weft_json_close(json, '}');
}

static void add_json_job(struct weft_json *json, const struct weft_cli_mpi_findings *found) {
  weft_json_string(json, "launcher", found->facts.implementation);
  weft_json_string(json, "library", found->facts.library);
  weft_json_string(json, "threading", found->facts.threading);
  add_json_ping(json, &found->ping);
  weft_json_open(json, "ranks", '[');
  for (uint32_t r = 0; r < found->rank_count; r++) {
    const struct weft_cli_rank_location *location = &found->locations[r];
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "host", location->host);
    weft_json_number(json, "rank_on_host", location->on_host);
    weft_json_number(json, "ranks_on_host", location->ranks_on_host);
    weft_json_string(json, "cores", location->binding);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

static void add_known(struct weft_json *json, const char *key, const char *value) {
  weft_json_string(json, key, value[0] != '\0' ? value : NULL);
}

void weft_cli_mpi_add_json(struct weft_json *json, const struct weft_cli_mpi_findings *found) {
  assert(json != NULL && found != NULL);
  if (found->rank_count > 0) {
    add_json_job(json, found);
    return;
  }
  weft_json_null(json, "launcher");
  weft_json_open(json, "implementations", '[');
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    const struct weft_cli_mpi_trial *trial = &found->trials[k];
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "name", trial->mpi.name);
    weft_json_string(json, "launcher", trial->mpi.launcher);
    if (trial->mpi.launcher != NULL && !trial->tested) {
      weft_json_null(json, "driver");
      weft_json_null(json, "ok");
    } else {
      weft_json_boolean(json, "driver", trial->mpi.launcher != NULL && !trial->without_driver);
      weft_json_boolean(json, "ok", trial->message[0] == '\0');
    }
    add_known(json, "message", trial->message);
    add_known(json, "library", trial->library);
    add_known(json, "threading", trial->threading);
    add_known(json, "cores", trial->binding);
    add_json_ping(json, &trial->ping);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}
