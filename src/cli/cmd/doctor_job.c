/* `weft doctor` as one of several processes that a launcher has started: where the ranks are,
 * and a ping-pong between ranks 0 and 1. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/cmd/doctor_mpi.h"
#include "cli/io/error_message.h"

enum {
  PLACES_SHOWN = 64,
  ROUNDS = 400,
  LARGE_ROUNDS = 12,
  SMALL_BYTES = 64,
  LARGE_BYTES = 4 * 1024 * 1024
};

/* What each rank tells about itself. */
struct weft_cli_rank_place {
  char host[56];
  char binding[56];
  uint32_t on_host, ranks_on_host;
};

/* ---- Ping-pong ---- */

/* Round trips on the channels `out` and `back`; the fastest of them, on rank 0. Every send
 * finds its receive posted. */
static enum weft_status play(struct weft_transport *transport, uint32_t out, uint32_t back,
                             uint64_t bytes, uint32_t rounds, void *memory, uint64_t *fastest_ns,
                             struct weft_error *error) {
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
    WEFT_TRY(ops->receive(transport, first ? back : out, &received, error));
    if (!first) {
      WEFT_TRY(weft_cli_job_await(transport, &received, error));
    }
    WEFT_TRY(ops->send(transport, first ? out : back, &sent, error));
    WEFT_TRY(weft_cli_job_await(transport, &sent, error));
    if (first) {
      WEFT_TRY(weft_cli_job_await(transport, &received, error));
    }
    const uint64_t passed = (uint64_t)(weft_clock_ns() - begin);
    *fastest_ns = passed < *fastest_ns ? passed : *fastest_ns;
  }
  return WEFT_OK;
}

static enum weft_status ping(struct weft_transport *transport, char *memory,
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
  WEFT_TRY(play(transport, 0, 1, SMALL_BYTES, ROUNDS, memory, &small_ns, error));
  WEFT_TRY(play(transport, 2, 3, LARGE_BYTES, LARGE_ROUNDS, memory, &large_ns, error));
  ping->latency_ns = small_ns / 2;
  ping->bytes_per_s = (uint64_t)(2e9 * (double)LARGE_BYTES / (double)large_ns);
  return WEFT_OK;
}

/* ---- Looking ---- */

static enum weft_status look(struct weft_cli_job *job, struct weft_cli_doctor_job *found,
                             struct weft_error *error) {
  const struct weft_comm_facts *facts = &found->facts;
  struct weft_cli_rank_place mine = {.on_host = facts->rank_on_host,
                                     .ranks_on_host = facts->ranks_on_host};
  (void)snprintf(mine.host, sizeof mine.host, "%s", facts->host);
  (void)snprintf(mine.binding, sizeof mine.binding, "%s", facts->binding);
  WEFT_TRY(weft_allgather(job->transport, &mine, found->places, sizeof mine, 0, error));
  if (found->rank_count < 2 || job->transport->rank > 1) {
    return WEFT_OK;
  }
  WEFT_SCOPED_ARENA arena = {.allocator = job->cli.allocator};
  char *memory = weft_arena_allocate(&arena, 2, LARGE_BYTES);
  WEFT_TRY(weft_arena_status(&arena, error));
  return ping(job->transport, memory, &found->ping, error);
}

int weft_cli_doctor_job_look(struct weft_cli_job *job, struct weft_cli_doctor_job *found) {
  const uint32_t p = job->transport->rank_count;
  struct weft_error error;
  *found = (struct weft_cli_doctor_job){.rank_count = p};
  weft_comm_facts(job->comm, &found->facts);
  found->places = weft_array_allocate(job->cli.allocator, p, sizeof *found->places);
  if (found->places == NULL) {
    return weft_cli_fail_memory(&job->cli);
  }
  if (look(job, found, &error) < 0) {
    weft_cli_job_fail(job, &error);
    return weft_launch_is_reporter(job->transport) ? weft_cli_fail(&job->cli, NULL, &error)
                                                   : WEFT_CLI_PEER;
  }
  return WEFT_CLI_OK;
}

void weft_cli_doctor_job_finish(struct weft_cli_job *job, struct weft_cli_doctor_job *found) {
  weft_array_free(job->cli.allocator, found->places, found->rank_count, sizeof *found->places);
}

/* ---- The report ---- */

void weft_cli_doctor_job_add_lines(struct weft_text *text,
                                   const struct weft_cli_doctor_job *found) {
  weft_text_addf(text, "library %s\nthreading %s\nbinding %s\n", found->facts.library,
                 found->facts.threading, found->facts.binding);
  weft_text_addf(text, "latency_ns %" PRIu64 "\nbytes_per_s %" PRIu64 "\n", found->ping.latency_ns,
                 found->ping.bytes_per_s);
}

void weft_cli_ping_add(struct weft_text *text, const struct weft_cli_ping *ping) {
  weft_text_addf(text, "%d bytes in %.2f us, %d MiB at %.2f GB/s", SMALL_BYTES,
                 (double)ping->latency_ns / 1e3, LARGE_BYTES / (1024 * 1024),
                 (double)ping->bytes_per_s / 1e9);
}

void weft_cli_doctor_job_add(struct weft_text *text, const struct weft_cli_doctor_job *found) {
  const uint32_t shown = found->rank_count < PLACES_SHOWN ? found->rank_count : PLACES_SHOWN;
  weft_text_addf(text, "  launcher      %s, %" PRIu32 " process%s\n", found->facts.implementation,
                 found->rank_count, found->rank_count == 1 ? "" : "es");
  weft_text_addf(text, "  library       %s\n  threading     %s\n", found->facts.library,
                 found->facts.threading);
  if (found->ping.latency_ns > 0) {
    weft_text_add(text, "  ping-pong     ");
    weft_cli_ping_add(text, &found->ping);
    weft_text_add(text, ", ranks 0 and 1\n");
  }
  weft_text_add(text, "\n  rank  on host    cores         host\n");
  for (uint32_t r = 0; r < shown; r++) {
    const struct weft_cli_rank_place *place = &found->places[r];
    weft_text_addf(text, "  %4" PRIu32 "  %2" PRIu32 " of %-4" PRIu32 " %-13s %s\n", r,
                   place->on_host, place->ranks_on_host, place->binding, place->host);
  }
  if (shown < found->rank_count) {
    weft_text_addf(text, "  ... %" PRIu32 " more ranks; --json has them all\n",
                   found->rank_count - shown);
  }
}

void weft_cli_ping_add_json(struct weft_json *json, const struct weft_cli_ping *ping) {
  if (ping->latency_ns == 0) {
    weft_json_null(json, "ping");
    return;
  }
  weft_json_open(json, "ping", '{');
  weft_json_number(json, "latency_ns", ping->latency_ns);
  weft_json_number(json, "bytes_per_s", ping->bytes_per_s);
  weft_json_close(json, '}');
}

void weft_cli_doctor_job_add_json(struct weft_json *json, const struct weft_cli_doctor_job *found) {
  weft_json_string(json, "launcher", found->facts.implementation);
  weft_json_string(json, "library", found->facts.library);
  weft_json_string(json, "threading", found->facts.threading);
  weft_cli_ping_add_json(json, &found->ping);
  weft_json_open(json, "ranks", '[');
  for (uint32_t r = 0; r < found->rank_count; r++) {
    const struct weft_cli_rank_place *place = &found->places[r];
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "host", place->host);
    weft_json_number(json, "rank_on_host", place->on_host);
    weft_json_number(json, "ranks_on_host", place->ranks_on_host);
    weft_json_string(json, "cores", place->binding);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}
