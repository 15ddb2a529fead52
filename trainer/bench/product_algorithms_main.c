/* Measures cublasLt's algorithms for the products of a model on the first GPU, and writes which
 * are the fastest (trainer/cuda/product_choices.h). Takes some seconds, and for GPT-2 124M with
 * 32,768 rows 8 GB of the GPU's memory.
 *
 *     product_algorithms FILE DIM ROWS [VOCABULARY]    (32 sequences of 1,024 tokens: 32768 rows)
 *     WEFT_PRODUCTS=FILE weft train --device cuda ...
 *
 * Algorithms take turns, and the median of rounds counts. Another than the first is taken where it
 * is faster by 1 % or more. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/cuda/gpt_kernels.h"

enum { TRIED = 8, ROUNDS = 7, CALLS = 3, PRODUCTS = 15, DRAWN = 1 << 24 };

struct tuner {
  struct weft_cuda *cuda;
  struct weft_device *device;
  struct weft_cublaslt *lt;
  struct weft_stream *stream;
  struct weft_device_event *events[2];
  uint64_t rows, dim, vocabulary;
  void *x, *w, *c, *y, *aux, *bias, *workspace;
  struct weft_gpt_product_choices choices;
};

/* ---- Memory ---- */

/* Numbers between -1 and 1, the same again and again: a product of zeros would be faster. */
static enum weft_status draw(const struct tuner *t, void **out, uint64_t bytes, const void *numbers,
                             struct weft_error *error) {
  char *data = weft_device_allocate(t->device, NULL, bytes);
  if (data == NULL) {
    return t->device->ops->fail_allocation(t->device, bytes, error);
  }
  for (uint64_t at = 0; at < bytes; at += DRAWN) {
    const uint64_t left = bytes - at;
    WEFT_TRY(weft_copy(&(struct weft_copy){.to = data + at,
                                           .to_device = t->device,
                                           .from = at == 0 ? numbers : data,
                                           .from_device = at == 0 ? NULL : t->device,
                                           .row_bytes = left < DRAWN ? left : DRAWN,
                                           .rows = 1},
                       NULL, error));
  }
  *out = data;
  return WEFT_OK;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static enum weft_status allocate(struct tuner *t, struct weft_error *error) {
  const uint64_t logits = t->rows * t->vocabulary * 2, wide = t->rows * 4 * t->dim * 2;
  const uint64_t table = t->vocabulary * t->dim * 4;
  uint16_t *numbers = malloc(DRAWN);
  struct weft_random random = {.state = 1};
  if (numbers == NULL) {
    return weft_fail_memory(error, DRAWN);
  }
  for (uint32_t k = 0; k < DRAWN / 2; k++) { /* 2^-1 to 2^-4, either sign */
    const uint64_t bits = weft_random_next(&random);
    numbers[k] = (uint16_t)((bits & 0x8000) | (123 + (bits >> 16) % 4) << 7 | (bits & 0x7f));
  }
  enum weft_status status = draw(t, &t->x, larger(logits, wide), numbers, error);
  status = status < 0 ? status : draw(t, &t->w, larger(wide, table), numbers, error);
  status = status < 0 ? status : draw(t, &t->aux, wide, numbers, error);
  status = status < 0 ? status : draw(t, &t->bias, 4 * t->dim * 2, numbers, error);
  free(numbers);
  WEFT_TRY(status);
  t->c = weft_device_allocate(t->device, NULL, larger(wide, table));
  t->y = weft_device_allocate(t->device, NULL, larger(larger(logits, wide), table));
  t->workspace = weft_device_allocate(t->device, NULL, WEFT_GPT_CUDA_WORKSPACE);
  return t->c != NULL && t->y != NULL && t->workspace != NULL ? WEFT_OK
                                                              : weft_fail_memory(error, logits);
}

/* ---- Products ---- */

/* The 15 of a step: of a block's four linears and of the head, forward and backward. */
static struct weft_gpt_product_call product_at(const struct tuner *t, uint32_t k) {
  const uint64_t c = t->dim;
  const struct {
    enum weft_gpt_product_kind forward, input;
    uint64_t in, out;
    bool adds; /* the residual */
  } linears[] = {
      {WEFT_GPT_PRODUCT_FORWARD, WEFT_GPT_PRODUCT_BACKWARD_INPUT, c, 3 * c, false},
      {WEFT_GPT_PRODUCT_FORWARD, WEFT_GPT_PRODUCT_BACKWARD_INPUT, c, c, true},
      {WEFT_GPT_PRODUCT_FORWARD_GELU, WEFT_GPT_PRODUCT_BACKWARD_INPUT, c, 4 * c, false},
      {WEFT_GPT_PRODUCT_FORWARD, WEFT_GPT_PRODUCT_BACKWARD_GELU, 4 * c, c, true},
      {WEFT_GPT_PRODUCT_FORWARD_BARE, WEFT_GPT_PRODUCT_BACKWARD_INPUT, c, t->vocabulary, false},
  };
  const uint32_t pass = k / 5;
  struct weft_gpt_product_call call = {.kind = pass == 0   ? linears[k % 5].forward
                                               : pass == 1 ? linears[k % 5].input
                                                           : WEFT_GPT_PRODUCT_BACKWARD_WEIGHT,
                                       .rows = t->rows,
                                       .in = linears[k % 5].in,
                                       .out = linears[k % 5].out,
                                       .x = t->x,
                                       .w = t->w,
                                       .bias = t->bias,
                                       .y = t->y,
                                       .aux = t->aux,
                                       .stream = t->stream};
  call.c = pass == 2 ? t->y : pass == 0 && linears[k % 5].adds ? t->c : NULL;
  return call;
}

static enum weft_status time_product(const struct tuner *t, struct weft_product *product,
                                     const struct weft_gpt_product_call *call, int64_t *ns,
                                     struct weft_error *error) {
  const struct weft_device_ops *ops = t->device->ops;
  const struct weft_product_call run = weft_gpt_cuda_product_call(call, t->workspace);
  WEFT_TRY(ops->event_record(t->device, t->events[0], t->stream, error));
  for (uint32_t k = 0; k < CALLS; k++) {
    WEFT_TRY(weft_product_run(product, &run, t->stream, error));
  }
  WEFT_TRY(ops->event_record(t->device, t->events[1], t->stream, error));
  WEFT_TRY(ops->event_wait(t->device, t->events[1], NULL, error));
  WEFT_TRY(ops->event_elapsed(t->device, t->events[0], t->events[1], ns, error));
  *ns /= CALLS;
  return WEFT_OK;
}

static int compare(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void report(const struct weft_gpt_product_call *call, const int64_t *medians, uint32_t count,
                   uint32_t best) {
  const double flops = 2.0 * (double)call->rows * (double)call->in * (double)call->out;
  printf("%-12s %6" PRIu64 " %5" PRIu64 " %5" PRIu64
         "  first %8.1f us %4.0f TFLOP/s  best #%-2" PRIu32 " %8.1f us %4.0f TFLOP/s  all",
         weft_gpt_product_name(call->kind), call->rows, call->in, call->out,
         (double)medians[0] / 1e3, flops / (double)medians[0] / 1e3, best,
         (double)medians[best] / 1e3, flops / (double)medians[best] / 1e3);
  for (uint32_t k = 0; k < count; k++) {
    printf(" %.1f", (double)medians[k] / 1e3);
  }
  printf("\n");
}

/* Algorithms that there are, in turns. */
static enum weft_status tune(struct tuner *t, const struct weft_gpt_product_call *call,
                             double *saved_us, struct weft_error *error) {
  struct weft_product *products[TRIED] = {NULL};
  struct weft_product_shape shape = weft_gpt_cuda_product_shape(call);
  int64_t times[TRIED][ROUNDS], medians[TRIED];
  uint32_t count = 0, best = 0;
  enum weft_status status = WEFT_OK;
  for (; count < TRIED; count++) {
    shape.algorithm = count;
    status = weft_product_create(t->lt, &shape, &products[count], error);
    if (status < 0) {
      status = status == WEFT_ERR_UNAVAILABLE && count > 0 ? WEFT_OK : status;
      break;
    }
  }
  for (uint32_t round = 0; status == WEFT_OK && round <= ROUNDS; round++) {
    for (uint32_t k = 0; status == WEFT_OK && k < count; k++) { /* the first round warms up */
      status = time_product(t, products[k], call, &times[k][round > 0 ? round - 1 : 0], error);
    }
  }
  for (uint32_t k = 0; status == WEFT_OK && k < count; k++) {
    qsort(times[k], ROUNDS, sizeof times[k][0], compare);
    medians[k] = times[k][ROUNDS / 2];
    if ((double)medians[k] < 0.99 * (double)medians[0] && medians[k] < medians[best]) {
      best = k;
    }
  }
  for (uint32_t k = 0; k < count; k++) {
    weft_product_destroy(products[k]);
  }
  if (status == WEFT_OK) {
    report(call, medians, count, best);
    *saved_us = (double)(medians[0] - medians[best]) / 1e3;
    t->choices.items[t->choices.count++] = (struct weft_gpt_product_choice){.kind = call->kind,
                                                                            .rows = call->rows,
                                                                            .in = call->in,
                                                                            .out = call->out,
                                                                            .algorithm = best};
  }
  return status;
}

static enum weft_status run(struct tuner *t, const char *path, struct weft_error *error) {
  const struct weft_device_ops *ops;
  double saved = 0, head = 0;
  WEFT_TRY(weft_cuda_open(NULL, NULL, 1, &t->cuda, error));
  t->device = weft_cuda_device(t->cuda, 0);
  ops = t->device->ops;
  WEFT_TRY(ops->make_current(t->device, error));
  WEFT_TRY(weft_cublaslt_open(NULL, &t->lt, error));
  WEFT_TRY(ops->stream_create(t->device, NULL, &t->stream, error));
  WEFT_TRY(ops->timed_event_create(t->device, NULL, &t->events[0], error));
  WEFT_TRY(ops->timed_event_create(t->device, NULL, &t->events[1], error));
  WEFT_TRY(allocate(t, error));
  for (uint32_t k = 0; k < PRODUCTS; k++) {
    const struct weft_gpt_product_call call = product_at(t, k);
    double us = 0;
    WEFT_TRY(tune(t, &call, &us, error));
    *(k % 5 == 4 ? &head : &saved) += us;
  }
  printf("saved: %.3f ms per block, %.3f ms in the head\n", saved / 1e3, head / 1e3);
  FILE *file = fopen(path, "w");
  if (file == NULL) {
    return weft_fail(error, WEFT_ERR_IO, NULL, "cannot write %s", path);
  }
  weft_gpt_product_choices_write(&t->choices, file, weft_cublaslt_version(),
                                 weft_cuda_rank_gpu(t->cuda, 0));
  return fclose(file) == 0 ? WEFT_OK : weft_fail(error, WEFT_ERR_IO, NULL, "cannot write %s", path);
}

int main(int count, char **words) {
  if (count < 4) {
    (void)fprintf(stderr, "usage: product_algorithms FILE DIM ROWS [VOCABULARY]\n");
    return 2;
  }
  struct tuner tuner = {.dim = strtoull(words[2], NULL, 10),
                        .rows = strtoull(words[3], NULL, 10),
                        .vocabulary = count > 4 ? strtoull(words[4], NULL, 10) : 50304};
  struct weft_error error = {.status = WEFT_OK};
  if (tuner.dim == 0 || tuner.dim % 8 != 0 || tuner.rows == 0 || tuner.vocabulary % 8 != 0 ||
      tuner.vocabulary == 0) {
    (void)fprintf(stderr, "product_algorithms: DIM and VOCABULARY are multiples of 8\n");
    return 2;
  }
  if (run(&tuner, words[1], &error) < 0) { /* the end of the process gives everything back */
    (void)fprintf(stderr, "product_algorithms: %s\n", error.message);
    return 1;
  }
  return 0;
}
