/* The runtime on a device whose memory the host cannot access: batches are split on it and
 * outputs merged from it, equal steps allocate nothing on it, and ranks with other kinds of
 * memory are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run/batch/batch_in.h"
#include "run/batch/batch_out.h"
#include "support_linear_model.h"
#include "support_pipelines.h"
#include "support_protected_device.h"

enum { ROWS = 3, COLUMNS = 7, PARTS = 3 };

static void copy_to_device(void *to, const void *from, uint64_t bytes) {
  struct weft_error error;
  const struct weft_copy copy = {
      .to = to, .to_device = protected_device(), .from = from, .row_bytes = bytes, .rows = 1};
  assert_int_equal(weft_copy(&copy, NULL, &error), WEFT_OK);
}

/* Along the second dimension chunks are copied; the same numbers come out as on the host. */
static void test_split(void **state) {
  (void)state;
  struct weft_device *device = protected_device();
  const struct weft_chunk chunk = {.kind = WEFT_CHUNK_SPLIT, .dim = 1};
  struct weft_batch_in on_host = {.allocator = NULL}, on_device = {.allocator = NULL};
  struct weft_error error;
  float data[ROWS * COLUMNS];
  for (int k = 0; k < ROWS * COLUMNS; k++) {
    data[k] = (float)k;
  }
  struct weft_tensor tensor = {
      .data = data, .shape = {.dtype = WEFT_F32, .dim_count = 2, .dims = {ROWS, COLUMNS}}};
  assert_int_equal(weft_batch_in_split(&on_host, &tensor, 1, &chunk, PARTS, "input", &error),
                   WEFT_OK);
  tensor.device = device;
  tensor.data = weft_device_allocate(device, NULL, sizeof data);
  copy_to_device(tensor.data, data, sizeof data);
  for (int step = 0; step < 2; step++) {
    const uint64_t allocations = protected_device_allocations();
    assert_int_equal(weft_batch_in_split(&on_device, &tensor, 1, &chunk, PARTS, "input", &error),
                     WEFT_OK);
    assert_true(step == 0 || protected_device_allocations() == allocations);
  }
  for (uint32_t m = 0; m < PARTS; m++) {
    const struct weft_tensor *expected = &on_host.items[m].items[0];
    const struct weft_tensor *found = &on_device.items[m].items[0];
    uint64_t bytes;
    assert_ptr_equal(found->device, device);
    assert_true(weft_shape_bytes(&found->shape, &bytes));
    assert_memory_equal(&found->shape, &expected->shape, sizeof found->shape);
    assert_memory_equal(test_tensor_view(found), expected->data, bytes);
  }
  weft_batch_in_finish(&on_host);
  weft_batch_in_finish(&on_device);
  weft_device_free(device, NULL, tensor.data, sizeof data);
  assert_int_equal(protected_device_blocks(), 0);
}

static uint64_t copies;

static enum weft_status count_copy(struct weft_device *device, const struct weft_copy *copy,
                                   struct weft_stream *stream, struct weft_error *error) {
  struct weft_copy passed = *copy;
  (void)device;
  copies++;
  passed.to_device = protected_device();
  return weft_copy(&passed, stream, error);
}

static void *allocate(struct weft_device *device, const struct weft_allocator *allocator,
                      uint64_t bytes) {
  (void)device;
  return weft_device_allocate(protected_device(), allocator, bytes);
}

static void release(struct weft_device *device, const struct weft_allocator *allocator, void *data,
                    uint64_t bytes) {
  (void)device;
  weft_device_free(protected_device(), allocator, data, bytes);
}

/* Microbatches that are one after the other at both ends are one copy; others, one each. */
static void test_upload(void **state) {
  static const struct weft_device_ops ops = {.name = "counting",
                                             .memory = WEFT_MEMORY_DEVICE,
                                             .allocate = allocate,
                                             .free = release,
                                             .copy = count_copy};
  struct weft_device counting = {.ops = &ops};
  (void)state;
  for (uint32_t columns = COLUMNS; columns <= 16; columns += 16 - COLUMNS) {
    struct weft_batch_in split = {.allocator = NULL};
    struct weft_error error;
    float data[2 * PARTS * 16];
    for (int k = 0; k < 2 * PARTS * 16; k++) {
      data[k] = (float)k;
    }
    const struct weft_tensor tensor = {
        .data = data, .shape = {.dtype = WEFT_F32, .dim_count = 2, .dims = {2 * PARTS, columns}}};
    assert_int_equal(weft_batch_in_split(&split, &tensor, 1, NULL, PARTS, "input", &error),
                     WEFT_OK);
    copies = 0;
    assert_int_equal(weft_batch_in_upload(&split, &counting, NULL, &error), WEFT_OK);
    assert_int_equal(copies, columns == 16 ? 1 : PARTS);
    for (uint32_t m = 0; m < PARTS; m++) {
      assert_memory_equal(test_device_view(protected_device(), split.items[m].items[0].data),
                          split.made.items[m].items[0].data, 2 * columns * sizeof *data);
    }
    weft_batch_in_finish(&split);
  }
}

/* Outputs are merged on the host, from tensors on the device. */
static void test_merge(void **state) {
  (void)state;
  struct weft_device *device = protected_device();
  struct weft_batch_out merge = {.allocator = NULL};
  struct weft_error error;
  struct weft_tensors merged;
  const struct weft_merge sum = {.kind = WEFT_MERGE_SUM};
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {{.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {COLUMNS}}}}};
  float data[COLUMNS];
  struct weft_tensors tensors = {
      .count = 1, .items = {{.device = device, .shape = boundary.tensors[0].largest}}};
  tensors.items[0].data = weft_device_allocate(device, NULL, sizeof data);
  assert_int_equal(weft_batch_out_begin(&merge, &boundary, PARTS, &error), WEFT_OK);
  for (uint32_t m = 0; m < PARTS; m++) {
    for (int k = 0; k < COLUMNS; k++) {
      data[k] = (float)(k + 10 * (int)m);
    }
    copy_to_device(tensors.items[0].data, data, sizeof data);
    assert_int_equal(weft_batch_out_keep(&merge, m, &tensors, NULL, &error), WEFT_OK);
  }
  assert_int_equal(weft_batch_out_merge(&merge, &sum, &merged, &error), WEFT_OK);
  assert_true(weft_device_is_host(merged.items[0].device));
  for (int k = 0; k < COLUMNS; k++) {
    assert_true(((const float *)merged.items[0].data)[k] == (float)(3 * k + 30));
  }
  weft_batch_out_finish(&merge);
  weft_device_free(device, NULL, tensors.items[0].data, sizeof data);
}

/* ---- Pipelines ---- */

struct job {
  struct linear_model model;
  struct weft_named_source source;
  struct weft_pipeline_options options;
  struct weft_tensor inputs, targets;
  struct weft_batch batch;
  struct pipelines pipelines;
};

static void job_init(struct job *job) {
  memset(job, 0, sizeof *job);
  linear_model_init(&job->model, 2, 3, 4, 1);
  job->source = (struct weft_named_source){.schedule = "1F1B", .ranks = 2};
  job->options = weft_pipeline_options_default();
  job->options.source = weft_source_named;
  job->options.source_context = &job->source;
  job->options.microbatch_count = 4;
  job->options.stages = job->model.bases;
  job->options.stage_count = 2;
  job->options.boundaries = &job->model.boundary;
  job->options.boundary_count = 1;
  job->inputs = linear_model_inputs(&job->model);
  job->targets = linear_model_targets(&job->model);
  job->batch = (struct weft_batch){.microbatch_count = 4,
                                   .inputs = &job->inputs,
                                   .input_count = 1,
                                   .targets = &job->targets,
                                   .target_count = 1};
  pipelines_open(&job->pipelines, NULL, &(struct weft_comm_options){.rank_count = 2});
}

static void job_create(struct job *job, uint32_t rank, struct weft_device *device) {
  struct weft_error error;
  job->options.device = device;
  assert_int_equal(weft_pipeline_create(NULL, job->pipelines.transports[rank], &job->options,
                                        &job->pipelines.items[rank], &error),
                   WEFT_OK);
}

static void job_finish(struct job *job) {
  pipelines_close(&job->pipelines);
  linear_model_finish(&job->model);
}

static void test_steps_allocate_nothing(void **state) {
  (void)state;
  struct job job;
  struct weft_error error;
  job_init(&job);
  job_create(&job, 0, protected_device());
  job_create(&job, 1, protected_device());
  const uint64_t allocations = protected_device_allocations();
  assert_true(protected_device_blocks() > 0);
  for (int step = 0; step < 3; step++) {
    assert_int_equal(pipelines_step(&job.pipelines, true, &job.batch, 1, &error), WEFT_OK);
  }
  assert_int_equal(protected_device_allocations(), allocations);
  job_finish(&job);
  assert_int_equal(protected_device_blocks(), 0);
}

/* A buffer that is handed over must be memory that the receiver's stages can use. */
static void test_other_memory_is_refused(void **state) {
  (void)state;
  struct job job;
  struct weft_error error;
  job_init(&job);
  job_create(&job, 0, protected_device());
  job_create(&job, 1, NULL);
  assert_int_equal(pipelines_step(&job.pipelines, true, &job.batch, 1, &error), WEFT_ERR_PROTOCOL);
  assert_non_null(strstr(error.message, "the memory of a protected device"));
  assert_non_null(strstr(error.message, "host"));
  assert_non_null(strstr(error.hint, "same kind of device"));
  job_finish(&job);
  assert_int_equal(protected_device_blocks(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_split),
      cmocka_unit_test(test_upload),
      cmocka_unit_test(test_merge),
      cmocka_unit_test(test_steps_allocate_nothing),
      cmocka_unit_test(test_other_memory_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
