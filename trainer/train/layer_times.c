/* Times of layers where work is enqueued. There a layer's calls return before it has computed, and
 * a step is one recording; so layers are measured before the first step, each kind by itself, in memory
 * that is given back. profile.c scales the times to those that stages have in steps. */
#include <assert.h>

#include <weft/support.h>

#include "trainer/train/rank.h"

enum { REPEATS = 3, KINDS = 3 }; /* embedding, block, head */

/* A layer's passes, with memory of their own. */
struct measurement {
  const struct weft_gpt_rank *rank;
  struct weft_device *device;
  struct weft_stream *stream;
  struct weft_device_event *events[2];
  char *memory;
  uint64_t bytes;
  struct weft_gpt_pass_call call;
};

static uint32_t kind_of(const struct weft_gpt_config *config, uint32_t layer) {
  return layer == 0 ? 0 : layer <= config->blocks ? 1 : 2;
}

static void *take_memory(const struct measurement *m, uint64_t *at, uint64_t bytes) {
  void *taken = m->memory != NULL ? m->memory + *at : NULL;
  *at += (bytes + WEFT_DEVICE_ALIGN - 1) / WEFT_DEVICE_ALIGN * WEFT_DEVICE_ALIGN;
  return taken;
}

/* Where everything is; without memory, how much of it is needed. */
static uint64_t lay_out(struct measurement *m, uint32_t layer) {
  const struct weft_gpt_trainer *trainer = m->rank->trainer;
  const struct weft_gpt_config *config = &trainer->config;
  const struct weft_gpt_compute_ops *ops = m->rank->compute->ops;
  const uint64_t sequences = trainer->sequences_max, rows = sequences * config->context;
  const uint64_t row_bytes = rows * config->dim * weft_dtype_size(ops->dtype);
  const uint64_t token_bytes = rows * weft_dtype_size(weft_gpt_token_dtype(config));
  const uint64_t floats = weft_gpt_layer_floats(config, layer);
  const bool embeds = layer == 0, is_head = weft_gpt_is_head(config, layer);
  uint64_t at = 0;
  m->call = (struct weft_gpt_pass_call){.config = config,
                                        .layer = layer,
                                        .sequences = sequences,
                                        .tokens = config->context,
                                        .stream = m->stream,
                                        .training = true};
  void *tokens = take_memory(m, &at, token_bytes); /* first: copied there */
  m->call.loss = take_memory(m, &at, sizeof(double));
  m->call.parameters = take_memory(m, &at, floats * (ops->rounds ? 2 : sizeof(float)));
  m->call.gradients = take_memory(m, &at, floats * sizeof(float));
  m->call.scratch =
      take_memory(m, &at, ops->scratch_bytes(config, layer, sequences, config->context));
  m->call.saved = take_memory(m, &at, ops->saved_bytes(config, layer, sequences, config->context));
  m->call.x = embeds ? tokens : take_memory(m, &at, row_bytes);
  m->call.targets = is_head ? tokens : NULL;
  m->call.y = is_head ? NULL : take_memory(m, &at, row_bytes);
  m->call.dy = is_head ? NULL : take_memory(m, &at, row_bytes);
  m->call.dx = embeds ? NULL : take_memory(m, &at, row_bytes);
  return at;
}

/* Tokens all over the vocabulary; all other numbers are small, and the same. */
static enum weft_status fill_memory(const struct measurement *m, struct weft_error *error) {
  const struct weft_gpt_config *config = m->call.config;
  const uint64_t rows = m->call.sequences * m->call.tokens;
  const bool bytes = weft_gpt_token_dtype(config) == WEFT_U8;
  WEFT_SCOPED_ARENA arena = {.allocator = m->rank->trainer->allocator};
  uint16_t *tokens = weft_arena_allocate(&arena, rows, sizeof *tokens);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint64_t r = 0; r < rows; r++) {
    const uint64_t token = r * UINT64_C(2654435761) % config->vocabulary;
    if (bytes) {
      ((unsigned char *)tokens)[r] = (unsigned char)token;
    } else {
      tokens[r] = (uint16_t)token;
    }
  }
  WEFT_TRY(weft_device_fill(m->device, m->memory, 0x3c, m->bytes, NULL, error));
  return weft_copy(&(struct weft_copy){.to = m->memory,
                                       .to_device = m->device,
                                       .from = tokens,
                                       .row_bytes = rows * (bytes ? 1 : 2),
                                       .rows = 1},
                   NULL, error);
}

static enum weft_status run_pass(const struct measurement *m, enum weft_op pass,
                                 struct weft_error *error) {
  struct weft_gpt_compute *compute = m->rank->compute;
  return pass == WEFT_OP_F   ? compute->ops->forward(compute, &m->call, error)
         : pass == WEFT_OP_I ? compute->ops->backward_input(compute, &m->call, error)
                             : compute->ops->backward_weight(compute, &m->call, error);
}

/* A pass once to warm up, then some times. */
static enum weft_status time_pass(const struct measurement *m, enum weft_op pass, int64_t *ns,
                                  struct weft_error *error) {
  assert(pass == WEFT_OP_F || pass == WEFT_OP_I || pass == WEFT_OP_W);
  const struct weft_device_ops *ops = m->device->ops;
  WEFT_TRY(run_pass(m, pass, error));
  WEFT_TRY(ops->event_record(m->device, m->events[0], m->stream, error));
  for (uint32_t k = 0; k < REPEATS; k++) {
    WEFT_TRY(run_pass(m, pass, error));
  }
  WEFT_TRY(ops->event_record(m->device, m->events[1], m->stream, error));
  WEFT_TRY(ops->event_wait(m->device, m->events[1], NULL, error));
  return ops->event_elapsed(m->device, m->events[0], m->events[1], ns, error);
}

/* No time where there is no memory for it. */
static enum weft_status time_layer(struct measurement *m, uint32_t layer,
                                   struct weft_gpt_layer_times *out, struct weft_error *error) {
  assert(layer < m->rank->trainer->layer_count && out != NULL);
  const struct weft_allocator *allocator = m->rank->trainer->allocator;
  m->memory = NULL;
  m->bytes = lay_out(m, layer);
  m->memory = weft_device_allocate(m->device, allocator, m->bytes);
  if (m->memory == NULL) {
    return WEFT_OK;
  }
  (void)lay_out(m, layer);
  enum weft_status status = fill_memory(m, error);
  static const enum weft_op passes[] = {WEFT_OP_F, WEFT_OP_I, WEFT_OP_W};
  for (size_t k = 0; status == WEFT_OK && k < WEFT_ARRAY_LENGTH(passes); k++) {
    const enum weft_op pass = passes[k];
    if (layer > 0 || pass != WEFT_OP_I) {
      status = time_pass(m, pass, &out->total_ns[pass], error);
      out->count[pass] = REPEATS;
    }
  }
  weft_device_free(m->device, allocator, m->memory, m->bytes);
  return status;
}

static enum weft_status time_layers(struct measurement *m, struct weft_error *error) {
  const struct weft_gpt_rank *rank = m->rank;
  struct weft_gpt_layer_times times[KINDS] = {{.count = {0}}};
  bool measured[KINDS] = {false};
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    const struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    for (uint32_t k = 0; k < stage->layer_count; k++) {
      const uint32_t kind = kind_of(stage->config, stage->first_layer + k);
      if (!measured[kind]) {
        WEFT_TRY(time_layer(m, stage->first_layer + k, &times[kind], error));
        measured[kind] = true;
      }
      stage->times[k] = times[kind];
    }
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_time_layers(const struct weft_gpt_rank *rank,
                                           struct weft_error *error) {
  assert(rank->compute != NULL && rank->stages != NULL);
  struct measurement m = {.rank = rank, .device = rank->compute->device};
  if (!rank->compute->ops->enqueues || !rank->trainer->options.times_layers) {
    return WEFT_OK;
  }
  const struct weft_device_ops *ops = m.device->ops;
  WEFT_TRY(ops->make_current(m.device, error));
  enum weft_status status = ops->stream_create(m.device, &m.stream, error);
  for (uint32_t k = 0; status == WEFT_OK && k < 2; k++) {
    status = ops->event_create(m.device, true, &m.events[k], error);
  }
  if (status == WEFT_OK) {
    status = time_layers(&m, error);
  }
  for (uint32_t k = 0; k < 2; k++) {
    ops->event_destroy(m.device, m.events[k]);
  }
  ops->stream_destroy(m.device, m.stream);
  return status;
}
