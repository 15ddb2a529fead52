/* The built-in stages: gradients of the linear stage against differences in
 * double, the split backward against the whole one bit for bit, microbatches of
 * any size, and the time that the cost stage takes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <weft/run.h>
#include <weft/support.h>

#include "support_linear_stage.h"
#include "support_memory.h"

enum { ROWS_MAX = 6, WIDTH_MAX = 7, PARAMETERS_MAX = WIDTH_MAX * WIDTH_MAX + WIDTH_MAX };

/* ---- A microbatch on one stage, as the runtime would hold it ---- */

struct bench {
  float data[5][ROWS_MAX * WIDTH_MAX];
  struct weft_tensors inputs;
  struct weft_tensors outputs;
  struct weft_tensors targets;
  struct weft_tensors output_grads;
  struct weft_tensors input_grads;
  double loss;
  struct weft_stage_call call;
};

static void matrix(struct weft_tensors *tensors, void *data, uint64_t rows, uint64_t width) {
  tensors->count = 1;
  tensors->items[0] = (struct weft_tensor){
      .data = data,
      .shape = {.dtype = WEFT_F32, .dim_count = 2, .dims = {rows, width}},
  };
}

static void randomize(float *data, uint64_t count, uint64_t seed) {
  struct weft_random random = {.state = seed};
  for (uint64_t k = 0; k < count; k++) {
    data[k] = (float)((double)(weft_random_next(&random) >> 11) * 0x1p-52 - 1);
  }
}

/* Inputs and targets have `rows`; the rest has room for ROWS_MAX. */
static void bench_init(struct bench *bench, uint64_t rows, uint64_t width, uint64_t seed) {
  memset(bench, 0, sizeof *bench);
  for (unsigned k = 0; k < 5; k++) {
    randomize(bench->data[k], ROWS_MAX * WIDTH_MAX, seed * 5 + k);
  }
  matrix(&bench->inputs, bench->data[0], rows, width);
  matrix(&bench->outputs, bench->data[1], ROWS_MAX, width);
  matrix(&bench->targets, bench->data[2], rows, width);
  matrix(&bench->output_grads, bench->data[3], rows, width);
  matrix(&bench->input_grads, bench->data[4], ROWS_MAX, width);
  bench->call = (struct weft_stage_call){.training = true,
                                         .inputs = &bench->inputs,
                                         .outputs = &bench->outputs,
                                         .targets = &bench->targets,
                                         .output_grads = &bench->output_grads,
                                         .input_grads = &bench->input_grads,
                                         .loss = &bench->loss};
}

static struct test_linear_stage *create(uint32_t stage, uint32_t width, uint64_t seed) {
  struct test_linear_stage *linear = NULL;
  struct weft_error error;
  assert_int_equal(test_linear_stage_create(NULL, stage, width, seed, &linear, &error), WEFT_OK);
  return linear;
}

typedef enum weft_status stage_function(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error);

static void run_function(stage_function *function, struct test_linear_stage *linear,
                         struct bench *bench) {
  struct weft_error error = {0};
  if (function(test_linear_stage_base(linear), &bench->call, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
}

static const struct weft_stage_ops *ops_of(struct test_linear_stage *linear) {
  return test_linear_stage_base(linear)->ops;
}

static void zero_grad(struct test_linear_stage *linear, struct bench *bench) {
  run_function(ops_of(linear)->zero_grad, linear, bench);
}

static void copy_gradients(struct test_linear_stage *linear, float *copy) {
  uint32_t count = 0;
  const float *gradients = test_linear_stage_gradients(linear, &count);
  memcpy(copy, gradients, count * sizeof *copy);
}

static void assert_gradients(struct test_linear_stage *linear, const float *expected) {
  uint32_t count = 0;
  const float *gradients = test_linear_stage_gradients(linear, &count);
  assert_memory_equal(gradients, expected, count * sizeof *expected);
}

/* ---- The reference: two stages, in double ---- */

struct model {
  uint32_t width;
  uint32_t count; /* parameters of a stage */
  double parameters[2][PARAMETERS_MAX];
};

static void reference_forward(const struct model *model, const double *parameters, const double *x,
                              double *y) {
  const uint32_t width = model->width;
  for (uint32_t j = 0; j < width; j++) {
    y[j] = parameters[width * width + j];
    for (uint32_t i = 0; i < width; i++) {
      y[j] += x[i] * parameters[i * width + j];
    }
  }
}

static double reference_loss(const struct model *model, const float *x, const float *t,
                             uint64_t rows) {
  double loss = 0;
  for (uint64_t r = 0; r < rows; r++) {
    double row[3][WIDTH_MAX] = {{0}};
    for (uint32_t j = 0; j < model->width; j++) {
      row[0][j] = (double)x[r * model->width + j];
    }
    reference_forward(model, model->parameters[0], row[0], row[1]);
    reference_forward(model, model->parameters[1], row[1], row[2]);
    for (uint32_t j = 0; j < model->width; j++) {
      const double difference = row[2][j] - (double)t[r * model->width + j];
      loss += difference * difference / 2;
    }
  }
  return loss;
}

static void model_of(struct model *model, uint32_t width, struct test_linear_stage **stages) {
  model->width = width;
  for (unsigned s = 0; s < 2; s++) {
    const float *parameters = test_linear_stage_parameters(stages[s], &model->count);
    assert_int_equal(model->count, width * width + width);
    for (uint32_t k = 0; k < model->count; k++) {
      model->parameters[s][k] = (double)parameters[k];
    }
  }
}

/* The loss is of degree 2 in each parameter, so a central difference is exact but
 * for rounding. */
static double difference(struct model *model, unsigned stage, uint32_t k, const struct bench *first,
                         const struct bench *last) {
  const double at = model->parameters[stage][k];
  const uint64_t rows = first->inputs.items[0].shape.dims[0];
  double loss[2];
  for (unsigned side = 0; side < 2; side++) {
    model->parameters[stage][k] = at + (side == 0 ? -0.5 : 0.5);
    loss[side] = reference_loss(model, first->data[0], last->data[2], rows);
  }
  model->parameters[stage][k] = at;
  return loss[1] - loss[0];
}

/* Two stages forward and backward on one microbatch. */
static void train(struct test_linear_stage **stages, struct bench *first, struct bench *last) {
  const struct weft_stage_ops *ops = ops_of(stages[0]);
  first->input_grads.count = 0;
  run_function(ops->forward, stages[0], first);
  last->inputs = first->outputs;
  run_function(ops->forward, stages[1], last);
  run_function(ops->loss, stages[1], last);
  run_function(ops->backward, stages[1], last);
  first->output_grads = last->input_grads;
  run_function(ops->backward, stages[0], first);
}

static void check_training(uint32_t width, uint64_t rows, uint64_t seed) {
  struct test_linear_stage *stages[2] = {create(0, width, seed), create(1, width, seed)};
  struct bench first;
  struct bench last;
  struct model model;
  bench_init(&first, rows, width, seed);
  bench_init(&last, rows, width, seed + 1000);
  model_of(&model, width, stages);
  train(stages, &first, &last);
  const double loss = reference_loss(&model, first.data[0], last.data[2], rows);
  assert_true(fabs(last.loss - loss) <= 1e-5 * (1 + loss));
  for (unsigned s = 0; s < 2; s++) {
    const float *gradients = test_linear_stage_gradients(stages[s], &model.count);
    for (uint32_t k = 0; k < model.count; k++) {
      const double expected = difference(&model, s, k, &first, &last);
      assert_true(fabs((double)gradients[k] - expected) <= 2e-5 * (1 + fabs(expected)));
    }
    test_linear_stage_destroy(stages[s]);
  }
}

static void gradients_are_differences(void **state) {
  (void)state;
  for (uint32_t width = 1; width <= WIDTH_MAX; width++) {
    for (uint64_t rows = 1; rows <= ROWS_MAX; rows++) {
      check_training(width, rows, 17 * width + rows);
    }
  }
}

/* ---- Bit for bit ---- */

enum { MICROBATCHES = 5 };

/* With B; or with I for all and then W, in the same order. */
static void backward_all(struct test_linear_stage *linear, struct bench *benches, bool split) {
  const struct weft_stage_ops *ops = ops_of(linear);
  zero_grad(linear, &benches[0]);
  for (unsigned mb = 0; mb < MICROBATCHES; mb++) {
    run_function(split ? ops->backward_input : ops->backward, linear, &benches[mb]);
  }
  for (unsigned mb = 0; mb < MICROBATCHES && split; mb++) {
    run_function(ops->backward_weight, linear, &benches[mb]);
  }
}

static void split_backward_is_the_whole_one(void **state) {
  (void)state;
  struct test_linear_stage *linear = create(3, WIDTH_MAX, 5);
  struct bench whole[MICROBATCHES];
  struct bench split[MICROBATCHES];
  float expected[PARAMETERS_MAX];
  for (unsigned mb = 0; mb < MICROBATCHES; mb++) { /* uneven: 2 ... 6 rows */
    bench_init(&whole[mb], mb + 2, WIDTH_MAX, mb);
    bench_init(&split[mb], mb + 2, WIDTH_MAX, mb);
  }
  backward_all(linear, whole, false);
  copy_gradients(linear, expected);
  backward_all(linear, split, true);
  assert_gradients(linear, expected);
  for (unsigned mb = 0; mb < MICROBATCHES; mb++) {
    assert_memory_equal(whole[mb].data, split[mb].data, sizeof whole[mb].data);
    assert_int_equal(split[mb].input_grads.items[0].shape.dims[0], mb + 2);
  }
  test_linear_stage_destroy(linear);
}

/* What a microbatch adds does not depend on what was there before. */
static void shares_are_added_in_order(void **state) {
  (void)state;
  struct test_linear_stage *linear = create(0, WIDTH_MAX, 9);
  const uint32_t count = PARAMETERS_MAX;
  struct bench bench;
  float sum[PARAMETERS_MAX] = {0};
  float share[PARAMETERS_MAX];
  for (unsigned mb = 0; mb < MICROBATCHES; mb++) {
    bench_init(&bench, ROWS_MAX - mb, WIDTH_MAX, mb);
    zero_grad(linear, &bench);
    run_function(ops_of(linear)->backward_weight, linear, &bench);
    copy_gradients(linear, share);
    for (uint32_t k = 0; k < count; k++) {
      sum[k] += share[k];
    }
  }
  zero_grad(linear, &bench);
  for (unsigned mb = 0; mb < MICROBATCHES; mb++) {
    bench_init(&bench, ROWS_MAX - mb, WIDTH_MAX, mb);
    run_function(ops_of(linear)->backward_weight, linear, &bench);
  }
  assert_gradients(linear, sum);
  bench.call.grad_scale = 0.25;
  run_function(ops_of(linear)->scale_grads, linear, &bench);
  for (uint32_t k = 0; k < count; k++) {
    sum[k] *= 0.25f;
  }
  assert_gradients(linear, sum);
  test_linear_stage_destroy(linear);
}

/* ---- Shapes ---- */

static void microbatches_may_be_smaller(void **state) {
  (void)state;
  struct test_linear_stage *linear = create(1, 4, 1);
  struct bench whole;
  struct bench part;
  bench_init(&whole, ROWS_MAX, 4, 1);
  run_function(ops_of(linear)->forward, linear, &whole);
  for (uint64_t rows = 0; rows <= ROWS_MAX; rows++) { /* none at all, too */
    bench_init(&part, rows, 4, 1);
    const float untouched = part.data[1][rows * 4];
    run_function(ops_of(linear)->forward, linear, &part);
    assert_int_equal(part.outputs.items[0].shape.dims[0], rows);
    assert_memory_equal(part.data[1], whole.data[1], rows * 4 * sizeof(float));
    assert_memory_equal(&part.data[1][rows * 4], &untouched, sizeof untouched);
    run_function(ops_of(linear)->loss, linear, &part);
    run_function(ops_of(linear)->backward, linear, &part);
    assert_true(rows > 0 || part.loss == 0);
  }
  test_linear_stage_destroy(linear);
}

static void first_stage_needs_no_input_grads(void **state) {
  (void)state;
  struct test_linear_stage *linear = create(0, 4, 1);
  struct bench with;
  struct bench without;
  float expected[PARAMETERS_MAX];
  bench_init(&with, 3, 4, 1);
  bench_init(&without, 3, 4, 1);
  without.input_grads = (struct weft_tensors){0};
  run_function(ops_of(linear)->backward, linear, &with);
  copy_gradients(linear, expected);
  zero_grad(linear, &without);
  run_function(ops_of(linear)->backward_input, linear, &without);
  run_function(ops_of(linear)->backward_weight, linear, &without);
  assert_gradients(linear, expected);
  test_linear_stage_destroy(linear);
}

static void loss_in_eval(void **state) {
  (void)state;
  struct test_linear_stage *linear = create(1, 4, 1);
  struct bench training;
  struct bench eval;
  bench_init(&training, 3, 4, 1);
  bench_init(&eval, 3, 4, 1);
  training.loss = eval.loss = 10; /* it is added to */
  run_function(ops_of(linear)->forward, linear, &training);
  run_function(ops_of(linear)->forward, linear, &eval);
  run_function(ops_of(linear)->loss, linear, &training);
  eval.call.training = false;
  eval.output_grads = (struct weft_tensors){0};
  run_function(ops_of(linear)->loss, linear, &eval);
  assert_true(eval.loss == training.loss && eval.loss > 10);
  eval.targets = (struct weft_tensors){0};
  eval.loss = 10;
  run_function(ops_of(linear)->loss, linear, &eval);
  assert_true(eval.loss == 10);
  test_linear_stage_destroy(linear);
}

static void refused(stage_function *function, struct test_linear_stage *linear, struct bench *bench,
                    const char *words) {
  struct weft_error error = {0};
  assert_int_equal(function(test_linear_stage_base(linear), &bench->call, &error), WEFT_ERR_STAGE);
  assert_int_equal(error.status, WEFT_ERR_STAGE);
  if (strstr(error.message, words) == NULL) {
    fail_msg("'%s' is not in: %s", words, error.message);
  }
  bench_init(bench, 3, 4, 1);
}

static void wrong_shapes_are_refused(void **state) {
  (void)state;
  struct test_linear_stage *linear = create(2, 4, 1);
  const struct weft_stage_ops *ops = ops_of(linear);
  struct bench bench;
  bench_init(&bench, 3, 4, 1);
  bench.call.stage = 2;
  bench.call.microbatch = 7;
  bench.inputs.items[0].shape.dims[1] = 5;
  refused(
      ops->forward, linear, &bench,
      "stage 2, microbatch 7: the input is f32 with 2 dimensions, 3 x 5; expected f32, rows x 4");
  bench.inputs.items[0].shape.dtype = WEFT_F64;
  refused(ops->forward, linear, &bench, "the input is f64");
  bench.inputs.items[0].shape.dim_count = 3;
  refused(ops->backward_weight, linear, &bench, "3 dimensions");
  bench.inputs.count = 2;
  refused(ops->forward, linear, &bench, "the input has 2 tensors; expected 1");
  bench.outputs.items[0].shape.dims[0] = 2;
  refused(ops->forward, linear, &bench, "has room for 2 rows, and the input has 3");
  bench.input_grads.items[0].shape.dims[0] = 2;
  refused(ops->backward, linear, &bench, "the input's gradient has room for 2 rows");
  bench.output_grads.items[0].shape.dims[0] = 2;
  refused(ops->backward_weight, linear, &bench, "the output's gradient has 2 rows; expected 3");
  bench.targets.count = 0;
  refused(ops->loss, linear, &bench, "the target has 0 tensors");
  bench.outputs.items[0].shape.dims[0] = 1;
  refused(ops->loss, linear, &bench, "the target has 3 rows; expected 1");
  test_linear_stage_destroy(linear);
}

/* ---- Create ---- */

static bool same_parameters(struct test_linear_stage *a, struct test_linear_stage *b) {
  uint32_t count = 0;
  const float *mine = test_linear_stage_parameters(a, &count);
  const float *others = test_linear_stage_parameters(b, &count);
  return memcmp(mine, others, count * sizeof *mine) == 0;
}

static void parameters_come_from_stage_and_seed(void **state) {
  (void)state;
  struct test_linear_stage *stages[] = {create(0, 64, 1), create(0, 64, 1), create(1, 64, 1),
                                        create(0, 64, 2)};
  uint32_t count = 0;
  const float *parameters = test_linear_stage_parameters(stages[0], &count);
  double squares = 0;
  for (uint32_t k = 0; k < count; k++) {
    squares += (double)parameters[k] * (double)parameters[k];
  }
  assert_true(fabs(squares / count * 64 - 1) < 0.1); /* variance 1 / width */
  assert_true(same_parameters(stages[0], stages[1]));
  assert_false(same_parameters(stages[0], stages[2]));
  assert_false(same_parameters(stages[0], stages[3]));
  assert_false(same_parameters(stages[2], stages[3]));
  for (unsigned k = 0; k < 4; k++) {
    test_linear_stage_destroy(stages[k]);
  }
}

static void create_survives_failing_memory(void **state) {
  (void)state;
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t n = 1; status != WEFT_OK; n++) {
    struct test_linear_stage *linear = NULL;
    struct test_memory memory;
    struct weft_error error = {0};
    test_memory_init(&memory);
    memory.fail_at = n;
    status = test_linear_stage_create(&memory.allocator, 0, 100, 1, &linear, &error);
    assert_true(status == WEFT_OK || (status == WEFT_ERR_MEMORY && linear == NULL));
    assert_true(status == WEFT_OK || error.message[0] != '\0');
    assert_true(n > 1 || status == WEFT_ERR_MEMORY);
    test_linear_stage_destroy(linear);
    assert_int_equal(memory.blocks, 0);
  }
}

static void absurd_widths_are_refused(void **state) {
  (void)state;
  static const uint32_t widths[] = {0, 65536, UINT32_MAX};
  for (unsigned k = 0; k < 3; k++) {
    struct test_linear_stage *linear = NULL;
    struct weft_error error = {0};
    assert_int_equal(test_linear_stage_create(NULL, 0, widths[k], 1, &linear, &error),
                     WEFT_ERR_USAGE);
    assert_null(linear);
    assert_non_null(strstr(error.message, "65535"));
  }
  test_linear_stage_destroy(NULL);
}

/* ---- The cost stage ---- */

static enum weft_status ask(stage_function *function, struct weft_cost_stage *cost, int64_t now,
                            bool again, int64_t *ready_at) {
  struct weft_stage_call call = {.now = now, .again = again, .ready_at = -1};
  struct weft_error error;
  const enum weft_status status = function(&cost->stage, &call, &error);
  *ready_at = call.ready_at;
  return status;
}

static void check_virtual(struct weft_cost_stage *cost, stage_function *function, int64_t time) {
  int64_t ready_at = 0;
  assert_int_equal(ask(function, cost, 100, false, &ready_at), WEFT_IN_PROGRESS);
  assert_int_equal(ready_at, 100 + time);
  assert_int_equal(ask(function, cost, 100 + time - 1, true, &ready_at), WEFT_IN_PROGRESS);
  assert_int_equal(ready_at, 100 + time);
  assert_int_equal(ask(function, cost, 100 + time, true, &ready_at), WEFT_OK);
  assert_int_equal(ask(function, cost, 900, false, &ready_at), WEFT_IN_PROGRESS);
  assert_int_equal(ready_at, 900 + time);
  assert_int_equal(ask(function, cost, 5000, true, &ready_at), WEFT_OK); /* late is fine */
}

static void virtual_time_per_op(void **state) {
  (void)state;
  struct weft_cost_stage cost;
  weft_cost_stage_init(&cost, WEFT_COST_VIRTUAL);
  const struct weft_stage_ops *ops = cost.stage.ops;
  stage_function *const functions[] = {ops->forward,         ops->backward, ops->backward_input,
                                       ops->backward_weight, ops->unshard,  ops->reduce_grad};
  static const enum weft_op op[] = {WEFT_OP_F, WEFT_OP_B,       WEFT_OP_I,
                                    WEFT_OP_W, WEFT_OP_UNSHARD, WEFT_OP_REDUCE_GRAD};
  int64_t ready_at = 0;
  for (int k = 0; k < 6; k++) {
    assert_int_equal(ask(functions[k], &cost, 3, false, &ready_at), WEFT_OK);
    assert_int_equal(ready_at, -1);
    cost.times[op[k]] = 10 + k;
  }
  for (int k = 0; k < 6; k++) {
    check_virtual(&cost, functions[k], 10 + k);
  }
  assert_int_equal(ask(ops->scale_grads, &cost, 3, false, &ready_at), WEFT_OK);
  cost.times[WEFT_OP_F] = INT64_MAX - 1;
  assert_int_equal(ask(ops->forward, &cost, 3, false, &ready_at), WEFT_IN_PROGRESS);
  assert_int_equal(ready_at, WEFT_TIME_NEVER);
}

static int64_t clock_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Never too short. How much too long is for a machine with nothing else to do:
 * the best of several must be right to a tenth even on this one. */
static void real_time(void **state) {
  (void)state;
  static const enum weft_cost_mode modes[] = {WEFT_COST_SLEEP, WEFT_COST_SPIN};
  static const int64_t times[] = {1000, 50 * 1000, 1000 * 1000, 3000 * 1000};
  for (unsigned k = 0; k < 8; k++) {
    struct weft_cost_stage cost;
    int64_t ready_at = 0;
    weft_cost_stage_init(&cost, modes[k % 2]);
    cost.times[WEFT_OP_B] = times[k / 2];
    for (unsigned round = 0; round < 20; round++) {
      const int64_t begin = clock_ns();
      assert_int_equal(ask(cost.stage.ops->backward, &cost, 0, false, &ready_at), WEFT_OK);
      assert_true(clock_ns() - begin >= times[k / 2]); /* how much more, the machine decides */
    }
  }
}

static void count_poke(void *context) { (*(uint32_t *)context)++; }

/* While it takes its time it pokes, where poking matters; it is as long as ever. */
static void pokes(void **state) {
  (void)state;
  static const enum weft_cost_mode modes[] = {WEFT_COST_SLEEP, WEFT_COST_SPIN};
  for (unsigned k = 0; k < 2; k++) {
    const int64_t time = 2000 * 1000;
    struct weft_cost_stage cost;
    struct weft_error error;
    uint32_t pokes = 0;
    struct weft_stage_call call = {.progress = count_poke, .progress_context = &pokes};
    weft_cost_stage_init(&cost, modes[k]);
    cost.times[WEFT_OP_F] = time;
    const int64_t begin = clock_ns();
    assert_int_equal(cost.stage.ops->forward(&cost.stage, &call, &error), WEFT_OK);
    assert_true(clock_ns() - begin >= time);
    assert_true(pokes >= 2); /* at its beginning and at its end, if the machine lets it no more */
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_are_differences),
      cmocka_unit_test(split_backward_is_the_whole_one),
      cmocka_unit_test(shares_are_added_in_order),
      cmocka_unit_test(microbatches_may_be_smaller),
      cmocka_unit_test(first_stage_needs_no_input_grads),
      cmocka_unit_test(loss_in_eval),
      cmocka_unit_test(wrong_shapes_are_refused),
      cmocka_unit_test(parameters_come_from_stage_and_seed),
      cmocka_unit_test(create_survives_failing_memory),
      cmocka_unit_test(absurd_widths_are_refused),
      cmocka_unit_test(virtual_time_per_op),
      cmocka_unit_test(real_time),
      cmocka_unit_test(pokes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
