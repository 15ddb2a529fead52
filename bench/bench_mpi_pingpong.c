/* A ping-pong between two processes: by the transport, and by MPI_Send and MPI_Recv alone, in
 * blocks that alternate. Other work on the machine only delays, so the fastest block counts. */
#include <assert.h>
#include <string.h>

#include "bench/bench_clock.h"
#include "bench/bench_mpi.h"

enum {
  BLOCKS_PER_REPEAT = 5,
  ROUNDS_MAX = 200,
  ROUNDS_MIN = 4,
  BLOCK_BYTES = 32 * 1024 * 1024,
  BLOCK_NS = 50 * 1000 * 1000,
  SLOW_NS = 400 * 1000 * 1000,
  SMALLEST_BYTES = 8,
  GROWTH = 8
};

struct pingpong {
  struct weft_cli_job *job;
  uint32_t channel; /* from rank 0; the next one is the way back */
  uint64_t bytes;
  unsigned char *out, *in;
  struct weft_message sent[2], received;
  uint64_t sequence;
  uint32_t rounds;
  uint64_t round_ns[ROUNDS_MAX];
};

static uint64_t bytes_of(uint32_t size) {
  uint64_t bytes = SMALLEST_BYTES;
  for (uint32_t k = 0; k < size; k++) {
    bytes *= GROWTH;
  }
  return bytes;
}

/* The message of the next round is sealed while this one travels, as an executor does other
 * work meanwhile. */
static void prepare_next(struct pingpong *at) {
  struct weft_message *next = &at->sent[++at->sequence % 2];
  next->header.sequence = at->sequence;
  weft_message_seal(next);
}

/* In the order of MPI_Send and MPI_Recv: rank 0 sends first. */
static enum weft_status weft_round(struct pingpong *at, struct weft_error *error) {
  struct weft_transport *transport = at->job->transport;
  const struct weft_transport_ops *ops = transport->ops;
  struct weft_message *sent = &at->sent[at->sequence % 2], *received = &at->received;
  if (transport->rank == 0) {
    WEFT_TRY(ops->send(transport, at->channel, sent, error));
    WEFT_TRY(ops->receive(transport, at->channel + 1, received, error));
    prepare_next(at);
    WEFT_TRY(weft_cli_job_await(transport, received, error));
  } else {
    WEFT_TRY(ops->receive(transport, at->channel, received, error));
    WEFT_TRY(weft_cli_job_await(transport, received, error));
    WEFT_TRY(ops->send(transport, at->channel + 1, sent, error));
    prepare_next(at);
  }
  return weft_cli_job_await(transport, sent, error);
}

/* A block of rounds; *half_ns: half of the median round trip. */
static enum weft_status weft_block(struct pingpong *at, uint64_t *half_ns,
                                   struct weft_error *error) {
  for (uint32_t k = 0; k < at->rounds; k++) {
    const uint64_t begin = weft_bench_now_ns();
    WEFT_TRY(weft_round(at, error));
    at->round_ns[k] = weft_bench_now_ns() - begin;
  }
  *half_ns = weft_bench_median(at->round_ns, at->rounds) / 2;
  return WEFT_OK;
}

static enum weft_status bare_block(struct pingpong *at, uint64_t *half_ns,
                                   struct weft_error *error) {
  for (uint32_t k = 0; k < at->rounds; k++) {
    WEFT_TRY(
        weft_comm_pingpong(at->job->comm, at->out, at->in, at->bytes, &at->round_ns[k], error));
  }
  *half_ns = weft_bench_median(at->round_ns, at->rounds) / 2;
  return WEFT_OK;
}

static unsigned char pattern(uint64_t place, uint32_t rank) {
  return (unsigned char)(place * 7 + place / 251 + rank * 101);
}

/* One round with content, by each way: it must be the other rank's. */
static enum weft_status check_content(struct pingpong *at, struct weft_error *error) {
  const uint32_t rank = at->job->transport->rank;
  uint64_t half_ns;
  at->rounds = 1;
  for (int bare = 0; bare < 2; bare++) {
    for (uint64_t k = 0; k < at->bytes; k++) {
      at->out[k] = pattern(k, rank);
    }
    memset(at->in, 0, (size_t)at->bytes);
    WEFT_TRY(bare ? bare_block(at, &half_ns, error) : weft_block(at, &half_ns, error));
    for (uint64_t k = 0; k < at->bytes; k++) {
      if (at->in[k] != pattern(k, 1 - rank)) {
        return weft_fail(error, WEFT_ERR_PROTOCOL, "this is a bug",
                         "bench: a message arrives with another content");
      }
    }
  }
  return WEFT_OK;
}

static void keep_fastest(uint64_t *fastest, uint64_t ns) {
  *fastest = *fastest == 0 || ns < *fastest ? ns : *fastest;
}

static enum weft_status measure(struct pingpong *at, uint64_t blocks,
                                struct weft_bench_mpi_size *size, struct weft_error *error) {
  uint64_t took_ns = weft_bench_now_ns(), all[2], half_ns;
  WEFT_TRY(check_content(at, error));
  took_ns = weft_bench_now_ns() - took_ns;
  /* Fewer rounds where the network is slow, as rank 0 has found. */
  WEFT_TRY(weft_allgather(at->job->transport, &took_ns, all, sizeof took_ns, 0, error));
  const uint64_t by_time = 2 * (uint64_t)BLOCK_NS / (all[0] > 0 ? all[0] : 1);
  uint64_t rounds = BLOCK_BYTES / at->bytes;
  rounds = rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds < ROUNDS_MIN ? ROUNDS_MIN : rounds;
  rounds = by_time < rounds ? by_time : rounds;
  at->rounds = rounds > 0 ? (uint32_t)rounds : 1;
  blocks = all[0] > SLOW_NS ? 1 : blocks;
  for (uint64_t k = 0; k <= blocks; k++) { /* the first is a warm-up */
    WEFT_TRY(bare_block(at, &half_ns, error));
    if (k > 0) {
      keep_fastest(&size->bare_ns, half_ns);
    }
    WEFT_TRY(weft_block(at, &half_ns, error));
    if (k > 0) {
      keep_fastest(&size->weft_ns, half_ns);
    }
  }
  return WEFT_OK;
}

enum weft_status weft_bench_mpi_pingpong(struct weft_cli_job *job, uint64_t repeats,
                                         struct weft_bench_mpi_size *sizes,
                                         struct weft_error *error) {
  assert(job->transport->rank_count == 2);
  const uint64_t largest = bytes_of(WEFT_BENCH_MPI_SIZES - 1);
  struct weft_channel_end ends[2 * WEFT_BENCH_MPI_SIZES];
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; k < 2 * WEFT_BENCH_MPI_SIZES; k++) {
    ends[k] = (struct weft_channel_end){.channel = k,
                                        .peer = 1 - job->transport->rank,
                                        .sends = k % 2 == job->transport->rank,
                                        .depth = 1,
                                        .bytes_max = bytes_of(k / 2)};
  }
  WEFT_TRY(job->transport->ops->open(job->transport, ends, 2 * WEFT_BENCH_MPI_SIZES, error));
  unsigned char *memory = weft_array_allocate_zero(job->cli.allocator, 2, (size_t)largest);
  if (memory == NULL) {
    return weft_fail_memory(error, 2 * (size_t)largest);
  }
  for (uint32_t k = 0; k < WEFT_BENCH_MPI_SIZES && status == WEFT_OK; k++) {
    struct pingpong at = {
        .job = job, .channel = 2 * k, .bytes = bytes_of(k), .out = memory, .in = memory + largest};
    at.received = (struct weft_message){.data = at.in, .capacity = at.bytes};
    at.sent[0] = at.sent[1] = (struct weft_message){
        .header = {.magic = WEFT_MESSAGE_MAGIC, .protocol = WEFT_PROTOCOL, .bytes = at.bytes},
        .data = at.out,
        .capacity = at.bytes};
    weft_message_seal(&at.sent[0]);
    sizes[k] = (struct weft_bench_mpi_size){.bytes = at.bytes};
    status = measure(&at, repeats * BLOCKS_PER_REPEAT, &sizes[k], error);
  }
  weft_array_free(job->cli.allocator, memory, 2, (size_t)largest);
  return status;
}
