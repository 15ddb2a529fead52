/* Where the time of a replayed step goes, on a machine with a GPU: a device that passes every call
 * on to the real one, and looks at the clock around the launch of the graph and at its end.
 *
 *     probe_cuda SCHEDULE:RANKS:MICROBATCHES:STAGE_US[:FLAGS] ...
 *
 * Stages keep the GPU busy for so long (0: they do nothing). Flags: e no events, b with a batch, n
 * nothing notes how far the device is, s only every fourth cell does, i the notes are in the ranks'
 * own streams, x events are recorded there instead, y events on the streams of the notes, h rank 1's
 * GPU never ends its first cell in the replay after HANG_AT others, and the report is printed.
 * Prints medians over the replayed steps, in microseconds:
 *
 *     back     the device is done -> the last rank calls weft_pipeline_step() again
 *     begin    from there to the launch
 *     launch   cuGraphLaunch
 *     device   from there to its end, as the host sees it
 *
 * The host's time per step is back + begin + launch. Exit status 77 without a GPU. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/comm.h>
#include <weft/cuda.h>
#include <weft/run.h>
#include <weft/sim.h>
#include <weft/source.h>
#include <weft/support.h>

enum {
  RANKS_MAX = 64,
  STAGES_MAX = 128,
  STEPS = 200,
  HANG_AT = 20,
  ROWS = 2,
  WIDTH = 64,
  EVENTS_MAX = 40000
};

#define STALL_NS INT64_C(2000000000)

struct probe {
  struct weft_named_source source;
  uint32_t microbatches, stage_count, first_rank, last_rank;
  double stage_us;
  bool no_events, batch, no_notes, sparse_notes, inline_notes, notes_are_events, hangs;
  struct weft_cuda *cuda;
  struct weft_cost_stage stages[STAGES_MAX];
  float data[2][RANKS_MAX * 4 * ROWS][WIDTH];
};

/* ---- The device ---- */

struct timed_device {
  struct weft_device device; /* first */
  struct weft_device *real;
  struct weft_stream *streams[3]; /* the ranks' own come first: rank, second, watch */
  uint32_t stream_count;
};

static struct probe probe;
static struct timed_device devices[RANKS_MAX];
static int64_t times[4][STEPS];     /* back, begin, launch, device */
static uint32_t step_count, wanted; /* replayed steps: that are timed, that shall be */
static int64_t launched_ns, done_ns, entered_ns;

/* Of the driver: what the product has no need for. */
static int (*create_event)(void **event, unsigned flags);
static int (*record_event)(void *event, void *stream, unsigned flags);
static int (*wait_value)(void *stream, uint64_t address, uint32_t value, unsigned flags);
static void *events[EVENTS_MAX];
static bool capturing;
static volatile uint32_t *never; /* in memory of the host: 0, and the GPU goes on */
static uint32_t event_count;

static struct weft_device *real(struct weft_device *device) {
  return ((struct timed_device *)device)->real;
}

static void *allocate(struct weft_device *device, const struct weft_allocator *allocator,
                      uint64_t bytes) {
  return real(device)->ops->allocate(real(device), allocator, bytes);
}

static void release(struct weft_device *device, const struct weft_allocator *allocator, void *data,
                    uint64_t bytes) {
  real(device)->ops->free(real(device), allocator, data, bytes);
}

static enum weft_status copy(struct weft_device *device, const struct weft_copy *copy,
                             struct weft_stream *stream, struct weft_error *error) {
  struct weft_copy passed = *copy;
  passed.to_device = copy->to_device != NULL ? real(copy->to_device) : NULL;
  passed.from_device = copy->from_device != NULL ? real(copy->from_device) : NULL;
  return real(device)->ops->copy(real(device), &passed, stream, error);
}

static enum weft_status event_create(struct weft_device *device,
                                     const struct weft_allocator *allocator,
                                     struct weft_device_event **out, struct weft_error *error) {
  return real(device)->ops->event_create(real(device), allocator, out, error);
}

static enum weft_status timed_event_create(struct weft_device *device,
                                           const struct weft_allocator *allocator,
                                           struct weft_device_event **out,
                                           struct weft_error *error) {
  return real(device)->ops->timed_event_create(real(device), allocator, out, error);
}

static void event_destroy(struct weft_device *device, const struct weft_allocator *allocator,
                          struct weft_device_event *event) {
  real(device)->ops->event_destroy(real(device), allocator, event);
}

static enum weft_status event_record(struct weft_device *device, struct weft_device_event *event,
                                     struct weft_stream *stream, struct weft_error *error) {
  return real(device)->ops->event_record(real(device), event, stream, error);
}

static enum weft_status event_wait(struct weft_device *device, struct weft_device_event *event,
                                   struct weft_stream *stream, struct weft_error *error) {
  return real(device)->ops->event_wait(real(device), event, stream, error);
}

/* In a replay only the graph's end is asked for. */
static enum weft_status event_query(struct weft_device *device, struct weft_device_event *event,
                                    struct weft_error *error) {
  const enum weft_status status = real(device)->ops->event_query(real(device), event, error);
  if (status == WEFT_OK && launched_ns > 0) {
    done_ns = weft_clock_ns();
    if (step_count < wanted) {
      times[3][step_count++] = done_ns - launched_ns;
    }
    launched_ns = 0;
  }
  return status;
}

static enum weft_status event_elapsed(struct weft_device *device, struct weft_device_event *from,
                                      struct weft_device_event *to, int64_t *ns,
                                      struct weft_error *error) {
  return real(device)->ops->event_elapsed(real(device), from, to, ns, error);
}

static enum weft_status make_current(struct weft_device *device, struct weft_error *error) {
  return real(device)->ops->make_current(real(device), error);
}

static enum weft_status stream_create(struct weft_device *device,
                                      const struct weft_allocator *allocator,
                                      struct weft_stream **out, struct weft_error *error) {
  struct timed_device *timed = (struct timed_device *)device;
  if (timed->stream_count == 2 && probe.inline_notes) {
    *out = timed->streams[0];
    timed->stream_count++;
    return WEFT_OK;
  }
  WEFT_TRY(real(device)->ops->stream_create(real(device), allocator, out, error));
  if (timed->stream_count < 3) {
    timed->streams[timed->stream_count++] = *out;
  }
  return WEFT_OK;
}

static void stream_destroy(struct weft_device *device, const struct weft_allocator *allocator,
                           struct weft_stream *stream) {
  struct timed_device *timed = (struct timed_device *)device;
  const bool is_shared = probe.inline_notes && stream == timed->streams[0];
  if (is_shared) {
    timed->streams[0] = NULL; /* the second time it goes */
    return;
  }
  real(device)->ops->stream_destroy(real(device), allocator, stream);
}

static enum weft_reach reach(struct weft_device *device, struct weft_device *other) {
  return real(device)->ops->reach(real(device), real(other));
}

static struct weft_device *pinned(struct weft_device *device) {
  return real(device)->ops->pinned(real(device));
}

static void *allocate_host(struct weft_device *device, uint64_t bytes) {
  return real(device)->ops->allocate_host(real(device), bytes);
}

static void free_host(struct weft_device *device, void *data) {
  real(device)->ops->free_host(real(device), data);
}

static void abandon(struct weft_device *device) { real(device)->ops->abandon(real(device)); }

static enum weft_status note(struct weft_device *device, uint32_t *number, uint32_t value,
                             uint64_t *clock, struct weft_stream *stream,
                             struct weft_error *error) {
  if (probe.no_notes || (probe.sparse_notes && value % 4 != 0)) {
    return WEFT_OK;
  }
  if (probe.notes_are_events) {
    const bool recorded = event_count < EVENTS_MAX && create_event(&events[event_count], 0) == 0 &&
                          record_event(events[event_count], stream, 1) == 0;
    event_count++;
    return recorded ? WEFT_OK : weft_fail(error, WEFT_ERR_DEVICE, "", "no event of a graph");
  }
  return real(device)->ops->note(real(device), number, value, clock, stream, error);
}

static enum weft_status capture_begin(struct weft_device *device, struct weft_stream *stream,
                                      struct weft_error *error) {
  capturing = probe.hangs;
  return real(device)->ops->capture_begin(real(device), stream, error);
}

static enum weft_status capture_end(struct weft_device *device, struct weft_stream *stream,
                                    struct weft_device_recording **out, struct weft_error *error) {
  capturing = false;
  return real(device)->ops->capture_end(real(device), stream, out, error);
}

static enum weft_status replay(struct weft_device *device, struct weft_device_recording *graph,
                               struct weft_stream *stream, struct weft_error *error) {
  const int64_t begin = weft_clock_ns();
  if (probe.hangs && step_count == HANG_AT) {
    *never = 1;
  }
  if (step_count < wanted && done_ns > 0) {
    times[0][step_count] = entered_ns - done_ns;
    times[1][step_count] = begin - entered_ns;
  }
  const enum weft_status status = real(device)->ops->replay(real(device), graph, stream, error);
  launched_ns = weft_clock_ns();
  if (step_count < wanted) {
    times[2][step_count] = launched_ns - begin;
  }
  return status;
}

static void recording_destroy(struct weft_device *device, struct weft_device_recording *graph) {
  real(device)->ops->recording_destroy(real(device), graph);
}

static enum weft_status launch(struct weft_device *device, uint32_t kernel, uint64_t threads,
                               void *const *parameters, struct weft_stream *stream,
                               struct weft_error *error) {
  if (capturing && device == &devices[1].device) {
    capturing = false;
    if (wait_value(stream, (uint64_t)(uintptr_t)never, 0, 1 /* equal */) != 0) {
      return weft_fail(error, WEFT_ERR_DEVICE, "", "no wait for a value in a graph");
    }
  }
  return real(device)->ops->launch(real(device), kernel, threads, parameters, stream, error);
}

static const struct weft_device_ops timed_ops = {
    .name = "cuda",
    .memory = WEFT_MEMORY_DEVICE,
    .allocate = allocate,
    .free = release,
    .copy = copy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .make_current = make_current,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .reach = reach,
    .pinned = pinned,
    .allocate_host = allocate_host,
    .free_host = free_host,
    .abandon = abandon,
    .note = note,
    .timed_event_create = timed_event_create,
    .event_elapsed = event_elapsed,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .replay = replay,
    .recording_destroy = recording_destroy,
    .launch = launch,
};

/* ---- The job ---- */

static enum weft_status run_steps(struct weft_pipeline *pipeline, uint32_t rank,
                                  struct weft_error *error) {
  const struct weft_tensor_shape shape = {
      .dtype = WEFT_F32, .dim_count = 2, .dims = {(uint64_t)probe.microbatches * ROWS, WIDTH}};
  const struct weft_tensor tensors[2] = {{.data = probe.data[0], .shape = shape},
                                         {.data = probe.data[1], .shape = shape}};
  const struct weft_batch batch = {.microbatch_count = probe.microbatches,
                                   .inputs = &tensors[0],
                                   .input_count = probe.batch && rank == probe.first_rank,
                                   .targets = &tensors[1],
                                   .target_count = probe.batch && rank == probe.last_rank,
                                   .want_losses = rank == probe.last_rank};
  for (uint32_t step = 0; step < wanted + 3; step++) {
    int64_t before = __atomic_load_n(&entered_ns, __ATOMIC_RELAXED);
    const int64_t now = weft_clock_ns();
    while (before < now && !__atomic_compare_exchange_n(&entered_ns, &before, now, true,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    WEFT_TRY(weft_pipeline_step(pipeline, &batch, NULL, error));
  }
  return WEFT_OK;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct weft_stage *stages[STAGES_MAX];
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {{.largest = {.dtype = WEFT_F32, .dim_count = 2, .dims = {ROWS, WIDTH}},
                   .needs_grad = true}}};
  struct weft_pipeline_options options = weft_pipeline_options_default();
  struct weft_pipeline *pipeline;
  (void)context;
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
  options.no_events = probe.no_events;
  options.device = &devices[transport->rank].device;
  options.stall_limit = probe.hangs ? STALL_NS : options.stall_limit;
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));
  const enum weft_status status = run_steps(pipeline, transport->rank, error);
  weft_pipeline_destroy(pipeline);
  return status;
}

static enum weft_status run_world(struct weft_error *error) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm;
  options.rank_count = probe.source.ranks;
  WEFT_TRY(weft_comm_open(NULL, "cuda", &options, &comm, error));
  const enum weft_status status = weft_comm_run(comm, rank_main, NULL, error);
  weft_comm_close(comm);
  return status;
}

/* ---- A case ---- */

/* Stages and their times; and the simulated makespan. */
static enum weft_status prepare(double *simulated_us, struct weft_error *error) {
  const struct weft_sim_options options = weft_sim_options_default();
  const int64_t ns = (int64_t)(1000 * probe.stage_us);
  struct weft_program *program;
  struct weft_simulation *simulation;
  struct weft_costs *costs;
  WEFT_TRY(weft_source_named(&probe.source, probe.microbatches, true, &program, error));
  probe.stage_count = program->stage_count;
  for (uint32_t s = 0; s < program->stage_count && s < STAGES_MAX; s++) {
    weft_cost_stage_init(&probe.stages[s], WEFT_COST_DEVICE);
    probe.stages[s].times[WEFT_OP_F] = probe.stages[s].times[WEFT_OP_I] =
        probe.stages[s].times[WEFT_OP_W] = ns;
    probe.stages[s].times[WEFT_OP_B] = 2 * ns;
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const uint32_t stage = program->actions[i].stage;
      if (program->actions[i].op == WEFT_OP_F) {
        probe.first_rank = stage == 0 ? r : probe.first_rank;
        probe.last_rank = stage == program->stage_count - 1 ? r : probe.last_rank;
      }
    }
  }
  WEFT_TRY(weft_costs_create(NULL, 1, &costs, error));
  WEFT_TRY(weft_simulate(NULL, program, costs, &options, &simulation, error));
  *simulated_us = simulation->makespan * probe.stage_us;
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
  return WEFT_OK;
}

static int compare(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static double median_us(int64_t *of) {
  qsort(of + 1, step_count - 1, sizeof *of, compare); /* the first has nothing before it */
  const int64_t median = of[step_count / 2];
  return (double)median / 1000;
}

static enum weft_status measure(struct weft_error *error) {
  double simulated_us;
  WEFT_TRY(prepare(&simulated_us, error));
  WEFT_TRY(weft_cuda_open(NULL, NULL, probe.source.ranks, &probe.cuda, error));
  memset(times, 0, sizeof times);
  step_count = 0;
  wanted = simulated_us < 5000 ? STEPS : STEPS / 8;
  launched_ns = done_ns = entered_ns = 0;
  for (uint32_t r = 0; r < probe.source.ranks; r++) {
    devices[r] = (struct timed_device){.device = {.ops = &timed_ops},
                                       .real = weft_cuda_device(probe.cuda, r)};
  }
  if (probe.hangs) { /* not freed: the device may wait for it for ever */
    struct weft_device *device = devices[1].real;
    never = device->ops->allocate_host(device, sizeof *never);
    if (never == NULL) {
      return weft_device_fail_allocation(device, sizeof *never, error);
    }
  }
  const enum weft_status status = run_world(error);
  weft_cuda_close(probe.cuda);
  if (probe.hangs) {
    printf("%.3f s after the launch: ", (double)(weft_clock_ns() - launched_ns) / 1e9);
  }
  WEFT_TRY(status);
  if (step_count == 0) {
    return weft_fail(error, WEFT_ERR_DEVICE, "", "no step was a graph");
  }
  const double back = median_us(times[0]), begin = median_us(times[1]);
  const double launched = median_us(times[2]), device = median_us(times[3]);
  printf("%8.1f %8.1f %8.1f %10.1f %8.1f %10.1f", back, begin, launched, device,
         back + begin + launched, simulated_us);
  if (simulated_us > 0) {
    printf(" %8.4f", device / simulated_us);
  }
  printf("\n");
  return WEFT_OK;
}

static void find_functions(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *create = library != NULL ? dlsym(library, "cuEventCreate") : NULL;
  void *record = library != NULL ? dlsym(library, "cuEventRecordWithFlags") : NULL;
  void *wait = library != NULL ? dlsym(library, "cuStreamWaitValue32_v2") : NULL;
  memcpy((void *)&create_event, (const void *)&create, sizeof create);
  memcpy((void *)&record_event, (const void *)&record, sizeof record);
  memcpy((void *)&wait_value, (const void *)&wait, sizeof wait);
}

int main(int argc, char **argv) {
  find_functions();
  printf("%-40s %8s %8s %8s %10s %8s %10s\n", "case", "back", "begin", "launch", "device", "host",
         "simulated");
  for (int k = 1; k < argc; k++) {
    char name[64] = "", flags[8] = "";
    struct weft_error error;
    probe.source = (struct weft_named_source){.schedule = name};
    if (sscanf(argv[k], "%63[^:]:%" SCNu32 ":%" SCNu32 ":%lf:%7s", name, &probe.source.ranks,
               &probe.microbatches, &probe.stage_us, flags) < 4 ||
        probe.source.ranks > RANKS_MAX || probe.microbatches > 4 * RANKS_MAX) {
      (void)fprintf(stderr, "%s is no case\n", argv[k]);
      return 2;
    }
    probe.no_events = strchr(flags, 'e') != NULL;
    probe.batch = strchr(flags, 'b') != NULL;
    probe.no_notes = strchr(flags, 'n') != NULL;
    probe.sparse_notes = strchr(flags, 's') != NULL;
    probe.notes_are_events = strchr(flags, 'x') != NULL || strchr(flags, 'y') != NULL;
    probe.inline_notes = strchr(flags, 'i') != NULL || strchr(flags, 'x') != NULL;
    probe.hangs = strchr(flags, 'h') != NULL && wait_value != NULL && probe.source.ranks > 1;
    event_count = 0;
    printf("%-40s ", argv[k]);
    if (measure(&error) < 0) {
      printf("%s\n  hint: %s\n", error.message, error.hint);
      return error.status == WEFT_ERR_UNAVAILABLE ? 77 : 1;
    }
    (void)fflush(stdout);
  }
  return 0;
}
