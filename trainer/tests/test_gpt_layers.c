/* The parts of the model: outputs and gradients against the double reference, the split
 * of the backward, and that nothing is written where it should not be. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_gpt_reference.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/layer.h"

/* A layer with everything around it. */
struct layer {
  struct weft_gpt_config config;
  struct reference_shape shape;
  uint64_t values, floats; /* of x, of the parameters */
  uint64_t at[WEFT_GPT_PARAMETERS_MAX];
  struct reference_buffer parameters, gradients, saved, scratch, x, y, dy, dx;
  uint8_t *ids, *targets;
  struct weft_gpt_layer_call call;
};

static struct layer make_layer(uint32_t index, uint64_t sequences, uint64_t tokens,
                               uint32_t channels, uint32_t heads, uint64_t shift) {
  struct layer p = {.config = {.blocks = 1,
                               .dim = channels,
                               .heads = heads,
                               .context = (uint32_t)tokens + 3,
                               .vocabulary = WEFT_GPT_VOCABULARY,
                               .seed = 7}};
  struct weft_gpt_parameter tensors[WEFT_GPT_PARAMETERS_MAX];
  const uint32_t count = weft_gpt_layer_parameters(&p.config, index, tensors);
  for (uint32_t i = 0; i < count; i++) {
    p.at[i] = tensors[i].offset;
  }
  p.shape = (struct reference_shape){sequences, tokens, channels, heads, WEFT_GPT_VOCABULARY};
  p.values = sequences * tokens * channels;
  p.floats = weft_gpt_layer_floats(&p.config, index);
  p.parameters = reference_buffer_make(p.floats, shift);
  p.gradients = reference_buffer_make(p.floats, shift);
  p.saved = reference_buffer_make(weft_gpt_layer_saved(&p.config, index, sequences, tokens), shift);
  p.scratch =
      reference_buffer_make(weft_gpt_layer_scratch(&p.config, index, sequences, tokens), shift);
  p.x = reference_buffer_make(p.values, shift);
  p.y = reference_buffer_make(p.values, shift);
  p.dy = reference_buffer_make(p.values, shift);
  p.dx = reference_buffer_make(p.values, shift);
  reference_random(1, 0.4, p.floats, p.parameters.at);
  reference_random(2, 1.0, p.floats, p.gradients.at);
  reference_random(3, 1.0, p.values, p.x.at);
  reference_random(4, 1.0, p.values, p.dy.at);
  p.ids = malloc(sequences * tokens);
  p.targets = malloc(sequences * tokens);
  for (uint64_t i = 0; i < sequences * tokens; i++) {
    p.ids[i] = (uint8_t)(i * i * 31 % 5);
    p.targets[i] = (uint8_t)(255 - i * 7 % 250);
  }
  p.call = (struct weft_gpt_layer_call){NULL,       index,       sequences, tokens, p.parameters.at,
                                        p.saved.at, p.scratch.at};
  return p;
}

static void free_layer(struct layer *p) {
  struct reference_buffer *buffers[] = {
      &p->parameters, &p->gradients, &p->saved, &p->scratch, &p->x, &p->y, &p->dy, &p->dx, NULL};
  reference_buffers_free(buffers);
  free(p->ids);
  free(p->targets);
}

/* The call of a layer whose struct does not move any more. */
static const struct weft_gpt_layer_call *call_of(struct layer *p) {
  p->call.config = &p->config;
  return &p->call;
}

/* ---- Against central differences ---- */

/* The reference of a layer: a loss as a function of parameters and x. */
struct model {
  const struct layer *layer;
  double *parameters, *x, *y, *dy;
};

static struct model widen(const struct layer *p) {
  struct model m = {.layer = p,
                    .parameters = malloc(p->floats * sizeof(double)),
                    .x = malloc(p->values * sizeof(double)),
                    .y = malloc(p->values * sizeof(double)),
                    .dy = malloc(p->values * sizeof(double))};
  reference_widen(p->floats, p->parameters.at, m.parameters);
  reference_widen(p->values, p->x.at, m.x);
  reference_widen(p->values, p->dy.at, m.dy);
  return m;
}

static void free_model(struct model *m) {
  free(m->parameters);
  free(m->x);
  free(m->y);
  free(m->dy);
}

static double block_loss(void *context) {
  const struct model *m = context;
  reference_block(&m->layer->shape, m->parameters, m->layer->at, m->x, m->y);
  return reference_dot(m->layer->values, m->y, m->dy);
}

static double head_loss(void *context) {
  const struct model *m = context;
  return reference_head(&m->layer->shape, m->parameters, m->layer->at, m->x, m->layer->targets);
}

static void assert_near(uint64_t count, const float *found, const double *expected,
                        double tolerance) {
  for (uint64_t i = 0; i < count; i++) {
    const double bound = tolerance * (1.0 + fabs(expected[i]));
    if (!(fabs((double)found[i] - expected[i]) <= bound)) {
      fail_msg("at %llu: found %.9g, expected %.9g", (unsigned long long)i, (double)found[i],
               expected[i]);
    }
  }
}

/* dx, and what W added to gradients that were `before`. */
static void check_gradients(struct layer *p, double (*loss)(void *), double tolerance) {
  struct model m = widen(p);
  double *expected = malloc((p->floats + p->values) * sizeof *expected);
  reference_gradient(loss, &m, p->values, m.x, expected);
  assert_near(p->values, p->dx.at, expected, tolerance);
  float *before = malloc(p->floats * sizeof *before);
  reference_random(2, 1.0, p->floats, before);
  reference_gradient(loss, &m, p->floats, m.parameters, expected);
  for (uint64_t i = 0; i < p->floats; i++) {
    expected[i] += (double)before[i];
  }
  assert_near(p->floats, p->gradients.at, expected, tolerance);
  free(expected);
  free(before);
  free_model(&m);
}

static void check_block(uint64_t sequences, uint64_t tokens, uint32_t channels, uint32_t heads,
                        uint64_t shift) {
  struct layer p = make_layer(1, sequences, tokens, channels, heads, shift);
  weft_gpt_block_forward(call_of(&p), p.x.at, p.y.at);
  weft_gpt_block_backward_input(call_of(&p), p.x.at, p.dy.at, p.dx.at);
  weft_gpt_block_backward_weight(call_of(&p), p.x.at, p.dy.at, p.gradients.at);
  struct model m = widen(&p);
  block_loss(&m);
  assert_near(p.values, p.y.at, m.y, 1e-5);
  free_model(&m);
  check_gradients(&p, block_loss, 2e-5);
  free_layer(&p);
}

static void a_block_is_the_reference(void **state) {
  (void)state;
  check_block(1, 1, 4, 1, 0);
  check_block(2, 5, 8, 2, 0);
  check_block(3, 3, 12, 3, 1);
  check_block(1, 7, 5, 1, 3);
}

static void check_head(uint64_t sequences, uint64_t tokens, uint32_t channels, bool logits) {
  struct layer p = make_layer(2, sequences, tokens, channels, 1, 0);
  struct reference_buffer seen = reference_buffer_make(sequences * tokens * WEFT_GPT_VOCABULARY, 0);
  const double loss =
      weft_gpt_head_forward(call_of(&p), p.x.at, p.targets, true, logits ? seen.at : NULL);
  struct model m = widen(&p);
  assert_true(fabs(loss - head_loss(&m)) < 1e-5);
  free_model(&m);
  weft_gpt_head_backward_input(call_of(&p), p.x.at, p.dx.at);
  weft_gpt_head_backward_weight(call_of(&p), p.x.at, p.gradients.at);
  check_gradients(&p, head_loss, 1e-5);
  reference_buffer_free(&seen);
  free_layer(&p);
}

static void a_head_is_the_reference(void **state) {
  (void)state;
  check_head(1, 1, 4, false);
  check_head(2, 3, 6, true);
}

/* Without targets there are logits and no loss; without training no gradient is kept. */
static void a_head_evaluates(void **state) {
  (void)state;
  struct layer p = make_layer(2, 2, 3, 6, 1, 0);
  float first[6 * WEFT_GPT_VOCABULARY], second[6 * WEFT_GPT_VOCABULARY];
  assert_true(weft_gpt_head_forward(call_of(&p), p.x.at, NULL, false, first) == 0.0);
  const double loss = weft_gpt_head_forward(call_of(&p), p.x.at, p.targets, false, second);
  assert_memory_equal(first, second, sizeof first);
  assert_true(loss == weft_gpt_head_forward(call_of(&p), p.x.at, p.targets, true, NULL));
  free_layer(&p);
}

static void an_embedding_adds_two_rows(void **state) {
  (void)state;
  struct layer p = make_layer(0, 3, 5, 6, 1, 2);
  float *expected = malloc(p.floats * sizeof *expected);
  reference_random(2, 1.0, p.floats, expected);
  weft_gpt_embedding_forward(call_of(&p), p.ids, p.y.at);
  weft_gpt_embedding_backward_weight(call_of(&p), p.ids, p.dy.at, p.gradients.at);
  for (uint64_t r = 0; r < 15; r++) {
    for (uint64_t i = 0; i < 6; i++) {
      const uint64_t token = p.at[0] + p.ids[r] * 6 + i, place = p.at[1] + r % 5 * 6 + i;
      assert_true(p.y.at[r * 6 + i] == p.parameters.at[token] + p.parameters.at[place]);
      expected[token] += p.dy.at[r * 6 + i];
      expected[place] += p.dy.at[r * 6 + i];
    }
  }
  assert_memory_equal(p.gradients.at, expected, p.floats * sizeof *expected);
  free(expected);
  free_layer(&p);
}

/* ---- The split of the backward ---- */

/* Two microbatches; W right after each I, or both W at the end, as a schedule that
 * defers them has it. */
static void run_two(struct layer *a, struct layer *b, bool deferred, float *gradients) {
  memset(gradients, 0, a->floats * sizeof *gradients);
  reference_random(5, 1.0, b->values, b->x.at);
  reference_random(6, 1.0, b->values, b->dy.at);
  weft_gpt_block_forward(call_of(a), a->x.at, a->y.at);
  weft_gpt_block_forward(call_of(b), b->x.at, b->y.at);
  weft_gpt_block_backward_input(call_of(a), a->x.at, a->dy.at, a->dx.at);
  if (!deferred) {
    weft_gpt_block_backward_weight(call_of(a), a->x.at, a->dy.at, gradients);
  }
  b->call.scratch = a->call.scratch; /* free between calls */
  weft_gpt_block_backward_input(call_of(b), b->x.at, b->dy.at, b->dx.at);
  if (deferred) {
    weft_gpt_block_backward_weight(call_of(a), a->x.at, a->dy.at, gradients);
  }
  weft_gpt_block_backward_weight(call_of(b), b->x.at, b->dy.at, gradients);
}

static void deferred_weights_give_the_same_bits(void **state) {
  (void)state;
  struct layer a = make_layer(1, 2, 70, 24, 3, 0), b = make_layer(1, 2, 70, 24, 3, 0);
  const size_t size = a.floats * sizeof(float);
  float *now = malloc(size), *later = malloc(size);
  run_two(&a, &b, false, now);
  run_two(&a, &b, true, later);
  assert_memory_equal(now, later, size);
  free(now);
  free(later);
  free_layer(&a);
  free_layer(&b);
}

/* A block gives the same bits wherever its buffers lie. */
static void alignment_changes_nothing(void **state) {
  (void)state;
  for (uint64_t shift = 1; shift < 16; shift += 7) {
    struct layer a = make_layer(1, 2, 67, 40, 2, 0), b = make_layer(1, 2, 67, 40, 2, shift);
    struct layer *both[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
      struct layer *p = both[i];
      weft_gpt_block_forward(call_of(p), p->x.at, p->y.at);
      weft_gpt_block_backward_input(call_of(p), p->x.at, p->dy.at, p->dx.at);
      weft_gpt_block_backward_weight(call_of(p), p->x.at, p->dy.at, p->gradients.at);
    }
    assert_memory_equal(a.y.at, b.y.at, a.values * sizeof(float));
    assert_memory_equal(a.dx.at, b.dx.at, a.values * sizeof(float));
    assert_memory_equal(a.gradients.at, b.gradients.at, a.floats * sizeof(float));
    free_layer(&a);
    free_layer(&b);
  }
}

/* A microbatch smaller than what the memory was made for. */
static void a_smaller_microbatch_fits(void **state) {
  (void)state;
  for (uint64_t sequences = 1; sequences <= 4; sequences++) {
    for (uint64_t tokens = 1; tokens <= 130; tokens += 43) {
      const struct weft_gpt_config config = {
          .blocks = 1, .dim = 32, .heads = 4, .context = 200, .vocabulary = WEFT_GPT_VOCABULARY};
      for (uint32_t layer = 0; layer < 3; layer++) {
        assert_true(weft_gpt_layer_saved(&config, layer, sequences, tokens) <=
                    weft_gpt_layer_saved(&config, layer, 4, 200));
        assert_true(weft_gpt_layer_scratch(&config, layer, sequences, tokens) <=
                    weft_gpt_layer_scratch(&config, layer, 4, 200));
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_block_is_the_reference),
      cmocka_unit_test(a_head_is_the_reference),
      cmocka_unit_test(a_head_evaluates),
      cmocka_unit_test(an_embedding_adds_two_rows),
      cmocka_unit_test(deferred_weights_give_the_same_bits),
      cmocka_unit_test(alignment_changes_nothing),
      cmocka_unit_test(a_smaller_microbatch_fits),
  };
  weft_gpt_set_blas_threads(1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
