/* Splitting batches and merging outputs: against explicit tables and a plain
 * reference on random shapes, every error, every failing allocation, and no
 * allocation once a step has been made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "run/batch/batch_in.h"
#include "run/batch/batch_out.h"
#include "support_memory.h"

#define ROOM 4096u

static struct weft_tensor_shape shape_of(enum weft_dtype dtype, uint32_t dim_count,
                                         const uint64_t *dims) {
  struct weft_tensor_shape shape = {.dtype = (uint8_t)dtype, .dim_count = (uint8_t)dim_count};
  for (uint32_t k = 0; k < dim_count; k++) {
    shape.dims[k] = dims[k];
  }
  return shape;
}
#define SHAPE(dtype, ...) \
  shape_of(dtype, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), (uint64_t[]){__VA_ARGS__})

static uint64_t elements_of(const struct weft_tensor_shape *shape) {
  uint64_t elements = 1;
  for (uint32_t k = 0; k < shape->dim_count; k++) {
    elements *= shape->dims[k];
  }
  return elements;
}

/* The element at these indices, by the book. */
static uint64_t position(const struct weft_tensor_shape *shape, const uint64_t *index) {
  uint64_t at = 0;
  for (uint32_t k = 0; k < shape->dim_count; k++) {
    at = at * shape->dims[k] + index[k];
  }
  return at;
}

static void indices(const struct weft_tensor_shape *shape, uint64_t at, uint64_t *index) {
  for (uint32_t k = shape->dim_count; k-- > 0;) {
    index[k] = at % shape->dims[k];
    at /= shape->dims[k];
  }
}

static void check_failed(enum weft_status status, const struct weft_error *error,
                         enum weft_status expected, const char *const *words) {
  assert_int_equal(status, expected);
  assert_int_equal(error->status, expected);
  assert_true(error->hint[0] != '\0' || expected == WEFT_ERR_MEMORY);
  for (; *words != NULL; words++) {
    if (strstr(error->message, *words) == NULL) {
      fail_msg("\"%s\" does not say \"%s\"", error->message, *words);
    }
  }
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- Splitting ---- */

/* What torch.tensor_split(range(n), m) gives. */
static void test_sizes_are_those_of_torch(void **state) {
  (void)state;
  static const struct {
    uint64_t n;
    uint32_t m;
    uint64_t sizes[8];
  } cases[] = {
      {1, 1, {1}},
      {8, 1, {8}},
      {8, 4, {2, 2, 2, 2}},
      {7, 3, {3, 2, 2}},
      {10, 4, {3, 3, 2, 2}},
      {11, 4, {3, 3, 3, 2}},
      {5, 5, {1, 1, 1, 1, 1}},
      {6, 5, {2, 1, 1, 1, 1}},
      {9, 5, {2, 2, 2, 2, 1}},
      {12, 5, {3, 3, 2, 2, 2}},
      {100, 7, {15, 15, 14, 14, 14, 14, 14}},
      {17, 8, {3, 2, 2, 2, 2, 2, 2, 2}},
      {15, 8, {2, 2, 2, 2, 2, 2, 2, 1}},
  };
  static unsigned char data[2 * 100];
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    for (uint32_t dim = 0; dim < 2; dim++) {
      struct weft_batch_in mb = {0};
      const struct weft_chunk chunk = {.dim = dim};
      const struct weft_tensor tensor = {
          .data = data,
          .shape = dim == 0 ? SHAPE(WEFT_U8, cases[c].n, 2) : SHAPE(WEFT_U8, 2, cases[c].n)};
      assert_int_equal(weft_batch_in_split(&mb, &tensor, 1, &chunk, cases[c].m, "input", NULL),
                       WEFT_OK);
      for (uint32_t k = 0; k < cases[c].m; k++) {
        assert_int_equal(mb.items[k].items[0].shape.dims[dim], cases[c].sizes[k]);
        assert_int_equal(mb.items[k].items[0].shape.dims[1 - dim], 2);
      }
      weft_batch_in_finish(&mb);
    }
  }
}

struct sample {
  struct weft_tensor tensor;
  struct weft_chunk chunk;
};

static void make_sample(struct weft_random *random, uint32_t parts, struct sample *sample,
                        unsigned char *data) {
  struct weft_tensor_shape shape = {
      .dtype = (uint8_t)(1 + weft_random_below(random, WEFT_DTYPE_END - 1)),
      .dim_count = (uint8_t)(1 + weft_random_below(random, 4))};
  for (uint32_t k = 0; k < shape.dim_count; k++) {
    shape.dims[k] = 1 + weft_random_below(random, 4);
  }
  sample->chunk = (struct weft_chunk){
      .kind = weft_random_below(random, 5) == 0 ? WEFT_CHUNK_REPLICATE : WEFT_CHUNK_SPLIT,
      .dim = weft_random_below(random, shape.dim_count)};
  shape.dims[sample->chunk.dim] = parts + weft_random_below(random, 9);
  const uint64_t bytes = elements_of(&shape) * weft_dtype_size((enum weft_dtype)shape.dtype);
  assert_true(bytes <= ROOM * 8);
  for (uint64_t k = 0; k < bytes; k++) {
    data[k] = (unsigned char)weft_random_next(random);
  }
  sample->tensor = (struct weft_tensor){.name = "sample", .data = data, .shape = shape};
}

/* Every element of every chunk is where it belongs. */
static void check_chunks(const struct weft_batch_in *mb, uint32_t number,
                         const struct sample *sample) {
  const struct weft_tensor *whole = &sample->tensor;
  const uint64_t size = weft_dtype_size((enum weft_dtype)whole->shape.dtype);
  uint64_t begin = 0;
  for (uint32_t part = 0; part < mb->count; part++) {
    const struct weft_tensor *chunk = &mb->items[part].items[number];
    assert_ptr_equal(chunk->name, whole->name);
    assert_int_equal(chunk->shape.dtype, whole->shape.dtype);
    assert_int_equal(chunk->shape.dim_count, whole->shape.dim_count);
    for (uint64_t k = 0; k < elements_of(&chunk->shape); k++) {
      uint64_t index[WEFT_DIMS_MAX];
      indices(&chunk->shape, k, index);
      index[sample->chunk.dim] += begin;
      assert_memory_equal((unsigned char *)chunk->data + k * size,
                          (unsigned char *)whole->data + position(&whole->shape, index) * size,
                          size);
    }
    begin += sample->chunk.kind == WEFT_CHUNK_SPLIT ? chunk->shape.dims[sample->chunk.dim] : 0;
  }
  assert_true(sample->chunk.kind != WEFT_CHUNK_SPLIT ||
              begin == whole->shape.dims[sample->chunk.dim]);
}

static void as_boundary(const struct weft_batch_in *mb, struct weft_boundary *boundary) {
  *boundary = (struct weft_boundary){.tensor_count = mb->items[0].count};
  for (uint32_t t = 0; t < boundary->tensor_count; t++) {
    boundary->tensors[t].largest = mb->items[0].items[t].shape; /* the first is the longest */
    boundary->tensors[t].name = mb->items[0].items[t].name;
  }
}

static void shuffle(struct weft_random *random, uint32_t *order, uint32_t count) {
  for (uint32_t k = 0; k < count; k++) {
    const uint32_t other = weft_random_below(random, k + 1);
    order[k] = order[other];
    order[other] = k;
  }
}

/* Concatenated again, the chunks are what was split. */
static void check_round_trip(struct weft_random *random, const struct weft_batch_in *mb,
                             struct weft_batch_out *outputs, const struct sample *samples) {
  struct weft_boundary boundary;
  struct weft_merge merges[WEFT_TENSORS_MAX];
  struct weft_tensors merged;
  struct weft_error error;
  uint32_t order[16];
  as_boundary(mb, &boundary);
  shuffle(random, order, mb->count);
  assert_int_equal(weft_batch_out_begin(outputs, &boundary, mb->count, &error), WEFT_OK);
  for (uint32_t k = 0; k < mb->count; k++) {
    assert_int_equal(weft_batch_out_keep(outputs, order[k], &mb->items[order[k]], NULL, &error),
                     WEFT_OK);
  }
  for (uint32_t t = 0; t < boundary.tensor_count; t++) {
    merges[t] = (struct weft_merge){WEFT_MERGE_CONCATENATE, samples[t].chunk.dim};
  }
  assert_int_equal(weft_batch_out_merge(outputs, merges, &merged, &error), WEFT_OK);
  for (uint32_t t = 0; t < boundary.tensor_count; t++) {
    const struct weft_tensor *whole = &samples[t].tensor;
    uint64_t bytes;
    assert_ptr_equal(merged.items[t].name, whole->name);
    assert_int_equal((uintptr_t)merged.items[t].data % 64, 0);
    if (samples[t].chunk.kind == WEFT_CHUNK_SPLIT) {
      assert_memory_equal(&merged.items[t].shape, &whole->shape, sizeof whole->shape);
      assert_true(weft_shape_bytes(&whole->shape, &bytes));
      assert_memory_equal(merged.items[t].data, whole->data, bytes);
    } else {
      assert_int_equal(merged.items[t].shape.dims[samples[t].chunk.dim],
                       mb->count * whole->shape.dims[samples[t].chunk.dim]);
    }
  }
}

static void test_random_shapes(void **state) {
  (void)state;
  struct weft_random random = {20};
  struct weft_batch_in mb = {0};
  struct weft_batch_out outputs = {0};
  static unsigned char data[3][ROOM * 8];
  for (int trial = 0; trial < 2000; trial++) {
    struct sample samples[3];
    struct weft_tensor tensors[3];
    struct weft_chunk chunks[3];
    struct weft_error error;
    const uint32_t parts = 1 + weft_random_below(&random, 16);
    for (uint32_t t = 0; t < 3; t++) {
      make_sample(&random, parts, &samples[t], data[t]);
      tensors[t] = samples[t].tensor;
      chunks[t] = samples[t].chunk;
    }
    assert_int_equal(weft_batch_in_split(&mb, tensors, 3, chunks, parts, "input", &error), WEFT_OK);
    assert_int_equal(mb.count, parts);
    for (uint32_t t = 0; t < 3; t++) {
      check_chunks(&mb, t, &samples[t]);
    }
    check_round_trip(&random, &mb, &outputs, samples);
  }
  weft_batch_in_finish(&mb);
  weft_batch_out_finish(&outputs);
}

static void test_views_and_copies(void **state) {
  (void)state;
  static float data[24];
  struct weft_batch_in mb = {0};
  const struct weft_tensor tensors[4] = {
      {.name = NULL, .data = data, .shape = SHAPE(WEFT_F32, 6, 4)},
      {.name = NULL, .data = data, .shape = SHAPE(WEFT_F32, 4, 6)},
      {.name = "all", .data = data, .shape = SHAPE(WEFT_F32, 24)},
      {.name = NULL, .data = data, .shape = SHAPE(WEFT_F32, 1, 24)}};
  const struct weft_chunk chunks[4] = {
      {.dim = 0}, {.dim = 1}, {.kind = WEFT_CHUNK_REPLICATE, .dim = 9}, {.dim = 1}};
  assert_int_equal(weft_batch_in_split(&mb, tensors, 4, chunks, 4, "input", NULL), WEFT_OK);
  const uint64_t first_rows[4] = {0, 2, 4, 5};
  for (uint32_t k = 0; k < 4; k++) {
    const struct weft_tensor *items = mb.items[k].items;
    assert_int_equal(mb.items[k].count, 4);
    assert_ptr_equal(items[0].data, data + 4 * first_rows[k]);
    assert_true((float *)items[1].data < data || (float *)items[1].data >= data + 24);
    assert_int_equal((uintptr_t)items[1].data % 64, 0);
    assert_ptr_equal(items[2].data, data);
    assert_int_equal(items[2].shape.dims[0], 24);
    assert_string_equal(items[2].name, "all");
    assert_ptr_equal(items[3].data, data + k * 6); /* in one piece */
  }
  assert_int_equal(weft_batch_in_split(&mb, &tensors[1], 1, &chunks[1], 1, "input", NULL), WEFT_OK);
  assert_ptr_equal(mb.items[0].items[0].data, data);
  assert_int_equal(weft_batch_in_split(&mb, NULL, 0, NULL, 5, "target", NULL), WEFT_OK);
  assert_int_equal(mb.items[4].count, 0);
  weft_batch_in_finish(&mb);
}

/* A tensor without data has chunks without data. */
static void test_empty_tensors(void **state) {
  (void)state;
  static unsigned char byte;
  struct weft_batch_in mb = {0};
  const struct weft_tensor tensors[4] = {
      {.name = NULL, .data = NULL, .shape = SHAPE(WEFT_F32, 4, 0)},
      {.name = NULL, .data = &byte, .shape = SHAPE(WEFT_F32, 0, 4)},
      {.name = NULL, .data = NULL, .shape = SHAPE(WEFT_F32, 3, 4, 0)},
      {.name = NULL, .data = &byte, .shape = SHAPE(WEFT_F64, 0, 4, UINT64_C(1) << 58)}};
  const struct weft_chunk chunks[4] = {{.dim = 0}, {.dim = 1}, {.dim = 1}, {.dim = 1}};
  assert_int_equal(weft_batch_in_split(&mb, tensors, 4, chunks, 4, "input", NULL), WEFT_OK);
  for (uint32_t k = 0; k < 4; k++) {
    assert_null(mb.items[k].items[0].data);
    assert_ptr_equal(mb.items[k].items[1].data, &byte);
    assert_null(mb.items[k].items[2].data);
    assert_ptr_equal(mb.items[k].items[3].data, &byte);
  }
  weft_batch_in_finish(&mb);
}

static void refuse(const struct weft_tensor *tensor, const struct weft_chunk *chunk, uint32_t parts,
                   const char *const *words) {
  struct weft_batch_in mb = {0};
  struct weft_error error = {0};
  check_failed(weft_batch_in_split(&mb, tensor, 1, chunk, parts, "input", &error), &error,
               WEFT_ERR_USAGE, words);
  assert_int_equal(mb.count, 0);
  assert_null(mb.items);
  weft_batch_in_finish(&mb);
}

static void test_wrong_batches(void **state) {
  (void)state;
  static float data[64];
  const struct weft_chunk second = {.dim = 1};
  const struct weft_chunk fourth = {.dim = 3};
  const struct weft_chunk strange = {.kind = (enum weft_chunk_kind)7};
  struct weft_tensor tensor = {.name = "tokens", .data = data, .shape = SHAPE(WEFT_F32, 3, 5)};
  struct weft_tensors nine = {0};
  struct weft_error error = {0};
  struct weft_batch_in mb = {0};
  refuse(&tensor, NULL, 4,
         WORDS("input 0 (tokens)", "f32[3, 5]", "3 along dimension 0", "4 microbatches"));
  refuse(&tensor, &second, 6, WORDS("5 along dimension 1", "6 microbatches"));
  refuse(&tensor, &fourth, 1, WORDS("tokens", "2 dimensions", "dimension 3"));
  refuse(&tensor, &strange, 1, WORDS("tokens", "way 7"));
  tensor.name = NULL;
  tensor.data = NULL;
  refuse(&tensor, NULL, 3, WORDS("input 0 is", "60 bytes", "NULL"));
  tensor.data = data;
  tensor.shape.dtype = WEFT_DTYPE_END;
  refuse(&tensor, NULL, 3, WORDS("input 0", "dtype 11"));
  tensor.shape = (struct weft_tensor_shape){.dtype = WEFT_I8, .dim_count = 7};
  refuse(&tensor, NULL, 3, WORDS("7 dimensions", "at most 6"));
  tensor.shape = SHAPE(WEFT_F64, UINT64_C(1) << 31, UINT64_C(1) << 30);
  refuse(&tensor, NULL, 3, WORDS("f64[2147483648, 1073741824]", "more bytes"));
  tensor.shape = SHAPE(WEFT_F64, UINT64_MAX, UINT64_MAX);
  refuse(&tensor, NULL, 3, WORDS("more bytes"));
  tensor.shape = (struct weft_tensor_shape){.dtype = WEFT_F32};
  refuse(&tensor, NULL, 1, WORDS("f32[]", "0 dimensions", "dimension 0"));
  tensor.shape = SHAPE(WEFT_F32, 0);
  refuse(&tensor, NULL, 1, WORDS("0 along dimension 0"));
  check_failed(weft_batch_in_split(&mb, nine.items, 9, NULL, 1, "target", &error), &error,
               WEFT_ERR_USAGE, WORDS("9 target tensors", "at most 8"));
  tensor.name = "a\nb";
  refuse(&tensor, NULL, 1, WORDS("a\\x0ab"));
}

static void test_ready_made(void **state) {
  (void)state;
  static float data[8];
  struct weft_batch_in mb = {0};
  struct weft_error error = {0};
  struct weft_tensors items[3];
  for (int k = 0; k < 3; k++) {
    items[k] = (struct weft_tensors){
        .count = 2,
        .items = {{.name = NULL, .data = data, .shape = SHAPE(WEFT_F32, (uint64_t)k + 1, 2)},
                  {.name = "mask", .data = data, .shape = {.dtype = WEFT_BOOL}}},
    };
  }
  assert_int_equal(weft_batch_in_borrow(&mb, items, 3, "input", &error), WEFT_OK);
  assert_ptr_equal(mb.items, items);
  assert_int_equal(mb.count, 3);
  items[2].count = 1;
  check_failed(weft_batch_in_borrow(&mb, items, 3, "input", &error), &error, WEFT_ERR_USAGE,
               WORDS("microbatch 2 has 1 input", "microbatch 0 has 2"));
  assert_null(mb.items);
  items[2].count = 2;
  items[1].items[1].shape.dtype = WEFT_U8;
  check_failed(weft_batch_in_borrow(&mb, items, 3, "target", &error), &error, WEFT_ERR_USAGE,
               WORDS("target 1 (mask) of microbatch 1", "u8[]", "bool[]"));
  items[1].items[1].shape.dtype = WEFT_BOOL;
  items[2].items[0].shape = SHAPE(WEFT_F32, 2);
  check_failed(weft_batch_in_borrow(&mb, items, 3, "input", &error), &error, WEFT_ERR_USAGE,
               WORDS("input 0 of microbatch 2", "f32[2]", "f32[1, 2]"));
  items[2].items[0].shape.dtype = 0;
  check_failed(weft_batch_in_borrow(&mb, items, 3, "input", &error), &error, WEFT_ERR_USAGE,
               WORDS("input 0 of microbatch 2", "dtype 0"));
  items[0].items[0].data = NULL;
  check_failed(weft_batch_in_borrow(&mb, items, 3, "input", &error), &error, WEFT_ERR_USAGE,
               WORDS("input 0 of microbatch 0", "NULL"));
  items[0].count = 9;
  check_failed(weft_batch_in_borrow(&mb, items, 1, "input", &error), &error, WEFT_ERR_USAGE,
               WORDS("9 input"));
  weft_batch_in_finish(&mb);
}

/* ---- Merging ---- */

enum { PARTS = 5, WIDTH = 7 };

struct numbers {
  float f32[PARTS][WIDTH];
  double f64[PARTS][WIDTH];
};

static void make_numbers(struct numbers *numbers) {
  struct weft_random random = {3};
  for (int m = 0; m < PARTS; m++) {
    for (int k = 0; k < WIDTH; k++) {
      numbers->f64[m][k] = (double)weft_random_next(&random) / 1e17 - 90;
      numbers->f32[m][k] = (float)numbers->f64[m][k];
    }
  }
}

static void test_sum_and_mean(void **state) {
  (void)state;
  struct numbers numbers;
  struct weft_batch_out outputs = {0};
  struct weft_tensors merged;
  struct weft_boundary boundary = {.tensor_count = 4};
  const struct weft_merge merges[4] = {
      {WEFT_MERGE_SUM, 5}, {WEFT_MERGE_MEAN, 0}, {WEFT_MERGE_SUM, 0}, {WEFT_MERGE_MEAN, 0}};
  make_numbers(&numbers);
  for (uint32_t t = 0; t < 4; t++) {
    boundary.tensors[t].largest = SHAPE(t < 2 ? WEFT_F32 : WEFT_F64, WIDTH);
  }
  boundary.tensors[3].largest = (struct weft_tensor_shape){.dtype = WEFT_F64}; /* one number */
  assert_int_equal(weft_batch_out_begin(&outputs, &boundary, PARTS, NULL), WEFT_OK);
  for (uint32_t m = PARTS; m-- > 0;) {
    struct weft_tensors tensors = {.count = 4};
    for (uint32_t t = 0; t < 4; t++) {
      tensors.items[t].shape = boundary.tensors[t].largest;
      tensors.items[t].data = t < 2 ? (void *)numbers.f32[m] : (void *)numbers.f64[m];
    }
    assert_int_equal(weft_batch_out_keep(&outputs, m, &tensors, NULL, NULL), WEFT_OK);
  }
  assert_int_equal(weft_batch_out_merge(&outputs, merges, &merged, NULL), WEFT_OK);
  for (int k = 0; k < WIDTH; k++) {
    volatile float sum = numbers.f32[0][k];
    volatile double sum_f64 = numbers.f64[0][k];
    for (int m = 1; m < PARTS; m++) {
      sum += numbers.f32[m][k];
      sum_f64 += numbers.f64[m][k];
    }
    const float mean = sum / (float)PARTS;
    assert_memory_equal((float *)merged.items[0].data + k, (const float *)&sum, sizeof sum);
    assert_memory_equal((float *)merged.items[1].data + k, &mean, sizeof mean);
    assert_memory_equal((double *)merged.items[2].data + k, (const double *)&sum_f64,
                        sizeof sum_f64);
    if (k == 0) {
      const double mean_f64 = sum_f64 / (double)PARTS;
      assert_memory_equal(merged.items[3].data, &mean_f64, sizeof mean_f64);
    }
  }
  assert_int_equal(merged.items[3].shape.dim_count, 0);
  weft_batch_out_finish(&outputs);
}

/* Two microbatches with these shapes, merged; the largest fits both. */
static enum weft_status merge_two(struct weft_tensor_shape a, struct weft_tensor_shape b,
                                  struct weft_merge merge, struct weft_tensors *merged,
                                  struct weft_batch_out *outputs, struct weft_error *error) {
  static unsigned char data[2][ROOM];
  struct weft_boundary boundary = {.tensor_count = 1, .tensors = {{.name = "y", .largest = a}}};
  for (uint32_t k = 0; k < a.dim_count; k++) {
    const uint64_t dim = a.dims[k] > b.dims[k] ? a.dims[k] : b.dims[k];
    boundary.tensors[0].largest.dims[k] = dim;
  }
  memset(data[0], 1, ROOM);
  memset(data[1], 2, ROOM);
  assert_int_equal(weft_batch_out_begin(outputs, &boundary, 2, error), WEFT_OK);
  for (uint32_t m = 0; m < 2; m++) {
    const struct weft_tensors tensors = {1, {{.data = data[m], .shape = m == 0 ? a : b}}};
    assert_int_equal(weft_batch_out_keep(outputs, m, &tensors, NULL, error), WEFT_OK);
  }
  return weft_batch_out_merge(outputs, &merge, merged, error);
}

static void test_wrong_merges(void **state) {
  (void)state;
  struct weft_batch_out outputs = {0};
  struct weft_error error = {0};
  struct weft_tensors merged = {.count = 77};
  const struct weft_tensor_shape scalar = {.dtype = WEFT_F32};
  const struct weft_tensor_shape a = SHAPE(WEFT_F32, 2, 3);
  const struct weft_tensor_shape b = SHAPE(WEFT_F32, 2, 4);
  const struct weft_tensor_shape whole = SHAPE(WEFT_I32, 2, 3);
  const struct weft_merge concatenate = {WEFT_MERGE_CONCATENATE, 0};
  check_failed(merge_two(a, b, concatenate, &merged, &outputs, &error), &error, WEFT_ERR_USAGE,
               WORDS("output 0 (y) of microbatch 1", "f32[2, 4]", "f32[2, 3]", "dimension 1"));
  check_failed(merge_two(a, b, (struct weft_merge){WEFT_MERGE_SUM, 0}, &merged, &outputs, &error),
               &error, WEFT_ERR_USAGE, WORDS("microbatch 1", "f32[2, 4]", "dimension 1"));
  check_failed(merge_two(scalar, scalar, concatenate, &merged, &outputs, &error), &error,
               WEFT_ERR_USAGE, WORDS("output 0 (y)", "f32[]", "0 dimensions"));
  assert_non_null(strstr(error.hint, "WEFT_MERGE_SUM"));
  check_failed(
      merge_two(a, a, (struct weft_merge){WEFT_MERGE_CONCATENATE, 2}, &merged, &outputs, &error),
      &error, WEFT_ERR_USAGE, WORDS("f32[2, 3]", "2 dimensions", "dimension 2"));
  check_failed(
      merge_two(whole, whole, (struct weft_merge){WEFT_MERGE_MEAN, 0}, &merged, &outputs, &error),
      &error, WEFT_ERR_USAGE, WORDS("output 0 (y) is i32", "mean"));
  check_failed(
      merge_two(a, a, (struct weft_merge){(enum weft_merge_kind)9, 0}, &merged, &outputs, &error),
      &error, WEFT_ERR_USAGE, WORDS("y", "way 9"));
  assert_int_equal(merged.count, 77); /* written on success only */
  weft_batch_out_finish(&outputs);
}

/* Uneven along the dimension, empty parts included. */
static void test_concatenation(void **state) {
  (void)state;
  struct weft_batch_out outputs = {0};
  struct weft_error error = {0};
  struct weft_tensors merged;
  static const unsigned char expected[10] = {1, 2, 2, 2, 2, 1, 2, 2, 2, 2};
  assert_int_equal(
      merge_two(SHAPE(WEFT_I8, 2, 1), SHAPE(WEFT_I8, 2, 4),
                (struct weft_merge){WEFT_MERGE_CONCATENATE, 1}, &merged, &outputs, &error),
      WEFT_OK);
  assert_int_equal(merged.items[0].shape.dims[1], 5);
  assert_memory_equal(merged.items[0].data, expected, sizeof expected);
  assert_int_equal(merge_two(SHAPE(WEFT_I8, 0, 3), SHAPE(WEFT_I8, 2, 3), (struct weft_merge){0},
                             &merged, &outputs, &error),
                   WEFT_OK);
  assert_int_equal(merged.items[0].shape.dims[0], 2);
  assert_memory_equal(merged.items[0].data, "\2\2\2\2\2\2", 6);
  assert_int_equal(merge_two(SHAPE(WEFT_I8, 3, 0), SHAPE(WEFT_I8, 2, 0), (struct weft_merge){0},
                             &merged, &outputs, &error),
                   WEFT_OK);
  assert_int_equal(merged.items[0].shape.dims[0], 5);
  /* No data, and dimensions whose sum cannot be counted. */
  const struct weft_tensor_shape endless = SHAPE(WEFT_I8, UINT64_MAX, 0);
  assert_int_equal(merge_two(endless, endless, (struct weft_merge){0}, &merged, &outputs, &error),
                   WEFT_ERR_MEMORY);
  weft_batch_out_finish(&outputs);
}

static void test_wrong_outputs(void **state) {
  (void)state;
  static float data[64];
  struct weft_batch_out outputs = {0};
  struct weft_error error = {0};
  struct weft_boundary boundary = {
      .tensor_count = 1, .tensors = {{.name = "logits", .largest = SHAPE(WEFT_F32, 4, 4)}}};
  struct weft_tensors tensors = {1, {{.name = NULL, .data = data, .shape = SHAPE(WEFT_F32, 4, 4)}}};
  assert_int_equal(weft_batch_out_begin(&outputs, &boundary, 2, &error), WEFT_OK);
  tensors.items[0].shape = SHAPE(WEFT_F32, 4, 5);
  check_failed(weft_batch_out_keep(&outputs, 1, &tensors, NULL, &error), &error, WEFT_ERR_USAGE,
               WORDS("output 0 (logits) of microbatch 1", "f32[4, 5]", "f32[4, 4]"));
  tensors.items[0].shape = SHAPE(WEFT_F64, 4, 4);
  check_failed(weft_batch_out_keep(&outputs, 1, &tensors, NULL, &error), &error, WEFT_ERR_USAGE,
               WORDS("f64[4, 4]"));
  tensors.items[0].shape = SHAPE(WEFT_F32, 4);
  check_failed(weft_batch_out_keep(&outputs, 1, &tensors, NULL, &error), &error, WEFT_ERR_USAGE,
               WORDS("f32[4]"));
  boundary.tensors[0].largest = SHAPE(WEFT_I8, UINT64_C(1) << 60);
  check_failed(weft_batch_out_begin(&outputs, &boundary, 16, &error), &error, WEFT_ERR_MEMORY,
               WORDS("memory"));
  boundary.tensor_count = 0;
  assert_int_equal(weft_batch_out_begin(&outputs, &boundary, 1, &error), WEFT_OK);
  tensors.count = 0;
  assert_int_equal(weft_batch_out_keep(&outputs, 0, &tensors, NULL, &error), WEFT_OK);
  assert_int_equal(weft_batch_out_merge(&outputs, NULL, &tensors, &error), WEFT_OK);
  weft_batch_out_finish(&outputs);
}

/* ---- Memory ---- */

/* A step's worth: split along dimension 1, everything kept and merged. */
static enum weft_status whole_step(struct weft_batch_in *mb, struct weft_batch_out *outputs,
                                   uint32_t parts, struct weft_error *error) {
  static float data[32 * 32];
  const struct weft_tensor tensor = {.name = NULL, .data = data, .shape = SHAPE(WEFT_F32, 32, 32)};
  const struct weft_chunk chunk = {.dim = 1};
  struct weft_boundary boundary;
  struct weft_tensors merged;
  enum weft_status status = weft_batch_in_split(mb, &tensor, 1, &chunk, parts, "input", error);
  if (status != WEFT_OK) {
    return status;
  }
  as_boundary(mb, &boundary);
  status = weft_batch_out_begin(outputs, &boundary, parts, error);
  for (uint32_t k = 0; k < parts && status == WEFT_OK; k++) {
    status = weft_batch_out_keep(outputs, k, &mb->items[k], NULL, error);
  }
  const struct weft_merge merge = {WEFT_MERGE_CONCATENATE, 1};
  return status == WEFT_OK ? weft_batch_out_merge(outputs, &merge, &merged, error) : status;
}

static void test_equal_steps_allocate_nothing(void **state) {
  (void)state;
  struct test_memory memory;
  test_memory_init(&memory);
  struct weft_batch_in mb = {.allocator = &memory.allocator};
  struct weft_batch_out outputs = {.allocator = &memory.allocator};
  assert_int_equal(whole_step(&mb, &outputs, 8, NULL), WEFT_OK);
  const uint64_t calls = memory.calls;
  assert_true(calls > 0);
  assert_int_equal(whole_step(&mb, &outputs, 8, NULL), WEFT_OK);
  assert_int_equal(whole_step(&mb, &outputs, 4, NULL), WEFT_OK); /* less needs no more */
  assert_int_equal(whole_step(&mb, &outputs, 8, NULL), WEFT_OK);
  assert_int_equal(memory.calls, calls);
  assert_int_equal(whole_step(&mb, &outputs, 32, NULL), WEFT_OK);
  assert_true(memory.calls > calls);
  weft_batch_in_finish(&mb);
  weft_batch_out_finish(&outputs);
  assert_int_equal(memory.blocks, 0);
  weft_batch_in_finish(&mb); /* twice is fine */
  weft_batch_out_finish(&outputs);
}

/* Fails at every allocation in turn, on the way up and when growing; the same
 * objects work afterwards. */
static void test_every_allocation_may_fail(void **state) {
  (void)state;
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t n = 1; status != WEFT_OK; n++) {
    struct test_memory memory;
    struct weft_error error = {0};
    test_memory_init(&memory);
    struct weft_batch_in mb = {.allocator = &memory.allocator};
    struct weft_batch_out outputs = {.allocator = &memory.allocator};
    memory.fail_at = n;
    status = whole_step(&mb, &outputs, 3, &error);
    if (status == WEFT_OK) {
      status = whole_step(&mb, &outputs, 32, &error);
    }
    assert_true(status == WEFT_OK || status == WEFT_ERR_MEMORY);
    assert_true(status == WEFT_OK || error.message[0] != '\0');
    assert_true(n < 100);
    memory.fail_at = 0;
    assert_int_equal(whole_step(&mb, &outputs, 16, &error), WEFT_OK);
    weft_batch_in_finish(&mb);
    weft_batch_out_finish(&outputs);
    assert_int_equal(memory.blocks, 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sizes_are_those_of_torch),
      cmocka_unit_test(test_random_shapes),
      cmocka_unit_test(test_views_and_copies),
      cmocka_unit_test(test_empty_tensors),
      cmocka_unit_test(test_wrong_batches),
      cmocka_unit_test(test_ready_made),
      cmocka_unit_test(test_sum_and_mean),
      cmocka_unit_test(test_concatenation),
      cmocka_unit_test(test_wrong_merges),
      cmocka_unit_test(test_wrong_outputs),
      cmocka_unit_test(test_equal_steps_allocate_nothing),
      cmocka_unit_test(test_every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
