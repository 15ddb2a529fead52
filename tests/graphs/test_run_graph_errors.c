/* Graphs of stages: what cannot be is refused with its reason, and a hang names the edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/run.h>
#include <weft/weft.h>

#include "support_pipelines.h"

enum { STAGES = 4, RANKS = 2 };

/* Rank 0 has stages 0 and 3, rank 1 the others; 2 and 3 are losses. */
#define GRAPH "#graph,0>1,0>2,0>3,1>2\n"
static const char *const table = GRAPH "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n";

static const struct weft_boundary_tensor number = {
    .largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {1}}, .needs_grad = true};

struct setup {
  struct weft_program *program;
  struct weft_fixed_source source;
  struct weft_stage stages[STAGES];
  struct weft_stage *bases[STAGES];
  struct weft_boundary boundaries[6]; /* 0>1, 0>2, 0>3, 1>2, the outputs of 2 and 3 */
  struct weft_pipeline_options options;
  struct pipelines pipelines;
};

static struct weft_program *parse(const char *text) {
  struct weft_program *program;
  struct weft_error error;
  if (weft_program_parse(NULL, text, strlen(text), "test", &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

static void set_up(struct setup *setup, const char *text) {
  memset(setup, 0, sizeof *setup);
  setup->program = parse(text);
  setup->source = (struct weft_fixed_source){.program = setup->program};
  for (uint32_t s = 0; s < STAGES; s++) {
    setup->stages[s].ops = weft_null_stage_ops();
    setup->bases[s] = &setup->stages[s];
  }
  for (uint32_t k = 0; k < 6; k++) {
    setup->boundaries[k] = (struct weft_boundary){.tensor_count = 1, .tensors = {number}};
  }
  setup->options = weft_pipeline_options_default();
  setup->options.source = weft_source_fixed;
  setup->options.source_context = &setup->source;
  setup->options.microbatch_count = setup->program->microbatch_count;
  setup->options.stages = setup->bases;
  setup->options.stage_count = STAGES;
  setup->options.boundaries = setup->boundaries;
  setup->options.boundary_count = 6;
  setup->options.scale_grads = false;
  setup->options.stall_limit = 1000;
  pipelines_open(&setup->pipelines, NULL,
                 &(struct weft_comm_options){.rank_count = setup->program->rank_count});
}

static void tear_down(struct setup *setup) {
  pipelines_close(&setup->pipelines);
  weft_program_destroy(setup->program);
}

static void has(const struct weft_error *error, const char *part) {
  if (strstr(error->message, part) == NULL) {
    fail_msg("\"%s\" is not in: %s", part, error->message);
  }
}

/* Creating the pipelines is refused. */
static void refused(struct setup *setup, const char *part) {
  struct weft_error error;
  assert_int_equal(pipelines_create(&setup->pipelines, NULL, &setup->options, &error),
                   WEFT_ERR_USAGE);
  has(&error, part);
  assert_true(error.hint[0] != '\0');
  tear_down(setup);
}

static void test_boundaries(void **state) {
  struct setup setup;
  (void)state;
  set_up(&setup, table);
  setup.options.boundary_count = 4;
  refused(&setup, "4 boundaries for 4 edges and outputs of 2 losses");
  set_up(&setup, table);
  setup.boundaries[1].tensors[0].largest.dims[0] = 2;
  refused(&setup, "the edges 0>1 and 0>2 share an output, and their boundaries have different");
  set_up(&setup, table);
  setup.boundaries[1].own_output = true;
  setup.boundaries[0].tensors[0].largest.dtype = WEFT_I32;
  setup.boundaries[2].tensors[0].largest.dtype = WEFT_I32;
  refused(&setup, "the gradients of the edges 0>1 and 0>3 are to be added up");
  set_up(&setup, table);
  setup.boundaries[1].own_output = true;
  for (uint32_t k = 0; k < 3; k += 2) {
    setup.boundaries[k].tensor_count = 2;
    setup.boundaries[k].tensors[1] = number;
  }
  setup.boundaries[2].tensors[0].needs_grad = false;
  refused(&setup, "different tensors of it need gradients");
  set_up(&setup, table);
  setup.boundaries[3].tensors[0].needs_grad = false; /* 1>2: nothing comes to stage 1 */
  refused(&setup, "no gradient comes to stage 1, and the edge 0>1 needs one from it");
  set_up(&setup, table);
  setup.boundaries[3].tensors[0].largest.dtype = 0;
  refused(&setup, "tensor 0 of boundaries[3] has a shape that cannot be");
}

static void test_batches(void **state) {
  static const struct {
    uint32_t stages[2], count;
    const char *part;
  } cases[] = {{{1}, 1, "batch.stages has data for stage 1, which reads none"},
               {{4}, 1, "stage 4, which does not exist"},
               {{3, 2}, 2, "batch.stages has stage 2 behind stage 3"}};
  struct setup setup;
  struct weft_error error;
  (void)state;
  set_up(&setup, table);
  assert_int_equal(pipelines_create(&setup.pipelines, NULL, &setup.options, &error), WEFT_OK);
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    struct weft_stage_batch stages[2] = {{.stage = cases[k].stages[0]},
                                         {.stage = cases[k].stages[1]}};
    const struct weft_batch batch = {
        .microbatch_count = 1, .stages = stages, .stage_count = cases[k].count};
    assert_int_equal(weft_pipeline_begin(setup.pipelines.items[0], true, &batch, &error),
                     WEFT_ERR_USAGE);
    has(&error, cases[k].part);
  }
  const struct weft_tensor target = {.shape = number.largest};
  const struct weft_stage_batch own = {.stage = 3, .targets = &target, .target_count = 1};
  const struct weft_batch without_data = {.microbatch_count = 1, .stages = &own, .stage_count = 1};
  assert_int_equal(weft_pipeline_begin(setup.pipelines.items[0], true, &without_data, &error),
                   WEFT_ERR_USAGE);
  has(&error, "stage 3: target 0 is f32[1], 4 bytes, and its data is NULL");
  assert_int_equal(weft_pipeline_begin(setup.pipelines.items[0], true, &without_data, NULL),
                   WEFT_ERR_USAGE);
  tear_down(&setup);
  /* All losses on rank 1. */
  set_up(&setup, GRAPH "0F0,0B0\n1F0,2F0,3F0,3B0,2B0,1B0\n");
  assert_int_equal(pipelines_create(&setup.pipelines, NULL, &setup.options, &error), WEFT_OK);
  const struct weft_batch batch = {.microbatch_count = 1, .want_losses = true};
  assert_int_equal(weft_pipeline_begin(setup.pipelines.items[0], true, &batch, &error),
                   WEFT_ERR_USAGE);
  has(&error, "rank 0 is asked for losses, and has no loss; the first one (stage 2) is on rank 1");
  tear_down(&setup);
}

/* Another program of the pipeline has other edges. */
static void test_other_graph(void **state) {
  struct setup setup;
  struct weft_error error;
  (void)state;
  set_up(&setup, table);
  struct weft_program *other = parse("#graph,0>1F,0>2,0>3,1>2\n0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n");
  struct weft_fixed_source source = {.program = other};
  assert_int_equal(pipelines_create(&setup.pipelines, NULL, &setup.options, &error), WEFT_OK);
  assert_int_equal(
      weft_pipeline_set_source(setup.pipelines.items[0], weft_source_fixed, &source, &error),
      WEFT_ERR_USAGE);
  has(&error, "other edges between its stages");
  weft_program_destroy(other);
  tear_down(&setup);
}

/* Runs a step that fails; the error of the ranks. */
static void fails(struct setup *setup, enum weft_status expected, struct weft_error *error) {
  const struct weft_batch batch = {.microbatch_count = 1};
  assert_int_equal(pipelines_create(&setup->pipelines, NULL, &setup->options, error), WEFT_OK);
  assert_int_equal(pipelines_step(&setup->pipelines, true, &batch, 1, error), expected);
}

/* Both ranks wait for each other over two edges; the dump says so, too. */
static void test_cycle(void **state) {
  struct setup setup;
  struct weft_error error;
  struct weft_text dump = {.size = 0}, text = {.size = 0};
  (void)state;
  set_up(&setup, GRAPH
         "0F0,0SEND_F0,0SEND_F0>2,3F0,3B0,0RECV_B0,0RECV_B0<2,0B0\n"
         "2RECV_F0<0,1RECV_F0,1F0,2F0,2B0,1B0,1SEND_B0,2SEND_B0>0\n");
  setup.options.comm = WEFT_COMM_RENDEZVOUS;
  fails(&setup, WEFT_ERR_STALLED, &error);
  has(&error, "rank 0 waits in 0SEND_F0 for rank 1 (1RECV_F0)");
  has(&error, "rank 1 waits in 2RECV_F0<0 for rank 0 (0SEND_F0>2)");
  assert_int_equal(weft_hang_dump(setup.pipelines.transports[0], &dump, &error), WEFT_OK);
  assert_non_null(strstr(dump.data, "2RECV_F0<0"));
  assert_int_equal(weft_hang_explain(dump.data, dump.size, "dump", &text, &error), WEFT_OK);
  assert_non_null(strstr(text.data, "2RECV_F0<0"));
  assert_non_null(strstr(text.data, "0SEND_F0>2"));
  weft_text_finish(&dump);
  weft_text_finish(&text);
  tear_down(&setup);
}

static void test_wrong_programs(void **state) {
  static const struct {
    const char *program, *part;
  } cases[] = {
      /* The skip connection is never sent. */
      {GRAPH "0F0,0SEND_F0,3F0,3B0,0RECV_B0,0RECV_B0<2,0B0\n"
             "1RECV_F0,1F0,2RECV_F0<0,2F0,2B0,1B0,1SEND_B0,2SEND_B0>0\n",
       NULL},
      /* There is no such edge. */
      {GRAPH "0F0,0SEND_F0,0SEND_F0>2,3F0,3B0,0RECV_B0,0RECV_B0<2,0B0\n"
             "1RECV_F0,2RECV_F0<0,1F0,1SEND_F0>3,2F0,2B0,1B0,1SEND_B0,2SEND_B0>0\n",
       "1SEND_F0>3): there is no other rank to send it to"},
      /* Both stages are on one rank. */
      {GRAPH "0F0,0SEND_F0,0SEND_F0>2,0SEND_F0>3,3F0,3B0,0RECV_B0,0RECV_B0<2,0B0\n"
             "1RECV_F0,2RECV_F0<0,1F0,2F0,2B0,1B0,1SEND_B0,2SEND_B0>0\n",
       "0SEND_F0>3): there is no other rank to send it to"},
      /* An input is missing. */
      {GRAPH "0F0,0SEND_F0,0SEND_F0>2,3F0,3B0,0RECV_B0,0RECV_B0<2,0B0\n"
             "1RECV_F0,1F0,2F0,2B0,1B0,1SEND_B0,2SEND_B0>0,2RECV_F0<0\n",
       "2F0): its input has not been received or computed"},
      /* A gradient is never sent. */
      {GRAPH "0F0,0SEND_F0,0SEND_F0>2,3F0,3B0,0RECV_B0,0B0\n"
             "1RECV_F0,2RECV_F0<0,1F0,2F0,2B0,1B0,1SEND_B0\n",
       "still has a gradient that was computed and not sent: stage 2, microbatch 0, edge 0>2"},
      {GRAPH "0F0,0SEND_F0,0SEND_F0>2,3F0,3B0,0RECV_B0,0B0,0RECV_B0<2\n"
             "1RECV_F0,2RECV_F0<0,1F0,2F0,2B0,1B0,1SEND_B0,2SEND_B0>0\n",
       "0B0): its gradient has not been received or computed"},
      {GRAPH "0F0,0SEND_F0,0SEND_F0>2,3F0,3B0\n1RECV_F0,2RECV_F0<0,1F0,2F0,2B0,1B0,1SEND_B0\n",
       "edge 0>"},
  };
  (void)state;
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    struct setup setup;
    struct weft_error error;
    set_up(&setup, cases[k].program);
    fails(&setup, cases[k].part == NULL ? WEFT_ERR_STALLED : WEFT_ERR_INVALID, &error);
    has(&error, cases[k].part != NULL ? cases[k].part : "rank 1");
    tear_down(&setup);
  }
}

static enum weft_status no_outputs(struct weft_stage *stage, struct weft_stage_call *call,
                                   struct weft_error *error) {
  (void)stage, (void)error;
  call->outputs->count = 0;
  return WEFT_OK;
}

static enum weft_status empty_gradients(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error) {
  (void)stage, (void)error;
  for (uint32_t k = 0; k < call->input_count; k++) {
    call->input_grads[k].items[0].shape.dims[0] = 0;
  }
  return WEFT_OK;
}

/* A stage that leaves something else than its boundary has: the message names it. */
static void test_wrong_tensors(void **state) {
  struct setup setup;
  struct weft_error error;
  struct weft_stage_ops ops = *weft_null_stage_ops();
  (void)state;
  ops.forward = no_outputs;
  for (int own = 0; own < 2; own++) { /* the stage has one output, or two */
    set_up(&setup, table);
    setup.boundaries[0].own_output = own != 0;
    setup.stages[0].ops = &ops;
    fails(&setup, WEFT_ERR_STAGE, &error);
    has(&error, "0F0 failed: it has left 0 tensors where its boundary has 1");
    tear_down(&setup);
  }
  ops = *weft_null_stage_ops();
  ops.backward = empty_gradients;
  set_up(&setup, table);
  setup.stages[2].ops = &ops;
  fails(&setup, WEFT_ERR_STAGE, &error);
  has(&error, "the gradients from stages 1 and 2 are of one output, and are f32[1] and f32[0]");
  tear_down(&setup);
}

/* A chain may be written with a graph or without: a pipeline goes from one to the other. */
static void test_chain_with_and_without_a_graph(void **state) {
  static const char *const rows =
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B0,1SEND_B1\n";
  char with_graph[256];
  (void)state;
  (void)snprintf(with_graph, sizeof with_graph, "#graph,0>1\n%s", rows);
  for (int k = 0; k < 2; k++) {
    struct setup setup;
    struct weft_error error;
    set_up(&setup, k == 0 ? rows : with_graph);
    struct weft_program *other = parse(k == 0 ? with_graph : rows);
    struct weft_fixed_source source = {.program = other};
    const struct weft_batch batch = {.microbatch_count = 2};
    setup.options.stage_count = 2;
    setup.options.boundary_count = 1;
    assert_int_equal(pipelines_create(&setup.pipelines, NULL, &setup.options, &error), WEFT_OK);
    for (int step = 0; step < 3; step++) {
      assert_int_equal(pipelines_step(&setup.pipelines, true, &batch, 1, &error), WEFT_OK);
      for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(weft_pipeline_set_source(setup.pipelines.items[r], weft_source_fixed,
                                                  step == 0 ? &source : &setup.source, &error),
                         WEFT_OK);
      }
    }
    tear_down(&setup);
    weft_program_destroy(other);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_boundaries),    cmocka_unit_test(test_chain_with_and_without_a_graph),
      cmocka_unit_test(test_batches),       cmocka_unit_test(test_other_graph),
      cmocka_unit_test(test_cycle),         cmocka_unit_test(test_wrong_programs),
      cmocka_unit_test(test_wrong_tensors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
