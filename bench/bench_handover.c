/* How long a message takes from one thread to another on the threads transport:
 * half of the way there and back. Each thread gets a core of its own, where the system has
 * a call for that. */
#define _DEFAULT_SOURCE /* _SC_NPROCESSORS_ONLN */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "bench/bench_clock.h"
#include "bench/bench_run.h"
#include "bench/two_cores.h"
#include "cli/io/error_message.h"
#include "cli/job.h"

enum { ROUNDS_PER_REPEAT = 5000, ROUNDS_MAX = 50000, WARM_UP = 1000, BLOCK = 250, BYTES = 64 };

struct ping_pong {
  bool is_bound;
  uint32_t processors[2]; /* of the two ranks */
  uint32_t rounds;
  uint32_t sample_count;
  uint32_t *samples; /* [rounds - WARM_UP], of rank 0 */
  bool wrong;
  char buffers[2][BYTES]; /* the other rank's, once they are swapped */
};

/* ---- The self ---- */

/* The buffers alternate too: a message has the one that the other end gave. */
static enum weft_status exchange(struct weft_transport *transport, struct ping_pong *self,
                                 struct weft_message *sent, struct weft_message *received,
                                 struct weft_error *error) {
  const struct weft_transport_ops *ops = transport->ops;
  const uint32_t mine = transport->rank, other = 1 - mine;
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; k < self->rounds && status == WEFT_OK; k++) {
    const uint64_t begin = mine == 0 && k >= WARM_UP ? weft_bench_now_ns() : 0;
    status = ops->post(transport, other, false, received, error);
    if (mine == 1 && status == WEFT_OK) {
      status = weft_cli_job_await(transport, received, error);
    }
    if (status == WEFT_OK) {
      memcpy(sent->data, &k, sizeof k);
      status = ops->post(transport, mine, true, sent, error);
    }
    if (mine == 0 && status == WEFT_OK) {
      status = weft_cli_job_await(transport, received, error);
    }
    if (status == WEFT_OK) {
      status = weft_cli_job_await(transport, sent, error);
    }
    self->wrong = self->wrong || (status == WEFT_OK && memcmp(received->data, &k, sizeof k) != 0);
    if (begin > 0) {
      const uint64_t took = weft_bench_now_ns() - begin;
      self->samples[self->sample_count++] = (uint32_t)(took < UINT32_MAX ? took : UINT32_MAX);
    }
  }
  return status;
}

static enum weft_status run_rank(void *context, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct ping_pong *ranks = context;
  const uint32_t mine = transport->rank, other = 1 - mine;
  const struct weft_channel_end ends[] = {
      {.channel = mine, .peer = other, .sends = true, .depth = 1, .bytes_max = BYTES},
      {.channel = other, .peer = other, .sends = false, .depth = 1, .bytes_max = BYTES}};
  struct weft_message sent = {.header = {.magic = WEFT_MESSAGE_MAGIC, .bytes = BYTES},
                              .data = ranks[mine].buffers[0],
                              .capacity = BYTES};
  struct weft_message received = {.data = ranks[mine].buffers[1], .capacity = BYTES};
  struct weft_bench_affinity before = {.is_known = false};
  if (ranks[mine].is_bound) {
    weft_bench_bind(&ranks[mine].processors[mine], 1, &before);
  }
  enum weft_status status = transport->ops->open(transport, ends, 2, error);
  if (status == WEFT_OK) {
    status = exchange(transport, &ranks[mine], &sent, &received, error);
  }
  weft_bench_unbind(&before);
  return status;
}

/* ---- The result ---- */

/* Other work on the machine preempts one of the two threads, and then some round trips take ten
 * thousand times as long: the block with the smallest median counts. */
static uint64_t fastest_median(const uint32_t *samples, uint32_t count) {
  uint64_t block[BLOCK], fastest = UINT64_MAX;
  for (uint32_t begin = 0; begin + BLOCK <= count; begin += BLOCK) {
    for (uint32_t k = 0; k < BLOCK; k++) {
      block[k] = samples[begin + k];
    }
    const uint64_t median = weft_bench_median(block, BLOCK);
    fastest = median < fastest ? median : fastest;
  }
  return fastest;
}

static enum weft_status run_ping_pong(const struct weft_cli *cli, struct ping_pong *ranks,
                                      struct weft_error *error) {
  const struct weft_comm_options options = {.rank_count = 2};
  struct weft_comm *comm = NULL;
  WEFT_TRY(weft_comm_open(cli->allocator, "threads", &options, &comm, error));
  const enum weft_status status = weft_comm_run(comm, run_rank, ranks, error);
  weft_comm_close(comm);
  return status;
}

int weft_bench_handover(const struct weft_cli *cli, uint64_t repeats,
                        struct weft_bench_handover *handover) {
  assert(cli != NULL && handover != NULL);
  const uint64_t wanted = WARM_UP + repeats * ROUNDS_PER_REPEAT;
  const uint32_t rounds = (uint32_t)(wanted < ROUNDS_MAX ? wanted : ROUNDS_MAX);
  struct ping_pong ranks[2] = {{.rounds = rounds}, {.rounds = rounds}};
  struct weft_error error;
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  for (int k = 0; k < 2; k++) {
    ranks[k].is_bound = weft_bench_two_cores(ranks[k].processors);
  }
  ranks[0].samples = weft_array_allocate(cli->allocator, rounds, sizeof(uint32_t));
  if (ranks[0].samples == NULL) {
    return weft_cli_fail_memory(cli);
  }
  int status = WEFT_CLI_OK;
  if (run_ping_pong(cli, ranks, &error) < 0) {
    status = weft_cli_fail(cli, NULL, &error);
  } else if (ranks[0].wrong || ranks[1].wrong) {
    weft_cli_print(cli, "this is a bug", "bench: a message arrives with another content");
    status = WEFT_CLI_FOUND_BAD;
  }
  *handover = (struct weft_bench_handover){
      .one_way_ns = fastest_median(ranks[0].samples, ranks[0].sample_count) / 2,
      .block = BLOCK,
      .round_trips = ranks[0].sample_count,
      .processors = processors > 0 ? (uint64_t)processors : 0};
  weft_array_free(cli->allocator, ranks[0].samples, rounds, sizeof(uint32_t));
  return status;
}
