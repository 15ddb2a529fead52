/* What several processes of `weft doctor` find out together. */
#include "cli/doctor_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "cli/io/error_message.h"

enum { PLACES_SHOWN = 64 };

/* ---- Looking ---- */

static enum weft_status look(struct weft_cli_job *job, struct weft_cli_doctor_job *found,
                             struct weft_error *error) {
  const struct weft_comm_facts *facts = &found->facts;
  struct weft_cli_rank_place mine = {.on_host = facts->rank_on_host,
                                     .ranks_on_host = facts->ranks_on_host};
  (void)snprintf(mine.host, sizeof mine.host, "%s", facts->host);
  (void)snprintf(mine.binding, sizeof mine.binding, "%s", facts->binding);
  const enum weft_status status =
      weft_allgather(job->transport, &mine, found->places, sizeof mine, 0, error);
  return status == WEFT_OK ? weft_cli_ping(job, &found->ping, error) : status;
}

int weft_cli_doctor_job_look(struct weft_cli_job *job, struct weft_cli_doctor_job *found) {
  const struct weft_allocator *allocator = job->cli.allocator;
  const uint32_t p = job->transport->rank_count;
  struct weft_error error;
  *found = (struct weft_cli_doctor_job){.rank_count = p};
  weft_comm_facts(job->comm, &found->facts);
  found->places = weft_array_allocate(allocator, p, sizeof *found->places);
  if (found->places == NULL) {
    return weft_cli_fail_memory(&job->cli);
  }
  return look(job, found, &error) < 0 ? weft_cli_fail(&job->cli, NULL, &error) : WEFT_CLI_OK;
}

void weft_cli_doctor_job_finish(struct weft_cli_job *job, struct weft_cli_doctor_job *found) {
  const struct weft_allocator *allocator = job->cli.allocator;
  weft_array_free(allocator, found->places, found->rank_count, sizeof *found->places);
}

/* ---- Saying ---- */

void weft_cli_doctor_job_add_lines(struct weft_text *text,
                                   const struct weft_cli_doctor_job *found) {
  weft_text_addf(text, "library %s\nthreading %s\nbinding %s\n", found->facts.library,
                 found->facts.threading, found->facts.binding);
  weft_text_addf(text, "latency_ns %" PRIu64 "\nbytes_per_s %" PRIu64 "\n", found->ping.latency_ns,
                 found->ping.bytes_per_s);
}

void weft_cli_ping_add(struct weft_text *text, const struct weft_cli_ping *ping) {
  weft_text_addf(text, "%d bytes in %.2f us, %d MiB at %.2f GB/s", WEFT_CLI_PING_BYTES,
                 (double)ping->latency_ns / 1e3, WEFT_CLI_PING_LARGE / (1024 * 1024),
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
