/* Ports, pools and channels of a rank's stages; see executor.h. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "run/executor/executor.h"
#include "run/shape_text.h"

/* Channels hold at least this many messages, even if the first program needs fewer: later
 * programs may need more. */
enum { DEPTH_MIN = 64 };

static bool needs_gradients(const struct weft_boundary *boundary) {
  for (uint32_t k = 0; k < boundary->tensor_count; k++) {
    if (boundary->tensors[k].needs_grad) {
      return true;
    }
  }
  return false;
}

static struct weft_stage_functions list_functions(weft_stage_function *first,
                                                  weft_stage_function *second,
                                                  weft_stage_function *last) {
  struct weft_stage_functions list = {.count = 0};
  weft_stage_function *const all[] = {first, second, last};
  for (unsigned k = 0; k < 3; k++) {
    list.items[list.count] = all[k];
    list.count += all[k] != NULL;
    list.op_count = k < 2 ? list.count : list.op_count;
  }
  return list;
}

static void find_functions(const struct weft_executor *executor,
                           struct weft_executor_stage *stage) {
  const struct weft_stage_ops *ops = stage->impl->ops;
  struct weft_stage_functions *of = stage->functions;
  const bool whole = ops->backward != NULL;
  weft_stage_function *scale = executor->options->scale_grads ? ops->scale_grads : NULL;
  of[WEFT_OP_F] = list_functions(ops->forward, NULL, stage->is_loss ? ops->loss : NULL);
  if (stage->wants_backward) {
    of[WEFT_OP_B] = list_functions(whole ? ops->backward : ops->backward_input,
                                   whole ? NULL : ops->backward_weight, scale);
    of[WEFT_OP_I] = list_functions(ops->backward_input, NULL, scale);
    of[WEFT_OP_W] = list_functions(ops->backward_weight, NULL, scale);
  }
  of[WEFT_OP_UNSHARD] = list_functions(ops->unshard, NULL, NULL);
  of[WEFT_OP_RESHARD] = list_functions(ops->reshard, NULL, NULL);
  of[WEFT_OP_REDUCE_GRAD] = list_functions(ops->reduce_grad, NULL, NULL);
  of[WEFT_OP_TIE_GRAD] = list_functions(ops->tie_grad, NULL, NULL);
}

/* ---- Ports ---- */

/* The transport's channels of an edge, seen from the stage `from`, and `to` it. */
static void number_channels(const struct weft_executor *executor, uint32_t stage, bool in,
                            struct weft_port *port) {
  const uint32_t first = executor->options->first_channel;
  if (port->other == WEFT_STAGE_NONE) {
    return;
  }
  const struct weft_action mine =
      weft_action_transfer(in ? WEFT_OP_SEND_B : WEFT_OP_SEND_F, stage, port->other, 0);
  const struct weft_action theirs =
      weft_action_transfer(in ? WEFT_OP_SEND_F : WEFT_OP_SEND_B, port->other, stage, 0);
  port->send_channel = first + weft_channel_of_send(executor->graph, mine);
  port->receive_channel = first + weft_channel_of_send(executor->graph, theirs);
}

static void link_port(const struct weft_executor *executor, const struct weft_row *first,
                      const struct weft_executor_stage *stage, uint32_t n, struct weft_port *port) {
  const struct weft_row_port *of = &first->ports[stage->needs->first_port + n];
  const bool in = n < stage->in_count;
  port->other = of->other;
  port->boundary = executor->options->boundary_count == 1 ? 0 : of->boundary;
  port->rank = UINT32_MAX;
  number_channels(executor, stage->stage, in, port);
  if (port->other == WEFT_STAGE_NONE) {
    return;
  }
  port->near = weft_executor_find_stage(executor, port->other);
  if (port->near == NULL) {
    port->rank = weft_executor_rank_of(executor, first, port->other);
    return;
  }
  assert(of->near != WEFT_PORT_NONE);
  port->near_port = (uint16_t)(of->near - first->stages[port->near - executor->stages].first_port);
}

/* Out-edges share an output but for those that have their own; outputs are in the order of their
 * first edges. */
static void number_outputs(const struct weft_executor *executor,
                           struct weft_executor_stage *stage) {
  uint32_t shared = UINT32_MAX;
  for (uint32_t n = stage->in_count; n < stage->port_count; n++) {
    struct weft_port *port = &stage->ports[n];
    const bool shares = !executor->options->boundaries[port->boundary].own_output;
    if (shares && shared != UINT32_MAX) {
      port->output = (uint16_t)shared;
      stage->shares = true;
      continue;
    }
    port->output = (uint16_t)stage->output_count++;
    shared = shares ? port->output : shared;
  }
}

static bool has_gradients(const struct weft_executor *executor, const struct weft_row *first,
                          const struct weft_executor_stage *stage, uint32_t n) {
  const struct weft_row_port *of = &first->ports[stage->needs->first_port + n];
  return of->gradient && needs_gradients(&executor->options->boundaries[stage->ports[n].boundary]);
}

void weft_executor_link_stage(const struct weft_executor *executor, const struct weft_row *first,
                              struct weft_executor_stage *stage) {
  assert(stage->in_count >= 1 && stage->port_count > stage->in_count);
  stage->impl = executor->options->stages[stage->stage];
  for (uint32_t n = 0; n < stage->port_count; n++) {
    link_port(executor, first, stage, n, &stage->ports[n]);
  }
  stage->is_source = stage->ports[0].other == WEFT_STAGE_NONE;
  stage->is_loss = stage->ports[stage->in_count].other == WEFT_STAGE_NONE;
  stage->wants_backward = stage->is_loss;
  for (uint32_t n = stage->in_count; n < stage->port_count; n++) {
    stage->wants_backward = stage->wants_backward || has_gradients(executor, first, stage, n);
  }
  number_outputs(executor, stage);
  find_functions(executor, stage);
}

static enum weft_status open_pool(const struct weft_executor *executor, struct weft_port *port,
                                  struct weft_buffer_pool *pool, bool gradients,
                                  struct weft_error *error) {
  const bool crosses = port->other != WEFT_STAGE_NONE && port->near == NULL;
  struct weft_device *device = executor->options->device;
  pool->staged =
      crosses && !weft_device_is_host(device) && !executor->transport->ops->device_memory;
  if (pool->staged && device->ops->pinned != NULL) {
    pool->message_device =
        device->ops->pinned(device); /* which the GPU copies from and to by itself */
  }
  *(gradients ? &port->gradients : &port->activations) = pool;
  return weft_buffer_layout_init(&pool->layout, &executor->options->boundaries[port->boundary],
                                 gradients, port->boundary, error);
}

/* A stage that gets no gradient must not owe one. */
static enum weft_status check_frozen(const struct weft_executor_stage *stage,
                                     struct weft_error *error) {
  for (uint32_t n = 0; !stage->wants_backward && n < stage->in_count; n++) {
    if (stage->ports[n].gradients != NULL) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "let a boundary behind it need gradients, or none in front of it",
                       "no gradient comes to stage %" PRIu32 ", and the edge %" PRIu32 ">%" PRIu32
                       " needs one from it",
                       stage->stage, stage->ports[n].other, stage->stage);
    }
  }
  return WEFT_OK;
}

/* An edge inside the rank has the pools of its out-port. */
enum weft_status weft_executor_open_pools(const struct weft_executor *executor,
                                          const struct weft_row *first,
                                          struct weft_executor_stage *stage,
                                          struct weft_error *error) {
  for (uint32_t n = 0; n < stage->port_count; n++) {
    struct weft_port *port = &stage->ports[n];
    struct weft_buffer_pool *pools = &executor->pools[2 * (size_t)(stage->needs->first_port + n)];
    if (n < stage->in_count && stage->is_source) {
      continue;
    }
    if (n < stage->in_count && port->near != NULL) { /* stages ascend: it has its pools */
      port->activations = port->near->ports[port->near_port].activations;
      port->gradients = port->near->ports[port->near_port].gradients;
      continue;
    }
    WEFT_TRY(open_pool(executor, port, &pools[0], false, error));
    if (has_gradients(executor, first, stage, n) &&
        (port->other != WEFT_STAGE_NONE || stage->impl->ops->loss != NULL)) {
      WEFT_TRY(open_pool(executor, port, &pools[1], true, error));
    }
  }
  WEFT_TRY(check_frozen(stage, error));
  return stage->shares ? weft_executor_check_shared(executor, stage, error) : WEFT_OK;
}

/* ---- Channels ---- */

struct ends {
  const struct weft_pipeline_options *options;
  struct weft_channel_end *items;
  char (*contents)[WEFT_CONTENT_MAX]; /* of the items */
  uint32_t count;
};

static void add_end(struct ends *ends, const struct weft_port *port, bool sends, bool gradients,
                    uint32_t buffers) {
  assert(ends->items != NULL && ends->contents != NULL);
  const struct weft_buffer_pool *pool = gradients ? port->gradients : port->activations;
  if (pool != NULL) {
    const char *content = weft_boundary_text(ends->contents[ends->count], WEFT_CONTENT_MAX,
                                             &ends->options->boundaries[port->boundary], gradients);
    ends->items[ends->count++] =
        (struct weft_channel_end){.channel = sends ? port->send_channel : port->receive_channel,
                                  .peer = port->rank,
                                  .sends = sends,
                                  .depth = buffers > DEPTH_MIN ? buffers : DEPTH_MIN,
                                  .bytes_max = pool->layout.capacity,
                                  .content = content};
  }
}

static void add_ends(struct ends *ends, const struct weft_executor_stage *stage,
                     const struct weft_row_port *needs) {
  for (uint32_t n = stage->port_count; n-- > 0;) { /* out-edges first */
    const struct weft_port *port = &stage->ports[n];
    const bool in = n < stage->in_count;
    if (port->other != WEFT_STAGE_NONE && port->near == NULL) {
      add_end(ends, port, !in, false, needs[n].activations);
      add_end(ends, port, in, true, needs[n].gradients);
    }
  }
}

enum weft_status weft_executor_open_channels(struct weft_executor *executor,
                                             const struct weft_row *row, struct weft_error *error) {
  const size_t room = 2 * (size_t)executor->port_count;
  WEFT_SCOPED_ARENA arena = {.allocator = executor->allocator};
  struct ends ends = {.options = executor->options,
                      .items = weft_arena_allocate(&arena, room, sizeof *ends.items),
                      .contents = weft_arena_allocate(&arena, room, sizeof *ends.contents)};
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t k = 0; k < executor->own_count; k++) {
    add_ends(&ends, &executor->stages[k], &row->ports[row->stages[k].first_port]);
  }
  for (uint32_t k = 0; k < ends.count; k++) {
    ends.items[k].rendezvous = executor->send_capacity != WEFT_CAPACITY_UNLIMITED;
    ends.items[k].device = weft_executor_is_enqueued(executor) ? executor->options->device : NULL;
  }
  return executor->transport->ops->open(executor->transport, ends.items, ends.count, error);
}
