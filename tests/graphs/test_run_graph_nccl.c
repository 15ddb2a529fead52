/* Graphs of stages over NCCL under mpirun, a process with a GPU per rank, on the fake driver and the
 * fake NCCL: random graphs and tables, named schedules of graphs, and those of chains, have the host's losses, outputs
 * and gradients, bit for bit, enqueued action by action and as a CUDA graph per rank. Every process
 * draws the same graphs. With the word "mutants" each wait of each rank's recording is left out once,
 * and noticed, or covered by others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <mpi.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "fake_cuda.h"
#include "support_cuda_job.h"
#include "support_graph_model.h"

enum { MODELS = 8, HANG_SECONDS = 240 };

static const struct cuda_step steps[] = {{.outputs = true},   {0}, {0}, {0},
                                         {.evaluates = true}, {0}};
static struct cuda_results expected, found;
static MPI_Comm everybody;
static uint32_t ranks, own_rank;
static uint64_t replayed_steps, programs;

static void count_graphs(struct cuda_job *job, const struct weft_pipeline *pipeline, uint32_t rank,
                         uint32_t step) {
  (void)rank;
  if (step + 1 == job->step_count) {
    replayed_steps = weft_pipeline_replayed_steps(pipeline);
    if (!job->eager && replayed_steps == 0) {
      fail_msg("%s: no step was a graph: %s", job->schedule, weft_pipeline_eager_reason(pipeline));
    }
  }
}

/* What the host makes of it, in all processes; then over NCCL, eagerly and as graphs. */
static void run_program(const char *name, const struct weft_program *program, uint32_t seed) {
  static struct cuda_job job;
  struct weft_error error;
  job = (struct cuda_job){.schedule = name,
                          .program = program,
                          .ranks = ranks,
                          .microbatches = program->microbatch_count,
                          .steps = steps,
                          .step_count = WEFT_ARRAY_LENGTH(steps),
                          .communicator = &everybody,
                          .own_rank = own_rank,
                          .own_outputs = seed % 5 == 0,
                          .look = count_graphs};
  if (cuda_job_run_on_host(&job, &expected, &error) < 0) {
    fail_msg("%s on the host: %s", name, error.message);
  }
  for (uint32_t k = 0; k < 2; k++) {
    job.eager = k == 0;
    fake_cuda_reset(&(struct fake_cuda_options){.seed = seed, .queues = seed % 2 == 0 ? 1 : 8});
    if (cuda_job_run(&job, &found, &error) < 0) {
      fail_msg("%s, rank %u, %s: %s", name, own_rank, k == 0 ? "eager" : "graphs", error.message);
    }
    cuda_job_keep_rank(&job, own_rank, &expected);
    cuda_job_check_findings(&job);
    if (programs > 0) { /* NCCL's kernel stays */
      cuda_job_check_leaks(&job, "at the end");
    }
    assert_true((replayed_steps > 0) == (k == 1));
    if (!cuda_job_same(&expected, &found, sizeof expected)) {
      fail_msg("%s, rank %u, %s: other bits than the host's", name, own_rank,
               k == 0 ? "eager" : "graphs");
    }
  }
  programs++;
}

static void random_graphs(void **state) {
  struct graph_model *model = malloc(sizeof *model);
  uint32_t models = 0;
  (void)state;
  for (uint32_t seed = 1; models < MODELS; seed++) {
    char name[64];
    graph_model_init(model, seed, ranks);
    if (model->rank_count == ranks) { /* else it has fewer stages */
      (void)snprintf(name, sizeof name, "graph %u", seed);
      run_program(name, model->program, seed);
      models++;
    }
    graph_model_finish(model);
  }
  free(model);
}

/* A U with two skips. */
static struct weft_graph *make_skips(void) {
  const uint32_t count = 2 * ranks;
  struct weft_edge edges[32];
  uint32_t edge_count = 0;
  struct weft_graph *graph = NULL;
  assert_in_range(count, 4, 30);
  for (uint32_t s = 0; s + 1 < count; s++) {
    edges[edge_count++] = weft_edge_make(s, s + 1);
  }
  edges[edge_count++] = weft_edge_make(0, count - 1);
  if (count > 4) {
    edges[edge_count++] = weft_edge_make(1, count - 2);
  }
  assert_int_equal(weft_graph_create(NULL, count, edges, edge_count, NULL, &graph, NULL), WEFT_OK);
  return graph;
}

/* The program of a graph (NULL: a chain) in the order of time; NULL: the schedule has none. */
static struct weft_program *lower_schedule(const char *schedule, const struct weft_graph *graph) {
  const struct weft_shape shape = {.ranks = ranks,
                                   .stages_per_rank = graph != NULL ? 2 : 0,
                                   .microbatches = 2 * ranks,
                                   .graph = graph};
  struct weft_lower_options lower = weft_lower_options_default();
  struct weft_program *table = NULL, *program = NULL;
  lower.by_time = true;
  if (weft_generate(NULL, schedule, &shape, &table, NULL) < 0) {
    return NULL;
  }
  assert_int_equal(weft_lower(NULL, table, &lower, &program, NULL), WEFT_OK);
  weft_program_destroy(table);
  return program;
}

static struct weft_program *make_program(const char *schedule) {
  struct weft_graph *graph = make_skips();
  struct weft_program *program = lower_schedule(schedule, graph);
  assert_non_null(program);
  weft_graph_destroy(graph);
  return program;
}

/* Without a graph: all that train. */
static void every_schedule_of_a_chain(void **state) {
  uint32_t count = 0;
  (void)state;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    struct weft_program *program = info->trains ? lower_schedule(info->name, NULL) : NULL;
    if (program != NULL) {
      run_program(info->name, program, 200 + (uint32_t)k);
      weft_program_destroy(program);
      count++;
    }
  }
  assert_true(count >= 9);
}

static void named_schedules(void **state) {
  static const char *const schedules[] = {"Interleaved1F1B", "ZBVZeroBubble",
                                          "InterleavedZeroBubble", "LoopedBFS"};
  (void)state;
  for (uint32_t k = 0; k < WEFT_ARRAY_LENGTH(schedules); k++) {
    struct weft_program *program = make_program(schedules[k]);
    run_program(schedules[k], program, 100 + k);
    weft_program_destroy(program);
  }
  print_message("%u programs on %u ranks\n", (unsigned)programs, ranks);
}

/* ---- Mutants: a rank's recording lacks one wait ---- */

static uint64_t waits_after[2]; /* calls so far, at the end of the first steps: eager, recorded */

static void count_waits(struct cuda_job *job, const struct weft_pipeline *pipeline, uint32_t rank,
                        uint32_t step) {
  (void)job;
  (void)rank;
  if (step < 2) {
    waits_after[step] = fake_cuda_calls("cuStreamWaitEvent");
  }
  replayed_steps = weft_pipeline_replayed_steps(pipeline);
}

/* On any rank: a race, an error, no graph, or other bits. */
static bool is_noticed(struct cuda_job *job, uint32_t seed, uint64_t dropped) {
  struct weft_error error;
  replayed_steps = 0;
  fake_cuda_reset(&(struct fake_cuda_options){.seed = seed, .queues = seed % 2 == 0 ? 1 : 8});
  if (dropped > 0) {
    fake_cuda_drop("cuStreamWaitEvent", dropped);
  }
  int here = cuda_job_run(job, &found, &error) < 0 || fake_cuda_finding_count() > 0 ||
             replayed_steps == 0 || !cuda_job_same(&expected, &found, sizeof expected);
  int anywhere = 0;
  MPI_Allreduce(&here, &anywhere, 1, MPI_INT, MPI_MAX, everybody);
  return anywhere != 0;
}

static void mutants(void **state) {
  enum { SEEDS = 2 }; /* races need none */
  static struct cuda_job job;
  struct weft_program *program = make_program("Interleaved1F1B");
  struct weft_error error;
  uint32_t noticed = 0, count = 0;
  (void)state;
  job = (struct cuda_job){.schedule = "skips",
                          .program = program,
                          .ranks = ranks,
                          .microbatches = program->microbatch_count,
                          .step_count = 3,
                          .communicator = &everybody,
                          .own_rank = own_rank,
                          .stall_limit = INT64_C(3000000000),
                          .look = count_waits};
  assert_int_equal(cuda_job_run_on_host(&job, &expected, &error), WEFT_OK);
  assert_true(cuda_job_fits(&job));
  cuda_job_keep_rank(&job, own_rank, &expected);
  assert_false(is_noticed(&job, 1, 0));
  const uint64_t own[2] = {waits_after[0], waits_after[1]};
  for (uint32_t r = 0; r < ranks; r++) {
    uint64_t span[2] = {own[0], own[1]};
    MPI_Bcast(span, 2, MPI_UINT64_T, (int)r, everybody);
    assert_true(span[1] > span[0]);
    for (uint64_t n = span[0] + 1; n <= span[1]; n++) {
      bool found_out = false;
      for (uint32_t seed = 0; seed < SEEDS && !found_out; seed++) {
        found_out = is_noticed(&job, seed, r == own_rank ? n : 0);
      }
      noticed += found_out;
      count++;
    }
  }
  weft_program_destroy(program);
  print_message("%u of %u waits are noticed\n", noticed, count);
  assert_true(noticed > 3 * (count - noticed));
}

int main(int argc, char **argv) {
  int level, size, rank;
  const bool mutates = argc == 2 && strcmp(argv[1], "mutants") == 0;
  (void)alarm(mutates
                  ? 10 * HANG_SECONDS
                  : HANG_SECONDS); /* a test that failed in one process may leave others waiting */
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  everybody = MPI_COMM_WORLD;
  MPI_Comm_size(everybody, &size);
  MPI_Comm_rank(everybody, &rank);
  ranks = (uint32_t)size;
  own_rank = (uint32_t)rank;
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_graphs),
                                     cmocka_unit_test(every_schedule_of_a_chain),
                                     cmocka_unit_test(named_schedules)};
  const struct CMUnitTest long_tests[] = {cmocka_unit_test(mutants)};
  if ((mutates ? cmocka_run_group_tests(long_tests, NULL, NULL)
               : cmocka_run_group_tests(tests, NULL, NULL)) > 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
