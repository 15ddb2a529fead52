/* SEND and RECV. A RECV is posted and the row continues; the compute that needs the message
 * waits for it. A SEND gives its buffer to the transport and the row continues; the buffer
 * returns to its pool when the neighbour has received it. In the blocking modes both wait
 * here. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/executor/executor.h"

/* ---- Messages ---- */

static enum weft_status write_header(struct weft_executor *executor, struct weft_buffer *buffer,
                                     const struct weft_action *action, uint64_t sequence,
                                     struct weft_error *error) {
  struct weft_message_header *header = &buffer->message.header;
  header->magic = WEFT_MESSAGE_MAGIC;
  header->protocol = WEFT_PROTOCOL;
  header->kind = action->op == WEFT_OP_SEND_F ? WEFT_MESSAGE_ACTIVATION : WEFT_MESSAGE_GRADIENT;
  header->stage = action->stage;
  header->microbatch = action->microbatch;
  header->step = executor->step;
  header->sequence = sequence;
  header->program = (uint32_t)executor->row->hash;
  header->reserved = 0;
  header->payload_checksum = 0;
  if (executor->options->check_payloads) {
    WEFT_TRY(weft_device_checksum(buffer->message.device, buffer->message.data, header->bytes,
                                  &header->payload_checksum, error));
  }
  weft_message_seal(&buffer->message);
  return WEFT_OK;
}

/* What a message that is received must be. */
struct expected {
  const struct weft_executor_stage *stage;
  const struct weft_port *port;
  uint32_t microbatch;
  bool forward;
};

static enum weft_status fail_field(const struct weft_executor *executor,
                                   const struct expected *expected, const char *name,
                                   uint64_t found, uint64_t wanted, struct weft_error *error) {
  const uint32_t mine = expected->stage->stage, other = expected->port->other;
  return weft_fail(error, WEFT_ERR_PROTOCOL,
                   "the two ranks do not run the same program, step and number of microbatches, "
                   "or one of them is damaged",
                   "rank %" PRIu32 " got a message from rank %" PRIu32 " over the edge %" PRIu32
                   ">%" PRIu32 " with %s %" PRIu64 " where %" PRIu64 " is expected",
                   executor->transport->rank, expected->port->rank,
                   expected->forward ? other : mine, expected->forward ? mine : other, name, found,
                   wanted);
}

static inline enum weft_status check_field(const struct weft_executor *executor,
                                           const struct expected *expected, const char *name,
                                           uint64_t found, uint64_t wanted,
                                           struct weft_error *error) {
  return found == wanted ? WEFT_OK : fail_field(executor, expected, name, found, wanted, error);
}

static enum weft_status check_header(const struct weft_executor *executor,
                                     const struct expected *expected,
                                     const struct weft_buffer *buffer, struct weft_error *error) {
  const struct weft_message_header *header = &buffer->message.header;
  const uint32_t program = (uint32_t)executor->row->hash;
  const uint64_t kind = expected->forward ? WEFT_MESSAGE_ACTIVATION : WEFT_MESSAGE_GRADIENT;
  WEFT_TRY(check_field(executor, expected, "program", header->program, program, error));
  WEFT_TRY(check_field(executor, expected, "step", header->step, executor->step, error));
  WEFT_TRY(check_field(executor, expected, "kind", header->kind, kind, error));
  WEFT_TRY(check_field(executor, expected, "stage", header->stage, expected->port->other, error));
  WEFT_TRY(check_field(executor, expected, "microbatch", header->microbatch, expected->microbatch,
                       error));
  WEFT_TRY(check_field(executor, expected, "sequence", header->sequence, buffer->sequence, error));
  uint64_t checksum = 0;
  if (header->payload_checksum != 0) {
    WEFT_TRY(weft_device_checksum(buffer->message.device, buffer->message.data, header->bytes,
                                  &checksum, error));
    if (executor->device != NULL) { /* it was perhaps another rank's GPU that did it */
      struct weft_device *device = executor->device->device;
      WEFT_TRY(device->ops->make_current(device, error));
    }
  }
  if (header->payload_checksum != checksum) {
    return weft_fail(error, WEFT_ERR_PROTOCOL, "the network or a process's memory is damaged",
                     "the payload of a message from rank %" PRIu32 " to rank %" PRIu32
                     " has changed on its way",
                     expected->port->rank, executor->transport->rank);
  }
  return WEFT_OK;
}

/* ---- Buffers ---- */

static void end_transfer(struct weft_executor *executor, const struct weft_buffer *buffer) {
  weft_executor_record_time(executor, buffer->record, buffer->message.begin, buffer->message.end);
}

enum weft_status weft_executor_collect(struct weft_executor *executor,
                                       struct weft_buffer_pool *pool, struct weft_error *error) {
  struct weft_transport *transport = executor->transport;
  while (pool->sends != NULL) {
    struct weft_buffer *buffer = pool->sends;
    const enum weft_status status = transport->ops->test(transport, &buffer->message, error);
    if (status != WEFT_OK) {
      return status < 0 ? status : WEFT_OK;
    }
    end_transfer(executor, buffer);
    weft_buffer_pool_end_send(pool);
  }
  return WEFT_OK;
}

enum weft_status weft_executor_await_buffer(struct weft_executor *executor, uint32_t stage,
                                            const struct weft_port *port,
                                            struct weft_buffer_pool *pool, struct weft_buffer **out,
                                            struct weft_error *error) {
  WEFT_TRY(weft_executor_collect(executor, pool, error));
  *out = weft_buffer_pool_take(pool);
  if (*out != NULL) {
    return WEFT_OK;
  }
  if (pool->sends == NULL) {
    return weft_fail(error, WEFT_ERR_INVALID, "verify the program to see what is wrong with it",
                     "rank %" PRIu32 " holds %" PRIu32
                     " messages of one boundary at once, more than its row can have",
                     executor->transport->rank, pool->count);
  }
  const struct weft_action wants =
      weft_action_transfer(pool == port->activations ? WEFT_OP_RECV_F : WEFT_OP_RECV_B, port->other,
                           stage, pool->sends->message.header.microbatch);
  return weft_executor_block(executor, WEFT_PHASE_SEND, port->rank, wants, 0, error);
}

/* What a SEND or RECV is about. */
struct transfer {
  const struct weft_executor_stage *stage;
  struct weft_port *port;        /* NULL: no edge to another rank, and neither of the next */
  struct weft_buffer_pool *pool; /* NULL: the boundary carries no gradients */
  struct weft_buffer **buffer;   /* held for the microbatch */
};

/* `forward`: an activation; `in`: over an in-edge. */
static inline struct transfer find_transfer(struct weft_executor *executor,
                                            const struct weft_action *action, bool forward,
                                            bool in) {
  struct weft_executor_stage *stage = weft_executor_own_stage(executor, action->stage);
  assert(stage != NULL && action->microbatch < executor->row->program->microbatch_count);
  uint32_t n;
  struct transfer transfer = {.stage = stage,
                              .port = weft_executor_find_port(stage, *action, in, &n)};
  if (transfer.port != NULL) {
    struct weft_port_held *held = &weft_executor_held(stage, action->microbatch)->ports[n];
    transfer.pool = forward ? transfer.port->activations : transfer.port->gradients;
    transfer.buffer = forward ? &held->activation : &held->gradient;
  }
  return transfer;
}

/* ---- SEND ---- */

/* A transport that enqueues may wait for the device, of which no message tells. */
static int64_t poll_at(const struct weft_executor *executor) {
  return weft_executor_is_enqueued(executor)
             ? weft_executor_ask_at(executor, executor->last_progress)
             : 0;
}

/* Whether more messages than the channel buffers have not been received. */
static bool is_full(const struct weft_executor *executor, const struct weft_buffer_pool *pool) {
  const struct weft_buffer *send = pool->sends;
  for (uint32_t k = 0; k < executor->send_capacity && send != NULL; k++) {
    send = send->next;
  }
  return send != NULL;
}

/* Where SENDs hold up the row, waits until this one is done. */
static enum weft_status await_taken(struct weft_executor *executor, struct weft_buffer_pool *pool,
                                    const struct weft_action *action, uint32_t peer,
                                    struct weft_error *error) {
  struct weft_action wants = weft_action_idle();
  WEFT_TRY(weft_executor_collect(executor, pool, error));
  if (!is_full(executor, pool)) {
    executor->cell_step = WEFT_CELL_NEW;
    return WEFT_OK;
  }
  (void)weft_action_partner(*action, executor->stage_count, &wants);
  wants.microbatch = pool->sends->message.header.microbatch; /* the oldest */
  return weft_executor_block(executor, WEFT_PHASE_SEND, peer, wants, 0, error);
}

enum weft_status weft_executor_send(struct weft_executor *executor,
                                    const struct weft_action *action, struct weft_error *error) {
  const bool forward = action->op == WEFT_OP_SEND_F;
  const struct transfer transfer = find_transfer(executor, action, forward, !forward);
  struct weft_port *port = transfer.port;
  struct weft_buffer_pool *pool = transfer.pool;
  if (port == NULL) {
    return weft_executor_fail_action(executor, action, "there is no other rank to send it to",
                                     error);
  }
  const uint32_t peer = port->rank;
  if (executor->cell_step == WEFT_CELL_CALLING) {
    return await_taken(executor, pool, action, peer, error);
  }
  if (pool == NULL) {
    return WEFT_OK; /* the boundary carries no gradients */
  }
  if (*transfer.buffer == NULL) {
    return weft_executor_fail_action(executor, action,
                                     "it has not been computed, or was sent before", error);
  }
  WEFT_TRY(weft_executor_collect(executor, pool, error));
  struct weft_buffer *buffer = *transfer.buffer;
  if (pool->staged) {
    WEFT_TRY(weft_executor_transfer_out(executor, buffer, pool, error));
  }
  WEFT_TRY(write_header(executor, buffer, action, port->sent, error));
  const bool enqueues = weft_executor_is_enqueued(executor);
  if (enqueues) {
    WEFT_TRY(weft_executor_begin_transfer(executor, buffer, true, error));
  }
  const enum weft_status status = executor->transport->ops->post(
      executor->transport, port->send_channel, true, &buffer->message, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_executor_block(executor, WEFT_PHASE_SEND, peer, weft_action_idle(),
                               poll_at(executor), error);
  }
  WEFT_TRY(status);
  if (enqueues) {
    WEFT_TRY(weft_executor_end_transfer(executor, buffer, peer, true, error));
  }
  buffer->record = (uint32_t)executor->at;
  weft_buffer_pool_record_send(pool, buffer);
  *transfer.buffer = NULL;
  port->sent++;
  if (executor->send_capacity != WEFT_CAPACITY_UNLIMITED) {
    executor->cell_step = WEFT_CELL_CALLING;
    return await_taken(executor, pool, action, peer, error);
  }
  return WEFT_OK;
}

/* ---- RECV ---- */

enum weft_status weft_executor_await(struct weft_executor *executor,
                                     const struct weft_executor_stage *stage,
                                     const struct weft_port *port, struct weft_buffer *buffer,
                                     uint32_t microbatch, bool forward, struct weft_error *error) {
  struct weft_transport *transport = executor->transport;
  const struct weft_buffer_pool *pool = forward ? port->activations : port->gradients;
  assert(pool != NULL && buffer != NULL && buffer->under_way);
  const enum weft_status status = transport->ops->test(transport, &buffer->message, error);
  if (status == WEFT_IN_PROGRESS) {
    const struct weft_action sender = weft_action_transfer(
        forward ? WEFT_OP_SEND_F : WEFT_OP_SEND_B, port->other, stage->stage, microbatch);
    return weft_executor_block(executor, WEFT_PHASE_RECEIVE, port->rank, sender, 0, error);
  }
  WEFT_TRY(status);
  buffer->under_way = false;
  executor->blamed_rank = port->rank;
  if (weft_message_check(&buffer->message, error) < 0) {
    /* Adds the sender, which a damaged message cannot name reliably. */
    return weft_fail(error, WEFT_ERR_PROTOCOL, error->hint,
                     "rank %" PRIu32 " got a damaged message from rank %" PRIu32 ": %s",
                     transport->rank, port->rank, error->message);
  }
  WEFT_TRY(
      check_header(executor,
                   &(struct expected){
                       .stage = stage, .port = port, .microbatch = microbatch, .forward = forward},
                   buffer, error));
  WEFT_TRY(weft_buffer_unpack(buffer, pool, error));
  if (weft_executor_is_enqueued(executor)) {
    WEFT_TRY(weft_executor_await_transfer(executor, buffer, error));
  } else if (pool->staged) {
    WEFT_TRY(weft_executor_transfer_in(executor, buffer, pool, error));
  }
  executor->blamed_rank = transport->rank;
  end_transfer(executor, buffer);
  return WEFT_OK;
}

static enum weft_status post_receive(struct weft_executor *executor,
                                     const struct transfer *transfer, struct weft_error *error) {
  struct weft_buffer *buffer;
  struct weft_port *port = transfer->port;
  WEFT_AWAIT(
      weft_executor_take(executor, transfer->stage->stage, port, transfer->pool, &buffer, error));
  const bool enqueues = weft_executor_is_enqueued(executor);
  if (enqueues) {
    WEFT_TRY(weft_executor_begin_transfer(executor, buffer, false, error));
  }
  const enum weft_status status = executor->transport->ops->post(
      executor->transport, port->receive_channel, false, &buffer->message, error);
  if (status != WEFT_OK) {
    weft_buffer_pool_give(transfer->pool, buffer);
    return status < 0 ? status
                      : weft_executor_block(executor, WEFT_PHASE_RECEIVE, port->rank,
                                            weft_action_idle(), poll_at(executor), error);
  }
  if (enqueues) {
    WEFT_TRY(weft_executor_end_transfer(executor, buffer, port->rank, false, error));
  }
  buffer->under_way = true;
  buffer->record = (uint32_t)executor->at;
  buffer->sequence = port->received++;
  *transfer->buffer = buffer;
  return WEFT_OK;
}

enum weft_status weft_executor_receive(struct weft_executor *executor,
                                       const struct weft_action *action, struct weft_error *error) {
  const bool forward = action->op == WEFT_OP_RECV_F;
  const struct transfer transfer = find_transfer(executor, action, forward, forward);
  if (transfer.port == NULL) {
    return weft_executor_fail_action(executor, action, "there is no other rank to receive it from",
                                     error);
  }
  if (transfer.pool == NULL) {
    return WEFT_OK; /* the boundary carries no gradients */
  }
  if (executor->cell_step == WEFT_CELL_NEW) {
    if (*transfer.buffer != NULL) {
      return weft_executor_fail_action(executor, action, "it has been received before", error);
    }
    WEFT_AWAIT(post_receive(executor, &transfer, error));
  }
  if (!executor->row_waits) {
    return WEFT_OK;
  }
  executor->cell_step = WEFT_CELL_CALLING;
  assert(*transfer.buffer != NULL);
  WEFT_AWAIT(weft_executor_await(executor, transfer.stage, transfer.port, *transfer.buffer,
                                 action->microbatch, forward, error));
  executor->cell_step = WEFT_CELL_NEW;
  return WEFT_OK;
}
