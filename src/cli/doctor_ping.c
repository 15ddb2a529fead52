/* A ping-pong between two ranks, through the transport. Rank 0 says with every ball
 * whether it is the last, so that a slow machine plays less, not longer. */
#include <string.h>

#include <weft/support.h>

#include "cli/doctor_mpi.h"
#include "cli/io/clock.h"

enum { ROUNDS_MAX = 2000, WARM_UP = 20, LARGE_ROUNDS_MAX = 40, LARGE_WARM_UP = 2 };
#define GAME_NS UINT64_C(1000000000)

struct game {
  struct weft_transport *transport;
  uint32_t serve, back; /* channels: from rank 0, and to it */
  uint64_t bytes;
  uint32_t rounds_max, warm_up;
  struct weft_message ball, net;
  uint64_t median_ns; /* of a round trip, on rank 0 */
};

static enum weft_status catch_ball(struct game *game, struct weft_error *error) {
  const uint32_t channel = game->transport->rank == 0 ? game->back : game->serve;
  const enum weft_status status =
      game->transport->ops->receive(game->transport, channel, &game->net, error);
  return status == WEFT_OK ? weft_cli_job_await(game->transport, &game->net, error) : status;
}

static enum weft_status throw_ball(struct game *game, bool is_last, struct weft_error *error) {
  const uint32_t channel = game->transport->rank == 0 ? game->serve : game->back;
  memset(game->ball.data, is_last ? 1 : 0, 1);
  weft_message_seal(&game->ball);
  const enum weft_status status =
      game->transport->ops->send(game->transport, channel, &game->ball, error);
  return status == WEFT_OK ? weft_cli_job_await(game->transport, &game->ball, error) : status;
}

static enum weft_status play_first(struct game *game, struct weft_error *error) {
  uint64_t samples[ROUNDS_MAX];
  const uint64_t begin = weft_cli_clock_ns();
  enum weft_status status = WEFT_OK;
  uint32_t count = 0;
  bool is_last = false;
  for (uint32_t k = 0; !is_last && status == WEFT_OK; k++) {
    const uint64_t thrown = weft_cli_clock_ns();
    is_last = count + 1 == game->rounds_max || (count > 0 && thrown - begin > GAME_NS);
    status = throw_ball(game, is_last, error);
    if (status == WEFT_OK) {
      status = catch_ball(game, error);
    }
    if (k >= game->warm_up) {
      samples[count++] = weft_cli_clock_ns() - thrown;
    }
  }
  game->median_ns = count > 0 ? weft_cli_median(samples, count) : 0;
  return status;
}

static enum weft_status play_second(struct game *game, struct weft_error *error) {
  enum weft_status status = WEFT_OK;
  for (bool is_last = false; !is_last && status == WEFT_OK;) {
    status = catch_ball(game, error);
    if (status == WEFT_OK) {
      is_last = *(const char *)game->net.data != 0;
      status = throw_ball(game, is_last, error);
    }
  }
  return status;
}

static enum weft_status play(struct game *game, void *ball, void *net, struct weft_error *error) {
  game->ball = (struct weft_message){
      .header = {.magic = WEFT_MESSAGE_MAGIC, .protocol = WEFT_PROTOCOL, .bytes = game->bytes},
      .data = ball,
      .capacity = game->bytes};
  game->net = (struct weft_message){.data = net, .capacity = game->bytes};
  return game->transport->rank == 0 ? play_first(game, error) : play_second(game, error);
}

static enum weft_status play_both(struct weft_transport *transport, char *memory,
                                  struct weft_cli_ping *ping, struct weft_error *error) {
  struct game small = {.transport = transport,
                       .serve = 0,
                       .back = 1,
                       .bytes = WEFT_CLI_PING_BYTES,
                       .rounds_max = ROUNDS_MAX,
                       .warm_up = WARM_UP};
  struct game large = {.transport = transport,
                       .serve = 2,
                       .back = 3,
                       .bytes = WEFT_CLI_PING_LARGE,
                       .rounds_max = LARGE_ROUNDS_MAX,
                       .warm_up = LARGE_WARM_UP};
  enum weft_status status = play(&small, memory, memory + WEFT_CLI_PING_LARGE, error);
  if (status == WEFT_OK) {
    status = play(&large, memory, memory + WEFT_CLI_PING_LARGE, error);
  }
  ping->latency_ns = small.median_ns / 2;
  ping->bytes_per_s =
      large.median_ns > 0 ? (uint64_t)(2e9 * WEFT_CLI_PING_LARGE / (double)large.median_ns) : 0;
  return status;
}

enum weft_status weft_cli_ping(const struct weft_cli_job *job, struct weft_cli_ping *ping,
                               struct weft_error *error) {
  const struct weft_allocator *allocator = job->cli.allocator;
  struct weft_transport *transport = job->transport;
  const uint32_t peer = 1 - transport->rank;
  const bool first = transport->rank == 0, plays = transport->rank < 2;
  const struct weft_channel_end ends[] = {
      {.channel = 0, .peer = peer, .sends = first, .depth = 1, .bytes_max = WEFT_CLI_PING_BYTES},
      {.channel = 1, .peer = peer, .sends = !first, .depth = 1, .bytes_max = WEFT_CLI_PING_BYTES},
      {.channel = 2, .peer = peer, .sends = first, .depth = 1, .bytes_max = WEFT_CLI_PING_LARGE},
      {.channel = 3, .peer = peer, .sends = !first, .depth = 1, .bytes_max = WEFT_CLI_PING_LARGE}};
  const size_t size = 2 * WEFT_CLI_PING_LARGE;
  *ping = (struct weft_cli_ping){.latency_ns = 0};
  enum weft_status status = WEFT_OK;
  if (transport->rank_count < 2 || !plays) {
    return status;
  }
  char *memory = weft_array_allocate(allocator, size, 1);
  if (memory == NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
    return WEFT_ERR_MEMORY;
  }
  memset(memory, 0, size);
  status = transport->ops->open(transport, ends, 4, error);
  if (status == WEFT_OK) {
    status = play_both(transport, memory, ping, error);
  }
  weft_array_free(allocator, memory, size, 1);
  return status;
}
