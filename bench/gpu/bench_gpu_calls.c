/* Bare calls of the driver, in the same process and by the same functions as the runtime's: what
 * a step cannot be faster than. */
#include <dlfcn.h>
#include <string.h>

#include "bench/bench_clock.h"
#include "bench/gpu/bench_gpu.h"

enum { ROUNDS = 9, CALLS = 500, GRAPH_ROUNDS = 51, RANKS_MAX = 64 };

static struct weft_stream *own_stream(struct weft_device *device, struct weft_error *error) {
  struct weft_stream *stream = NULL;
  (void)device->ops->stream_create(device, &stream, error);
  return stream;
}

/* The fastest round of CALLS calls, per call; between rounds the GPU comes to rest. */
#define TIME(result, call)                                                       \
  do {                                                                           \
    (result) = 1e9;                                                              \
    for (int round = 0; round < ROUNDS; round++) {                               \
      const uint64_t begin = weft_bench_now_ns();                                \
      for (int k = 0; k < CALLS; k++) {                                          \
        WEFT_TRY(call);                                                          \
      }                                                                          \
      const double each = (double)(weft_bench_now_ns() - begin) / (double)CALLS; \
      (result) = each < (result) ? each : (result);                              \
      WEFT_TRY(ops->event_record(device, event, stream, error));                 \
      WEFT_TRY(ops->event_wait(device, event, NULL, error));                     \
    }                                                                            \
  } while (0)

static enum weft_status time_calls(struct weft_device *device, struct weft_stream *stream,
                                   struct weft_stream *other, uint32_t *number,
                                   struct weft_bench_gpu_calls *calls, struct weft_error *error) {
  const struct weft_device_ops *ops = device->ops;
  struct weft_device_event *event, *timed;
  uint64_t *clock = (uint64_t *)(void *)(number + 2);
  int64_t ns;
  WEFT_TRY(ops->event_create(device, false, &event, error));
  WEFT_TRY(ops->event_create(device, true, &timed, error));
  WEFT_TRY(ops->event_record(device, timed, stream, error));
  WEFT_TRY(ops->event_wait(device, timed, NULL, error));
  TIME(calls->record, ops->event_record(device, event, stream, error));
  TIME(calls->timed_record, ops->event_record(device, timed, stream, error));
  TIME(calls->wait, ops->event_wait(device, event, other, error));
  TIME(calls->launch, ops->note(device, number, (uint32_t)k, clock, stream, error));
  TIME(calls->elapsed, ops->event_elapsed(device, timed, timed, &ns, error));
  TIME(calls->query, ops->event_query(device, event, error));
  ops->event_destroy(device, event);
  ops->event_destroy(device, timed);
  return WEFT_OK;
}

enum weft_status weft_bench_gpu_calls(struct weft_device *device,
                                      struct weft_bench_gpu_calls *calls,
                                      struct weft_error *error) {
  WEFT_TRY(device->ops->make_current(device, error));
  struct weft_stream *stream = own_stream(device, error), *other = own_stream(device, error);
  uint32_t *number = device->ops->allocate_host(device, 64);
  const enum weft_status status =
      stream != NULL && other != NULL && number != NULL
          ? time_calls(device, stream, other, number, calls, error)
          : weft_fail(error, WEFT_ERR_DEVICE, NULL, "the GPU gives no stream or memory");
  device->ops->stream_destroy(device, other);
  device->ops->stream_destroy(device, stream);
  device->ops->free_host(device, number);
  return status;
}

/* ---- A graph ---- */

struct chains {
  struct weft_device *device; /* of rank 0 */
  struct weft_stream *origin, *streams[RANKS_MAX];
  struct weft_device_event *begin, *ends[RANKS_MAX];
  uint32_t *numbers; /* [ranks] */
  uint64_t *clocks;  /* [ranks][2]: first, last */
  struct weft_device_recording *graph;
  uint32_t ranks;
  uint64_t length;
};

static enum weft_status record(struct chains *chains, struct weft_error *error) {
  struct weft_device *device = chains->device;
  const struct weft_device_ops *ops = device->ops;
  WEFT_TRY(ops->capture_begin(device, chains->origin, error));
  WEFT_TRY(ops->event_record(device, chains->begin, chains->origin, error));
  for (uint32_t r = 0; r < chains->ranks; r++) {
    WEFT_TRY(ops->event_wait(device, chains->begin, chains->streams[r], error));
    for (uint64_t k = 0; k < chains->length; k++) {
      WEFT_TRY(ops->note(device, &chains->numbers[r], (uint32_t)k,
                         &chains->clocks[(uint64_t)2 * r + (k > 0)], chains->streams[r], error));
    }
    WEFT_TRY(ops->event_record(device, chains->ends[r], chains->streams[r], error));
    WEFT_TRY(ops->event_wait(device, chains->ends[r], chains->origin, error));
  }
  return ops->capture_end(device, chains->origin, &chains->graph, error);
}

static enum weft_status time_graph(struct chains *chains, double *launch_us, double *host_us,
                                   struct weft_error *error) {
  struct weft_device *device = chains->device;
  const struct weft_device_ops *ops = device->ops;
  uint64_t launches[GRAPH_ROUNDS], hosts[GRAPH_ROUNDS];
  for (int round = -3; round < GRAPH_ROUNDS; round++) {
    const uint64_t begin = weft_bench_now_ns();
    WEFT_TRY(ops->replay(device, chains->graph, chains->origin, error));
    const uint64_t launched = weft_bench_now_ns();
    WEFT_TRY(ops->event_record(device, chains->begin, chains->origin, error));
    while (ops->event_query(device, chains->begin, error) == WEFT_IN_PROGRESS) {
    }
    const uint64_t end = weft_bench_now_ns();
    uint64_t first = UINT64_MAX, last = 0;
    for (uint32_t r = 0; r < chains->ranks; r++) {
      first = chains->clocks[2 * r] < first ? chains->clocks[2 * r] : first;
      last = chains->clocks[2 * r + 1] > last ? chains->clocks[2 * r + 1] : last;
    }
    if (round >= 0) {
      launches[round] = launched - begin;
      hosts[round] = end - begin > last - first ? end - begin - (last - first) : 0;
    }
  }
  *launch_us = (double)weft_bench_median(launches, GRAPH_ROUNDS) / 1e3;
  *host_us = (double)weft_bench_median(hosts, GRAPH_ROUNDS) / 1e3;
  return WEFT_OK;
}

static enum weft_status make_chains(struct weft_cuda *cuda, struct chains *chains,
                                    struct weft_error *error) {
  const struct weft_device_ops *ops = chains->device->ops;
  chains->numbers = ops->allocate_host(chains->device, sizeof(uint32_t) * RANKS_MAX);
  chains->clocks = ops->allocate_host(chains->device, 2 * sizeof(uint64_t) * RANKS_MAX);
  if (chains->numbers == NULL || chains->clocks == NULL) {
    return weft_fail_memory(error, sizeof(uint64_t) * RANKS_MAX);
  }
  WEFT_TRY(ops->stream_create(chains->device, &chains->origin, error));
  WEFT_TRY(ops->event_create(chains->device, false, &chains->begin, error));
  for (uint32_t r = 0; r < chains->ranks; r++) {
    struct weft_device *device = weft_cuda_device(cuda, r);
    WEFT_TRY(ops->stream_create(device, &chains->streams[r], error));
    WEFT_TRY(ops->event_create(device, false, &chains->ends[r], error));
  }
  return ops->make_current(chains->device, error);
}

static void finish_chains(struct weft_cuda *cuda, const struct chains *chains) {
  const struct weft_device_ops *ops = chains->device->ops;
  ops->recording_destroy(chains->device, chains->graph);
  for (uint32_t r = 0; r < chains->ranks; r++) {
    ops->stream_destroy(weft_cuda_device(cuda, r), chains->streams[r]);
    ops->event_destroy(chains->device, chains->ends[r]);
  }
  ops->stream_destroy(chains->device, chains->origin);
  ops->event_destroy(chains->device, chains->begin);
  ops->free_host(chains->device, chains->numbers);
  ops->free_host(chains->device, chains->clocks);
}

enum weft_status weft_bench_gpu_graph(const struct weft_bench_gpu_case *at, uint64_t cells,
                                      double *launch_us, double *host_us,
                                      struct weft_error *error) {
  const uint32_t gpu = 0;
  const struct weft_cuda_options options = {
      .gpus = &gpu, .gpu_count = 1, .partitions = at->partitions};
  struct weft_cuda *cuda;
  WEFT_TRY(weft_cuda_open(NULL, &options, at->ranks, &cuda, error));
  struct chains chains = {.device = weft_cuda_device(cuda, 0),
                          .ranks = at->ranks < RANKS_MAX ? at->ranks : RANKS_MAX,
                          .length = cells / at->ranks + 1};
  enum weft_status status = make_chains(cuda, &chains, error);
  if (status == WEFT_OK) {
    status = record(&chains, error);
  }
  if (status == WEFT_OK) {
    status = time_graph(&chains, launch_us, host_us, error);
  }
  finish_chains(cuda, &chains);
  weft_cuda_close(cuda);
  return status;
}

/* ---- Between kernels ---- */

enum { GAP_STAGES = 32, GAP_NS = 100000 };

static enum weft_status record_gap(struct chains *chains, bool across, struct weft_error *error) {
  struct weft_device *device = chains->device;
  const struct weft_device_ops *ops = device->ops;
  struct weft_cost_stage stage;
  weft_cost_stage_init(&stage, WEFT_COST_DEVICE);
  stage.times[WEFT_OP_F] = GAP_NS;
  WEFT_TRY(ops->capture_begin(device, chains->origin, error));
  WEFT_TRY(ops->note(device, chains->numbers, 0, &chains->clocks[0], chains->origin, error));
  for (uint32_t k = 0; k < GAP_STAGES; k++) {
    struct weft_stream *stream = across && k % 2 == 1 ? chains->streams[0] : chains->origin;
    struct weft_stage_call call = {.device = device, .stream = stream};
    if (across && k > 0) {
      WEFT_TRY(ops->event_wait(device, chains->ends[0], stream, error));
    }
    WEFT_TRY(stage.stage.ops->forward(&stage.stage, &call, error));
    WEFT_TRY(ops->event_record(device, chains->ends[0], stream, error));
  }
  WEFT_TRY(ops->event_wait(device, chains->ends[0], chains->origin, error));
  WEFT_TRY(ops->note(device, chains->numbers, 1, &chains->clocks[1], chains->origin, error));
  return ops->capture_end(device, chains->origin, &chains->graph, error);
}

enum weft_status weft_bench_gpu_gap(struct weft_cuda *cuda, bool across, double *gap_us,
                                    struct weft_error *error) {
  struct chains chains = {.device = weft_cuda_device(cuda, 0), .ranks = 1};
  double launch_us, host_us;
  enum weft_status status = make_chains(cuda, &chains, error);
  if (status == WEFT_OK) {
    status = record_gap(&chains, across, error);
  }
  if (status == WEFT_OK) {
    status = time_graph(&chains, &launch_us, &host_us, error);
  }
  if (status == WEFT_OK) { /* of the last launch */
    const double ns =
        (double)(chains.clocks[1] - chains.clocks[0]) / (double)GAP_STAGES - (double)GAP_NS;
    *gap_us = ns > 0 ? ns / 1e3 : 0;
  }
  finish_chains(cuda, &chains);
  return status;
}

uint64_t weft_bench_gpu_free_bytes(struct weft_cuda *cuda) {
  struct weft_device *device = weft_cuda_device(cuda, 0);
  size_t free_bytes = 0, total = 0;
  int (*function)(size_t *, size_t *);
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *found = library != NULL ? dlsym(library, "cuMemGetInfo_v2") : NULL;
  if (found == NULL || device == NULL || device->ops->make_current(device, NULL) < 0) {
    return 0;
  }
  memcpy((void *)&function, (const void *)&found, sizeof found);
  return function(&free_bytes, &total) == 0 ? free_bytes : 0;
}
