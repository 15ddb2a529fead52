/* Wrong arguments of the public functions: NULL where a pointer is needed, counts above a limit,
 * values of an enum that do not exist. Each is WEFT_ERR_USAGE or WEFT_ERR_LIMIT with a message
 * that names the argument; none crashes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/inspect.h>
#include <weft/launch.h>
#include <weft/run.h>
#include <weft/search.h>
#include <weft/source.h>
#include <weft/support.h>
#include <weft/weft.h>

static struct weft_error error;

/* The call is refused, with that text in its message. */
#define REFUSES(text, call)                                             \
  do {                                                                  \
    error = (struct weft_error){.status = WEFT_OK};                     \
    const enum weft_status refusal_ = (call);                           \
    if (refusal_ != WEFT_ERR_USAGE && refusal_ != WEFT_ERR_LIMIT) {     \
      fail_msg("%s: status %d, %s", #call, refusal_, error.message);    \
    }                                                                   \
    if (strstr(error.message, text) == NULL) {                          \
      fail_msg("%s: \"%s\" has no \"%s\"", #call, error.message, text); \
    }                                                                   \
  } while (0)

static struct weft_program *make_program(void) {
  struct weft_program *program = NULL;
  const struct weft_shape shape = {.ranks = 2, .microbatches = 2};
  assert_int_equal(weft_generate(NULL, "1F1B", &shape, &program, &error), WEFT_OK);
  return program;
}

static void null_in_planning(void **state) {
  (void)state;
  struct weft_program *program = make_program(), *out = NULL;
  struct weft_costs *costs = NULL;
  struct weft_report *report = NULL;
  struct weft_links *links = NULL;
  struct weft_diff *diff = NULL;
  struct weft_simulation *simulation = NULL;
  struct weft_text text = {.allocator = NULL};
  const struct weft_shape shape = {.ranks = 2, .microbatches = 2};
  const uint64_t sizes[] = {1};
  uint32_t first[2];
  uint64_t count = 0;
  double number = 0;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  REFUSES("weft_text_status: text is NULL", weft_text_status(NULL, &error));
  REFUSES("out is NULL", weft_program_create(NULL, 1, sizes, NULL, NULL, &error));
  REFUSES("row_sizes is NULL", weft_program_create(NULL, 1, NULL, NULL, &out, &error));
  REFUSES("actions is NULL", weft_program_create(NULL, 1, sizes, NULL, &out, &error));
  REFUSES("text is NULL", weft_program_parse(NULL, NULL, 5, "x", &out, &error));
  REFUSES("out is NULL", weft_program_parse(NULL, "0F0", 3, "x", NULL, &error));
  REFUSES("out is NULL", weft_costs_create(NULL, 1, NULL, &error));
  REFUSES("costs is NULL", weft_costs_add_parts(NULL, 1, &error));
  REFUSES("text is NULL", weft_costs_parse(NULL, NULL, 5, "x", &costs, &error));
  REFUSES("out is NULL", weft_costs_parse(NULL, "{}", 2, "x", NULL, &error));
  REFUSES("weights is NULL", weft_balanced_partition(NULL, NULL, 4, 2, first, &error));
  REFUSES("first is NULL", weft_balanced_partition(NULL, &number, 1, 1, NULL, &error));
  REFUSES("costs is NULL", weft_costs_check(NULL, 1, &error));
  REFUSES("name is NULL", weft_generate(NULL, NULL, &shape, &out, &error));
  REFUSES("shape is NULL", weft_generate(NULL, "1F1B", NULL, &out, &error));
  REFUSES("out is NULL", weft_generate(NULL, "1F1B", &shape, NULL, &error));
  REFUSES("table is NULL", weft_lower(NULL, NULL, NULL, &out, &error));
  REFUSES("out is NULL", weft_lower(NULL, program, NULL, NULL, &error));
  REFUSES("program is NULL", weft_verify(NULL, NULL, NULL, &report, &error));
  REFUSES("out is NULL", weft_verify(NULL, program, NULL, NULL, &error));
  REFUSES("in is NULL", weft_dry_run(NULL, NULL, &out, &error));
  REFUSES("out is NULL", weft_dry_run(NULL, program, NULL, &error));
  REFUSES("program is NULL", weft_grid_print(NULL, NULL, &text, &error));
  REFUSES("text is NULL", weft_grid_print(program, NULL, NULL, &error));
  REFUSES("program is NULL", weft_links_create(NULL, NULL, &links, &error));
  REFUSES("out is NULL", weft_links_create(NULL, program, NULL, &error));
  REFUSES("a is NULL", weft_diff_create(NULL, NULL, program, 1, &diff, &error));
  REFUSES("b is NULL", weft_diff_create(NULL, program, NULL, 1, &diff, &error));
  REFUSES("out is NULL", weft_diff_create(NULL, program, program, 1, NULL, &error));
  REFUSES("program is NULL", weft_simulate(NULL, NULL, costs, NULL, &simulation, &error));
  REFUSES("costs is NULL", weft_simulate(NULL, program, NULL, NULL, &simulation, &error));
  REFUSES("out is NULL", weft_simulate(NULL, program, costs, NULL, NULL, &error));
  REFUSES("program is NULL", weft_makespan(NULL, NULL, costs, NULL, &number, &error));
  REFUSES("makespan is NULL", weft_makespan(NULL, program, costs, NULL, NULL, &error));
  REFUSES("costs is NULL", weft_period(NULL, program, NULL, NULL, &number, &error));
  REFUSES("period is NULL", weft_period(NULL, program, costs, NULL, NULL, &error));
  REFUSES("simulation is NULL", weft_critical_path(NULL, NULL, NULL, 0, &count, &error));
  REFUSES("events is NULL",
          weft_simulation_measured(NULL, program, costs, NULL, 3, 1, &simulation, &error));
  REFUSES("picture is NULL", weft_render_text(NULL, NULL, &text, &error));
  REFUSES("simulation is NULL",
          weft_render_text(&(struct weft_picture){.costs = costs}, NULL, &text, &error));
  REFUSES("picture is NULL", weft_render_svg(NULL, NULL, &text, &error));
  REFUSES("pictures is NULL", weft_render_html(NULL, 1, NULL, &text, &error));
  REFUSES("picture is NULL", weft_render_trace(NULL, NULL, &text, &error));
  REFUSES("like is NULL", weft_source_forward_only(NULL, NULL, 1, NULL, &out, &error));
  REFUSES("source is NULL", weft_source_named(NULL, 1, true, &out, &error));
  REFUSES("schedule is NULL",
          weft_source_named(&(struct weft_named_source){.ranks = 2}, 1, true, &out, &error));
  REFUSES("source is NULL", weft_source_fixed(NULL, 1, true, &out, &error));
  REFUSES("program is NULL",
          weft_source_fixed(&(struct weft_fixed_source){.lower = NULL}, 1, true, &out, &error));
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

static void null_in_searches(void **state) {
  (void)state;
  struct weft_search_answer *answer = NULL;
  struct weft_search_request request = weft_search_request_default();
  struct weft_memory_need need;
  REFUSES("request is NULL", weft_search(NULL, NULL, &answer, &error));
  REFUSES("costs is NULL", weft_search(NULL, &request, &answer, &error));
  REFUSES("out is NULL", weft_search(NULL, &request, NULL, &error));
  REFUSES("request is NULL", weft_search_least_memory(NULL, NULL, &need, &error));
  REFUSES("need is NULL", weft_search_least_memory(NULL, &request, NULL, &error));
}

static void models_that_do_not_exist(void **state) {
  (void)state;
  struct weft_program *program = make_program();
  struct weft_costs *costs = NULL;
  double number;
  struct weft_report *report = NULL;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  struct weft_verify_options verify = weft_verify_options_default();
  verify.model.channel = (enum weft_channel_model)7;
  REFUSES("channel model 7", weft_verify(NULL, program, &verify, &report, &error));
  struct weft_sim_options sim = weft_sim_options_default();
  sim.channel = (enum weft_channel_model)7;
  REFUSES("channel model 7", weft_makespan(NULL, program, costs, &sim, &number, &error));
  sim = weft_sim_options_default();
  sim.jitter = -1;
  REFUSES("jitter", weft_makespan(NULL, program, costs, &sim, &number, &error));
  sim.jitter = NAN;
  REFUSES("jitter", weft_makespan(NULL, program, costs, &sim, &number, &error));
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- The runtime ---- */

static enum weft_status do_nothing(void *context, struct weft_transport *transport,
                                   struct weft_error *reason) {
  (void)context, (void)transport, (void)reason;
  return WEFT_OK;
}

static void wrong_in_comm(void **state) {
  (void)state;
  struct weft_comm *comm = NULL;
  struct weft_comm_options options = weft_comm_options_default();
  char byte = 0;
  uint32_t rank;
  uint64_t sum;
  int file;
  options.rank_count = 2;
  REFUSES("name is NULL", weft_comm_open(NULL, NULL, &options, &comm, &error));
  REFUSES("out is NULL", weft_comm_open(NULL, "threads", &options, NULL, &error));
  static const char *const names[] = {"latency_ticks", "occupied_ticks", "delay_ticks_max",
                                      "stage_limit_ns"};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(names); k++) {
    int64_t *const times[] = {&options.latency_ticks, &options.occupied_ticks,
                              &options.delay_ticks_max, &options.stage_limit_ns};
    const int64_t before = *times[k];
    *times[k] = -1;
    REFUSES(names[k], weft_comm_open(NULL, "loopback", &options, &comm, &error));
    *times[k] = before;
  }
  options.channel_ticks = (const int64_t[]){0, -1};
  options.channel_count = 2;
  REFUSES("no time for channel 1", weft_comm_open(NULL, "loopback", &options, &comm, &error));
  options.channel_count = 0;
  options.progress = (enum weft_comm_progress)9;
  REFUSES("progress is 9", weft_comm_open(NULL, "threads", &options, &comm, &error));
  options.progress = WEFT_COMM_PROGRESS_CALLS;
  assert_int_equal(weft_comm_open(NULL, "threads", &options, &comm, &error), WEFT_OK);
  struct weft_transport *transport = weft_comm_local(comm);
  REFUSES("comm is NULL", weft_comm_run(NULL, do_nothing, NULL, &error));
  REFUSES("rank_main is NULL", weft_comm_run(comm, NULL, NULL, &error));
  REFUSES("comm is NULL", weft_comm_next(NULL, &rank, &error));
  REFUSES("no virtual time", weft_comm_next(comm, &rank, &error));
  REFUSES("round_ns is NULL", weft_comm_pingpong(comm, "", &rank, 1, NULL, &error));
  REFUSES("transport is NULL", weft_barrier(NULL, 0, &error));
  REFUSES("transport is NULL", weft_allgather(NULL, &byte, &byte, 1, 0, &error));
  REFUSES("mine is NULL", weft_allgather(transport, NULL, &byte, 1, 0, &error));
  REFUSES("all is NULL", weft_allgather(transport, &byte, NULL, 1, 0, &error));
  REFUSES("data is NULL", weft_device_fill(NULL, NULL, 0, 1, NULL, &error));
  REFUSES("data is NULL", weft_device_checksum(NULL, NULL, 1, &sum, &error));
  REFUSES("sum is NULL", weft_device_checksum(NULL, &byte, 1, NULL, &error));
  REFUSES("copy is NULL", weft_copy(NULL, NULL, &error));
  REFUSES("copy->from is NULL",
          weft_copy(&(struct weft_copy){.to = &byte, .row_bytes = 1, .rows = 1}, NULL, &error));
  REFUSES("message is NULL", weft_message_check(NULL, &error));
  REFUSES("transport is NULL", weft_launch_share_input(NULL, 0, &file, &error));
  REFUSES("text is NULL", weft_hang_dump(transport, NULL, &error));
  REFUSES("dump is NULL", weft_hang_explain(NULL, 5, "x", &(struct weft_text){.size = 0}, &error));
  REFUSES("text is NULL", weft_hang_explain_json("{}", 2, "x", NULL, &error));
  assert_null(weft_comm_find(NULL));
  assert_int_equal(weft_comm_stuck_ranks(NULL), 0);
  weft_comm_close(comm);
}

static enum weft_status make_nothing(void *context, uint32_t microbatch_count, bool training,
                                     struct weft_program **out, struct weft_error *reason) {
  (void)context, (void)microbatch_count, (void)training, (void)out, (void)reason;
  return WEFT_OK;
}

static void wrong_in_pipelines(void **state) {
  (void)state;
  struct weft_named_source source = {.schedule = "GPipe", .ranks = 1};
  struct weft_stage stage = {.ops = weft_null_stage_ops()};
  struct weft_stage *stages[] = {&stage};
  struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {{.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {4}}}}};
  struct weft_comm_options world = weft_comm_options_default();
  struct weft_pipeline_options options = weft_pipeline_options_default();
  struct weft_pipeline *pipeline = NULL, *second = NULL;
  struct weft_comm *comm = NULL;
  world.rank_count = 1;
  assert_int_equal(weft_comm_open(NULL, "loopback", &world, &comm, &error), WEFT_OK);
  struct weft_transport *transport = weft_comm_local(comm);
  options.source = weft_source_named;
  options.source_context = &source;
  options.microbatch_count = 2;
  options.stages = stages;
  options.stage_count = 1;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  const struct weft_pipeline_options good = options;

  REFUSES("transport is NULL", weft_pipeline_create(NULL, NULL, &options, &pipeline, &error));
  REFUSES("options is NULL", weft_pipeline_create(NULL, transport, NULL, &pipeline, &error));
  REFUSES("out is NULL", weft_pipeline_create(NULL, transport, &options, NULL, &error));
#define REFUSES_OPTION(text, assignment)                                             \
  do {                                                                               \
    options = good;                                                                  \
    assignment;                                                                      \
    REFUSES(text, weft_pipeline_create(NULL, transport, &options, &second, &error)); \
  } while (0)
  REFUSES_OPTION("a program source", options.source = NULL);
  REFUSES_OPTION("has made no program", options.source = make_nothing);
  REFUSES_OPTION("needs stages", options.stages = NULL);
  REFUSES_OPTION("boundaries", options.boundaries = NULL);
  REFUSES_OPTION("stall limit", options.stall_limit = -1);
  REFUSES_OPTION("options.comm is 4", options.comm = (enum weft_send_model)4);
  REFUSES_OPTION("9 tensors, at most 8", boundary.tensor_count = 9);
  REFUSES_OPTION("1000000 tensors", boundary.tensor_count = 1000000);
  boundary.tensor_count = 1;
  REFUSES_OPTION("7 dimensions", boundary.tensors[0].largest.dim_count = 7);
  REFUSES_OPTION("255 dimensions", boundary.tensors[0].largest.dim_count = 255);
  boundary.tensors[0].largest.dim_count = 1;
  REFUSES_OPTION("source is NULL", options.source_context = NULL);
  source.schedule = NULL;
  REFUSES_OPTION("schedule is NULL", options.scale_grads = true);
  source.schedule = "GPipe";

  /* Which half of a split backward is missing. */
  struct weft_stage_ops ops = *stage.ops;
  stage.ops = &ops;
  ops.backward_weight = NULL;
  source.schedule = "ZBH1";
  REFUSES_OPTION("has backward_input and no backward_weight", options.scale_grads = true);
  ops.backward_input = NULL;
  REFUSES_OPTION("has backward only", options.scale_grads = true);
  ops.backward = NULL;
  REFUSES_OPTION("has no backward", options.scale_grads = true);
  source.schedule = "GPipe";
  REFUSES_OPTION("has no backward", options.scale_grads = true);
  ops.backward_input = weft_null_stage_ops()->backward_input;
  REFUSES_OPTION("has backward_input and no backward_weight", options.scale_grads = true);
  stage.ops = weft_null_stage_ops();

  options = good;
  assert_int_equal(weft_pipeline_create(NULL, transport, &options, &pipeline, &error), WEFT_OK);
  struct weft_batch batch = {.microbatch_count = 2};
  REFUSES("weft_pipeline_step: pipeline is NULL", weft_pipeline_step(NULL, &batch, NULL, &error));
  REFUSES("weft_pipeline_eval: pipeline is NULL", weft_pipeline_eval(NULL, &batch, NULL, &error));
  REFUSES("pipeline is NULL", weft_pipeline_begin(NULL, true, &batch, &error));
  REFUSES("pipeline is NULL", weft_pipeline_advance(NULL, &error));
  REFUSES("pipeline is NULL", weft_pipeline_wait(NULL, &error));
  REFUSES("pipeline is NULL", weft_pipeline_set_source(NULL, make_nothing, NULL, &error));
  REFUSES("source is NULL", weft_pipeline_set_source(pipeline, NULL, NULL, &error));
  REFUSES("has made no program", weft_pipeline_set_source(pipeline, make_nothing, NULL, &error));
  REFUSES("pipeline is NULL", weft_pipeline_set_function(NULL, WEFT_OP_F, NULL, NULL, &error));
  REFUSES("batch is NULL", weft_pipeline_step(pipeline, NULL, NULL, &error));
  batch.input_count = 1;
  REFUSES("batch.input_count is 1, and batch.inputs is NULL",
          weft_pipeline_step(pipeline, &batch, NULL, &error));
  batch.input_count = 0;
  batch.target_count = 2;
  REFUSES("batch.target_count is 2, and batch.targets is NULL",
          weft_pipeline_step(pipeline, &batch, NULL, &error));
  batch.target_count = 0;
  struct weft_tensors ready[2] = {{.count = 9}, {.count = 9}};
  batch.microbatch_inputs = ready;
  REFUSES("9 input tensors", weft_pipeline_step(pipeline, &batch, NULL, &error));
  batch.microbatch_inputs = NULL;
  batch.microbatch_count = 0;
  REFUSES("0 microbatches", weft_pipeline_step(pipeline, &batch, NULL, &error));
  batch.microbatch_count = 2;
  assert_int_equal(weft_pipeline_step(pipeline, &batch, NULL, NULL), WEFT_OK);
  weft_pipeline_destroy(pipeline);
  weft_comm_close(comm);
}

/* ---- A second pipeline on an endpoint ---- */

static void one_pipeline_per_endpoint(void **state) {
  (void)state;
  static const char *const names[] = {"loopback", "threads"};
  struct weft_named_source source = {.schedule = "GPipe", .ranks = 2};
  struct weft_stage stage = {.ops = weft_null_stage_ops()};
  struct weft_stage *stages[] = {&stage, &stage};
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {4}}, .needs_grad = true}}};
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = &source;
  options.microbatch_count = 2;
  options.stages = stages;
  options.stage_count = 2;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(names); k++) {
    struct weft_comm_options world = weft_comm_options_default();
    struct weft_pipeline *first = NULL, *second = NULL;
    struct weft_comm *comm = NULL;
    world.rank_count = 2;
    assert_int_equal(weft_comm_open(NULL, names[k], &world, &comm, &error), WEFT_OK);
    struct weft_transport *transport = weft_comm_local(comm);
    assert_int_equal(weft_pipeline_create(NULL, transport, &options, &first, &error), WEFT_OK);
    for (uint32_t channel = 0; channel <= 4; channel += 4) {
      struct weft_pipeline_options other = options;
      other.first_channel = channel;
      REFUSES("rank 0 opens its channels a second time",
              weft_pipeline_create(NULL, transport, &other, &second, &error));
    }
    weft_pipeline_destroy(first);
    weft_comm_close(comm);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(null_in_planning),         cmocka_unit_test(null_in_searches),
      cmocka_unit_test(models_that_do_not_exist), cmocka_unit_test(wrong_in_comm),
      cmocka_unit_test(wrong_in_pipelines),       cmocka_unit_test(one_pipeline_per_endpoint)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
