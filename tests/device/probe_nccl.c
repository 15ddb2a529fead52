/* What messages cost the host over NCCL, and what a graph per rank saves, on a machine with a GPU:
 *
 *     mpirun -n RANKS probe_nccl SCHEDULE:MICROBATCHES:STAGE_US[:KIB] [eager]
 *
 * Stages keep the GPU busy for so long (0: they do nothing); messages have that size (4 KiB). Steps
 * are graphs, or with the last word enqueued action by action. Rank 0 prints, in microseconds:
 *
 *     step      weft_pipeline_step(), median
 *     send      a call of the transport's send(): ncclSend and the header by MPI; mean of all ranks
 *     receive   likewise of receive()
 *     begin     from the beginning of a step to the launch of its graph: the ranks decide
 *     launch    cuGraphLaunch
 *
 * and how many of the steps were graphs. Exit status 77 without a GPU or NCCL. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/comm.h>
#include <weft/cuda.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/support.h>

enum { RANKS_MAX = 64, STAGES_MAX = 64, STEPS = 200, WARM_UP = 3, SKIPPED = 77, FIELDS = 4 };

static const int64_t LONG_STEPS_NS = INT64_C(20000000000);

struct clock {
  int64_t ns;
  uint64_t calls;
};

static struct probe {
  struct weft_named_source source;
  uint32_t microbatches, stage_count, last_rank;
  double stage_us;
  uint64_t kib;
  bool eager;
  struct weft_cuda *cuda;
  struct weft_cost_stage stages[STAGES_MAX];
} probe;

/* ---- Looking at the clock around calls ---- */

static const struct weft_transport_ops *transport_ops;
static const struct weft_device_ops *device_ops;
static struct clock sends, receives, begins, launches;
static int64_t entered_ns;

static void count(struct clock *clock, int64_t ns) {
  clock->ns += ns;
  clock->calls++;
}

static enum weft_status send(struct weft_transport *transport, uint32_t channel,
                             struct weft_message *message, struct weft_error *error) {
  const int64_t begin = weft_clock_ns();
  const enum weft_status status = transport_ops->send(transport, channel, message, error);
  count(&sends, weft_clock_ns() - begin);
  return status;
}

static enum weft_status receive(struct weft_transport *transport, uint32_t channel,
                                struct weft_message *message, struct weft_error *error) {
  const int64_t begin = weft_clock_ns();
  const enum weft_status status = transport_ops->receive(transport, channel, message, error);
  count(&receives, weft_clock_ns() - begin);
  return status;
}

static enum weft_status replay(struct weft_device *device, struct weft_device_recording *graph,
                               struct weft_stream *stream, struct weft_error *error) {
  const int64_t begin = weft_clock_ns();
  const enum weft_status status = device_ops->replay(device, graph, stream, error);
  count(&begins, begin - entered_ns);
  count(&launches, weft_clock_ns() - begin);
  return status;
}

/* ---- The job ---- */

static int compare(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static double mean_us(const struct clock *clock) {
  return clock->calls > 0 ? (double)clock->ns / 1000 / (double)clock->calls : NAN;
}

/* Over the ranks that have it. */
static double mean_of(const double (*all)[FIELDS], uint32_t rank_count, int field) {
  double sum = 0;
  uint32_t found = 0;
  for (uint32_t r = 0; r < rank_count; r++) {
    sum += isnan(all[r][field]) ? 0 : all[r][field];
    found += isnan(all[r][field]) ? 0 : 1;
  }
  return found > 0 ? sum / found : NAN;
}

/* How many steps there is time for: all ranks do what the first says. */
static enum weft_status choose_steps(struct weft_transport *transport, int64_t begin,
                                     uint32_t *steps, struct weft_error *error) {
  const int64_t mine = (weft_clock_ns() - begin) / WARM_UP;
  int64_t all[RANKS_MAX];
  WEFT_TRY(weft_allgather(transport, &mine, all, sizeof mine, 0, error));
  *steps = all[0] * STEPS > LONG_STEPS_NS ? STEPS / 20 : STEPS;
  return WEFT_OK;
}

static enum weft_status run_steps(struct weft_pipeline *pipeline, struct weft_transport *transport,
                                  int64_t *times, uint32_t *done, struct weft_error *error) {
  const struct weft_batch batch = {.microbatch_count = probe.microbatches,
                                   .want_losses = transport->rank == probe.last_rank};
  struct weft_device *device = weft_cuda_device(probe.cuda, 0);
  struct weft_device_ops timed_device = *device->ops;
  const int64_t begin = weft_clock_ns();
  enum weft_status status = WEFT_OK;
  uint32_t steps;
  timed_device.replay = replay;
  device_ops = device->ops;
  for (uint32_t step = 0; step < WARM_UP; step++) {
    WEFT_TRY(weft_pipeline_step(pipeline, &batch, NULL, error));
  }
  WEFT_TRY(choose_steps(transport, begin, &steps, error));
  sends = receives = begins = launches = (struct clock){0};
  device->ops = &timed_device; /* only now: the transport has looked whose it is */
  for (uint32_t step = 0; step < steps && status == WEFT_OK; step++) {
    entered_ns = weft_clock_ns();
    status = weft_pipeline_step(pipeline, &batch, NULL, error);
    times[(*done)++] = weft_clock_ns() - entered_ns;
  }
  device->ops = device_ops;
  return status;
}

static enum weft_status report(const struct weft_pipeline *pipeline,
                               struct weft_transport *transport, int64_t *times, uint32_t done,
                               struct weft_error *error) {
  const double mine[FIELDS] = {mean_us(&sends), mean_us(&receives), mean_us(&begins),
                               mean_us(&launches)};
  double all[RANKS_MAX][FIELDS];
  WEFT_TRY(weft_allgather(transport, mine, all, sizeof mine, 0, error));
  if (transport->rank != 0) {
    return WEFT_OK;
  }
  const double(*fields)[FIELDS] = (const double(*)[FIELDS])all;
  const uint32_t ranks = transport->rank_count;
  qsort(times, done, sizeof *times, compare);
  const int64_t median = times[done / 2];
  printf("%-22s %5u %12u %8g %5" PRIu64 " %-5s %10.1f %8.2f %8.2f %8.1f %8.1f %6" PRIu64 "/%u\n",
         probe.source.schedule, ranks, probe.microbatches, probe.stage_us, probe.kib,
         probe.eager ? "eager" : "graph", (double)median / 1000, mean_of(fields, ranks, 0),
         mean_of(fields, ranks, 1), mean_of(fields, ranks, 2), mean_of(fields, ranks, 3),
         weft_pipeline_replayed_steps(pipeline), done + WARM_UP);
  if (!probe.eager && weft_pipeline_eager_reason(pipeline) != NULL) {
    printf("  %s\n", weft_pipeline_eager_reason(pipeline));
  }
  (void)fflush(stdout);
  return WEFT_OK;
}

/* Stages and their times. */
static enum weft_status prepare(struct weft_error *error) {
  const int64_t ns = (int64_t)(1000 * probe.stage_us);
  struct weft_program *program;
  WEFT_TRY(weft_source_named(&probe.source, probe.microbatches, true, &program, error));
  probe.stage_count = program->stage_count;
  for (uint32_t s = 0; s < program->stage_count && s < STAGES_MAX; s++) {
    weft_cost_stage_init(&probe.stages[s], WEFT_COST_DEVICE);
    int64_t *times = probe.stages[s].times;
    times[WEFT_OP_F] = times[WEFT_OP_I] = times[WEFT_OP_W] = ns;
    times[WEFT_OP_B] = 2 * ns;
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const bool is_last = program->actions[i].op == WEFT_OP_F &&
                           program->actions[i].stage == program->stage_count - 1;
      probe.last_rank = is_last ? r : probe.last_rank;
    }
  }
  weft_program_destroy(program);
  return probe.stage_count <= STAGES_MAX
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_LIMIT, "", "more than %d stages", STAGES_MAX);
}

static enum weft_status measure(struct weft_transport *transport, struct weft_error *error) {
  struct weft_pipeline_options options = weft_pipeline_options_default();
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {{.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {probe.kib * 256}},
                   .needs_grad = true}}};
  struct weft_stage *stages[STAGES_MAX];
  struct weft_pipeline *pipeline;
  int64_t times[STEPS];
  uint32_t done = 0;
  for (uint32_t s = 0; s < probe.stage_count; s++) {
    stages[s] = &probe.stages[s].stage;
  }
  options.source = weft_source_named;
  options.source_context = &probe.source;
  options.microbatch_count = probe.microbatches;
  options.stages = stages;
  options.stage_count = probe.stage_count;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.no_events = true;
  options.eager = probe.eager;
  options.device = weft_cuda_device(probe.cuda, 0);
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));
  enum weft_status status = run_steps(pipeline, transport, times, &done, error);
  if (status == WEFT_OK) {
    status = report(pipeline, transport, times, done, error);
  }
  weft_pipeline_destroy(pipeline);
  return status;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct weft_transport_ops timed_transport = *transport->ops;
  (void)context;
  transport_ops = transport->ops;
  timed_transport.send = send;
  timed_transport.receive = receive;
  transport->ops = &timed_transport;
  const enum weft_status status = measure(transport, error);
  transport->ops = transport_ops;
  return status;
}

static enum weft_status run_case(uint32_t ranks, struct weft_error *error) {
  struct weft_lower_options lower = weft_lower_options_default();
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm;
  lower.by_time = true; /* as the command does */
  probe.source.ranks = ranks;
  probe.source.lower = &lower;
  WEFT_TRY(prepare(error));
  WEFT_TRY(weft_comm_open(NULL, "nccl", &options, &comm, error));
  const enum weft_status status = weft_comm_run(comm, rank_main, NULL, error);
  weft_comm_close(comm);
  return status;
}

static bool parse(char *text) {
  char *fields[4] = {NULL};
  uint32_t k = 0;
  for (char *field = strtok(text, ":"); field != NULL && k < 4; field = strtok(NULL, ":")) {
    fields[k++] = field;
  }
  if (k < 3) {
    return false;
  }
  probe.source.schedule = fields[0];
  probe.microbatches = (uint32_t)strtoul(fields[1], NULL, 10);
  probe.stage_us = strtod(fields[2], NULL);
  probe.kib = fields[3] != NULL ? strtoull(fields[3], NULL, 10) : 4;
  return probe.microbatches > 0 && probe.kib > 0;
}

int main(int argc, char **argv) {
  const char *size = getenv("OMPI_COMM_WORLD_SIZE"), *rank = getenv("OMPI_COMM_WORLD_RANK");
  struct weft_error error;
  size = size != NULL ? size : getenv("PMI_SIZE");
  rank = rank != NULL ? rank : getenv("PMI_RANK");
  const uint32_t ranks = size != NULL ? (uint32_t)strtoul(size, NULL, 10) : 0;
  probe.eager = argc == 3 && strcmp(argv[2], "eager") == 0;
  if (argc < 2 || argc > 2 + probe.eager || ranks < 2 || ranks > RANKS_MAX || !parse(argv[1])) {
    fprintf(stderr, "usage: mpirun -n RANKS %s SCHEDULE:MICROBATCHES:STAGE_US[:KIB] [eager]\n",
            argv[0]);
    return 2;
  }
  if (weft_cuda_open(NULL, NULL, 1, &probe.cuda, &error) < 0) {
    fprintf(stderr, "%s\n", error.message);
    return error.status == WEFT_ERR_UNAVAILABLE ? SKIPPED : 1;
  }
  if (rank != NULL && strcmp(rank, "0") == 0) {
    printf("%-22s %5s %12s %8s %5s %-5s %10s %8s %8s %8s %8s %8s\n", "schedule", "ranks",
           "microbatches", "stage", "KiB", "steps", "step", "send", "receive", "begin", "launch",
           "graphs");
  }
  if (run_case(ranks, &error) < 0) {
    fprintf(stderr, "rank %s: %s\n", rank, error.message);
    return error.status == WEFT_ERR_UNAVAILABLE ? SKIPPED : 1;
  }
  weft_cuda_close(probe.cuda);
  return 0;
}
