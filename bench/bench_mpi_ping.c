/* Messages there and back between two processes: by the transport, by MPI_Send and MPI_Recv
 * alone, and by the calls of MPI that a transport is made of, block after block in turns. A block's figure is its median; of the blocks
 * the calmest counts, since other work on the machine only delays. */
#include <string.h>

#include <weft/support.h>

#include "bench/bench_clock.h"
#include "bench/bench_mpi.h"

enum {
  BLOCKS_PER_REPEAT = 5,
  ROUNDS_MAX = 200,
  ROUNDS_MIN = 4,
  BLOCK_BYTES = 32 * 1024 * 1024,
  BLOCK_NS = 50 * 1000 * 1000,
  SLOW_NS = 400 * 1000 * 1000,
  SMALLEST = 8,
  HEADER_BYTES = 16, /* the transport's own, of most messages */
  MICROBATCHES = 8,
  GROWTH = 8
};

static uint64_t size_at(size_t index) {
  uint64_t bytes = SMALLEST;
  for (size_t k = 0; k < index; k++) {
    bytes *= GROWTH;
  }
  return bytes;
}

static uint64_t largest(void) { return size_at(WEFT_CLI_MPI_SIZES - 1); }

/* Two channels for each size: from rank 0, and to it. */
enum weft_status weft_cli_bench_mpi_open(struct weft_cli_job *job, struct weft_error *error) {
  struct weft_channel_end ends[2 * WEFT_CLI_MPI_SIZES];
  const uint32_t rank = job->transport->rank;
  for (uint32_t k = 0; k < 2 * WEFT_CLI_MPI_SIZES; k++) {
    ends[k] = (struct weft_channel_end){.channel = k,
                                        .peer = 1 - rank,
                                        .sends = k % 2 == rank,
                                        .depth = 1,
                                        .bytes_max = size_at(k / 2)};
  }
  return job->transport->ops->open(job->transport, ends, 2 * WEFT_CLI_MPI_SIZES, error);
}

/* ---- By the transport ---- */

struct game {
  struct weft_cli_job *job;
  uint32_t channel; /* from rank 0; the next one is the way back */
  uint64_t bytes;
  struct weft_message balls[2], net; /* thrown in turns */
  uint64_t thrown;
  unsigned char *out, *in;
  uint32_t rounds;
  uint64_t round_ns[ROUNDS_MAX];
};

/* The header goes on as an executor's does; it is sealed while another ball flies. */
static void prepare_ball(struct weft_message *ball, uint64_t sequence) {
  ball->header.sequence = sequence;
  ball->header.microbatch = (uint32_t)(sequence % MICROBATCHES);
  weft_message_seal(ball);
}

/* In the order of MPI_Send and MPI_Recv: who begins, throws first. */
static enum weft_status play_round(struct game *game, struct weft_error *error) {
  struct weft_transport *transport = game->job->transport;
  const struct weft_transport_ops *ops = transport->ops;
  const uint32_t rank = transport->rank;
  struct weft_message *ball = &game->balls[game->thrown % 2];
  enum weft_status status = WEFT_OK;
  if (rank == 1) {
    status = ops->receive(transport, game->channel, &game->net, error);
    if (status == WEFT_OK) {
      status = weft_cli_job_await(transport, &game->net, error);
    }
  }
  if (status == WEFT_OK) {
    status = ops->send(transport, game->channel + rank, ball, error);
  }
  if (rank == 0 && status == WEFT_OK) {
    status = ops->receive(transport, game->channel + 1, &game->net, error);
  }
  game->thrown++;
  prepare_ball(&game->balls[game->thrown % 2], game->thrown);
  if (rank == 0 && status == WEFT_OK) {
    status = weft_cli_job_await(transport, &game->net, error);
  }
  return status == WEFT_OK ? weft_cli_job_await(transport, ball, error) : status;
}

static enum weft_status play(struct game *game, struct weft_error *error) {
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; k < game->rounds && status == WEFT_OK; k++) {
    const uint64_t begin = weft_cli_clock_ns();
    status = play_round(game, error);
    game->round_ns[k] = weft_cli_clock_ns() - begin;
  }
  return status;
}

/* By MPI alone: as little as can be, or as a transport must: with a header, and without
 * blocking. */
static enum weft_status play_bare(struct game *game, bool like_transport,
                                  struct weft_error *error) {
  const struct weft_comm_pingpong bare = {
      .out = game->out,
      .in = game->in,
      .bytes = game->bytes + (like_transport ? HEADER_BYTES : 0),
      .rounds = game->rounds,
      .nonblocking = like_transport,
      .round_ns = game->round_ns};
  return weft_comm_pingpong(game->job->comm, &bare, error);
}

/* ---- The answer ---- */

static unsigned char pattern(uint64_t place, uint32_t rank) {
  return (unsigned char)(place * 7 + place / 251 + rank * 101);
}

/* One round with content, once by each: it must be the other rank's. */
static enum weft_status check(struct game *game, struct weft_error *error) {
  const uint64_t bytes = game->bytes;
  const uint32_t rank = game->job->transport->rank;
  const uint32_t rounds = game->rounds;
  for (int bare = 0; bare < 2; bare++) {
    for (uint64_t k = 0; k < bytes; k++) {
      game->out[k] = pattern(k, rank);
    }
    memset(game->in, 0, (size_t)bytes);
    game->rounds = 1;
    const enum weft_status status = bare ? play_bare(game, false, error) : play_round(game, error);
    game->rounds = rounds;
    if (status != WEFT_OK) {
      return status;
    }
    for (uint64_t k = 0; k < bytes; k++) {
      if (game->in[k] != pattern(k, 1 - rank)) {
        *error = (struct weft_error){.status = WEFT_ERR_PROTOCOL,
                                     .message = "bench: a message arrives with another content",
                                     .hint = "this is a bug"};
        return WEFT_ERR_PROTOCOL;
      }
    }
  }
  return WEFT_OK;
}

/* ---- Blocks in turns ---- */

static void take_calmest(struct game *game, uint64_t *best) {
  const uint64_t half = weft_cli_median(game->round_ns, game->rounds) / 2;
  *best = *best == 0 || half < *best ? half : *best;
}

/* A block of each kind; the first ones are a warm-up. */
static enum weft_status measure_block(struct game *game, bool warm, struct weft_cli_mpi_size *size,
                                      struct weft_error *error) {
  struct weft_cli_mpi_size dropped = {.bytes = 0};
  struct weft_cli_mpi_size *to = warm ? size : &dropped;
  enum weft_status status = play_bare(game, false, error);
  take_calmest(game, &to->bare_ns);
  if (status == WEFT_OK) {
    status = play(game, error);
    take_calmest(game, &to->weft_ns);
  }
  if (status == WEFT_OK) {
    status = play_bare(game, true, error);
    take_calmest(game, &to->start_ns);
  }
  return status;
}

/* Where the network is slow, a few rounds are as good as many. What rank 0 finds holds for
 * both; `took_ns` is of two rounds. */
static enum weft_status fit_rounds(struct game *game, uint64_t took_ns, uint64_t *blocks,
                                   struct weft_error *error) {
  uint64_t all[WEFT_CLI_MPI_RANKS];
  const enum weft_status status =
      weft_allgather(game->job->transport, &took_ns, all, sizeof took_ns, 0, error);
  if (status == WEFT_OK && all[0] > 0) {
    const uint64_t most = 2 * (uint64_t)BLOCK_NS / all[0];
    game->rounds = most == 0 ? 1 : most < game->rounds ? (uint32_t)most : game->rounds;
    *blocks = all[0] > SLOW_NS ? 1 : *blocks;
  }
  return status;
}

static enum weft_status measure(struct game *game, uint64_t blocks, struct weft_cli_mpi_size *size,
                                struct weft_error *error) {
  const uint64_t begin = weft_cli_clock_ns();
  enum weft_status status = check(game, error);
  if (status == WEFT_OK) {
    status = fit_rounds(game, weft_cli_clock_ns() - begin, &blocks, error);
  }
  for (uint64_t k = 0; k <= blocks && status == WEFT_OK; k++) {
    status = measure_block(game, k > 0, size, error);
  }
  return status;
}

static uint32_t choose_rounds(uint64_t bytes) {
  const uint64_t rounds = BLOCK_BYTES / bytes;
  return (uint32_t)(rounds < ROUNDS_MIN ? ROUNDS_MIN : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds);
}

static enum weft_status measure_sizes(struct weft_cli_job *job, void *out, void *in,
                                      uint64_t repeats, struct weft_cli_mpi_way *way,
                                      struct weft_error *error) {
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; k < WEFT_CLI_MPI_SIZES && status == WEFT_OK; k++) {
    const uint64_t bytes = size_at(k);
    const struct weft_message ball = {
        .header = {.magic = WEFT_MESSAGE_MAGIC, .protocol = WEFT_PROTOCOL, .bytes = bytes},
        .data = out,
        .capacity = bytes};
    struct game game = {.job = job,
                        .channel = 2 * k,
                        .bytes = bytes,
                        .balls = {ball, ball},
                        .net = {.data = in, .capacity = bytes},
                        .out = out,
                        .in = in,
                        .rounds = choose_rounds(bytes)};
    prepare_ball(&game.balls[0], 0);
    way->sizes[k] = (struct weft_cli_mpi_size){.bytes = bytes};
    status = measure(&game, repeats * BLOCKS_PER_REPEAT, &way->sizes[k], error);
  }
  way->has_sizes = status == WEFT_OK;
  return status;
}

enum weft_status weft_cli_bench_mpi_ping(struct weft_cli_job *job, uint64_t repeats,
                                         struct weft_cli_mpi_way *way, struct weft_error *error) {
  const struct weft_allocator *allocator = job->cli.allocator;
  const size_t size = 2 * ((size_t)largest() + HEADER_BYTES);
  unsigned char *memory = weft_array_allocate(allocator, size, 1);
  if (memory == NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
    return WEFT_ERR_MEMORY;
  }
  memset(memory, 0, size);
  const enum weft_status status =
      measure_sizes(job, memory, memory + size / 2, repeats, way, error);
  weft_array_free(allocator, memory, size, 1);
  return status;
}
