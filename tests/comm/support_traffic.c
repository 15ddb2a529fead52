/* Traffic between ranks: see support_traffic.h. Each end of a flow has a window
 * of messages with a buffer each; message k uses slot k modulo window. */
#include "support_traffic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "support_protected_device.h"

struct traffic_slot {
  struct weft_message message;
  bool under_way;
};

struct traffic_end {
  const struct traffic_flow *flow;
  uint32_t number; /* of the flow */
  bool sends;
  bool stuck; /* had to wait once */
  uint32_t window;
  struct traffic_slot *slots;
  uint64_t started;
  uint64_t finished; /* all before are */
};

struct traffic_rank {
  struct traffic *traffic;
  struct traffic_end ends[TRAFFIC_FLOWS_MAX];
  uint32_t end_count;
  uint32_t by_flow[TRAFFIC_FLOWS_MAX]; /* index + 1 of its end */
  struct weft_random random;
  bool opened;
  uint64_t started; /* of all ends */
  uint64_t buffers; /* it began with */
  uint64_t freed;   /* by itself, after a failure */
};

/* ---- what must come ---- */

static struct weft_random random_of(const struct traffic *traffic, uint32_t flow, uint64_t k) {
  struct weft_random random = {traffic->seed + flow * UINT64_C(0x100000001b3) + (k << 32)};
  (void)weft_random_next(&random);
  return random;
}

static uint64_t size_of(const struct traffic_flow *flow, struct weft_random *random) {
  const uint32_t any = weft_random_below(random, (uint32_t)flow->bytes_max + 1);
  switch (flow->sizes) {
    case TRAFFIC_EMPTY: return 0;
    case TRAFFIC_LARGEST: return flow->bytes_max;
    default: return any;
  }
}

static void expected_message(const struct traffic *traffic, uint32_t flow, uint64_t k,
                             struct weft_message *out) {
  struct weft_random random = random_of(traffic, flow, k);
  memset(out, 0, sizeof *out);
  out->header = (struct weft_message_header){.magic = WEFT_MESSAGE_MAGIC,
                                             .protocol = WEFT_PROTOCOL,
                                             .kind = flow & 1,
                                             .stage = flow / 2,
                                             .sequence = k};
  out->header.bytes = size_of(&traffic->flows[flow], &random);
  out->header.tensor_count = (uint8_t)weft_random_below(&random, WEFT_TENSORS_MAX + 1);
  out->header.microbatch = (uint32_t)weft_random_next(&random);
  out->header.step = weft_random_next(&random);
  out->header.program = (uint32_t)weft_random_next(&random);
  out->header.payload_checksum = weft_random_next(&random);
  for (uint32_t t = 0; t < out->header.tensor_count; t++) {
    out->shapes[t] = (struct weft_tensor_shape){.dtype = WEFT_U8, .dim_count = 2};
    out->shapes[t].dims[0] = weft_random_below(&random, (uint32_t)out->header.bytes + 1);
    out->shapes[t].dims[1] = 1;
  }
  weft_message_seal(out);
}

static unsigned char payload_byte(uint32_t flow, uint64_t k, uint64_t i) {
  return (unsigned char)((flow * 31 + k * 7 + i) * 167 >> 3);
}

static void write_message(const struct traffic *traffic, uint32_t flow, uint64_t k,
                          struct weft_message *message) {
  struct weft_message content;
  expected_message(traffic, flow, k, &content);
  message->header = content.header;
  memcpy(message->shapes, content.shapes, sizeof content.shapes);
  unsigned char *payload = test_device_view(message->device, message->data);
  for (uint64_t i = 0; i < content.header.bytes; i++) {
    payload[i] = payload_byte(flow, k, i);
  }
}

static enum weft_status check_message(const struct traffic *traffic, uint32_t flow, uint64_t k,
                                      const struct weft_message *message,
                                      struct weft_error *error) {
  struct weft_message content;
  expected_message(traffic, flow, k, &content);
  WEFT_TRY(weft_message_check(message, error));
  CONFORMANCE_CHECK(error, message->header.sequence == k);
  CONFORMANCE_CHECK(error, memcmp(&message->header, &content.header, sizeof content.header) == 0);
  CONFORMANCE_CHECK(error, memcmp(message->shapes, content.shapes,
                                  content.header.tensor_count * sizeof content.shapes[0]) == 0);
  CONFORMANCE_CHECK(error, message->capacity >= traffic->flows[flow].bytes_max);
  CONFORMANCE_CHECK(error, message->device == test_device());
  const unsigned char *payload = test_device_view(message->device, message->data);
  for (uint64_t i = 0; i < content.header.bytes; i++) {
    CONFORMANCE_CHECK(error, payload[i] == payload_byte(flow, k, i));
  }
  return WEFT_OK;
}

/* ---- a rank at work ---- */

static const struct traffic_end *end_of(const struct traffic_rank *self, uint32_t flow) {
  return self->by_flow[flow] != 0 ? &self->ends[self->by_flow[flow] - 1] : NULL;
}

static bool may_start(const struct traffic_rank *self, const struct traffic_end *end) {
  const struct traffic_condition *when =
      end->sends ? &end->flow->send_when : &end->flow->receive_when;
  if (end->started == end->flow->count || end->started - end->finished == end->window) {
    return false;
  }
  if (when->count == TRAFFIC_FREE) {
    return true;
  }
  const struct traffic_end *other = end_of(self, when->flow);
  uint64_t count = 0;
  switch (when->count) {
    case TRAFFIC_RECEIVED: count = other->finished; break;
    case TRAFFIC_POSTED: count = other->started; break;
    default: count = other->stuck || other->started == other->flow->count; break;
  }
  return count * when->factor + when->lead > end->started;
}

/* Sends or posts the next one. WEFT_IN_PROGRESS: it cannot now. */
static enum weft_status start_next(struct traffic_rank *self, struct traffic_end *end,
                                   struct weft_transport *transport, struct weft_error *error) {
  struct traffic_slot *slot = &end->slots[end->started % end->window];
  if (end->sends) {
    write_message(self->traffic, end->number, end->started, &slot->message);
  }
  const void *data = slot->message.data;
  const enum weft_status status =
      transport->ops->post(transport, end->number, end->sends, &slot->message, error);
  WEFT_TRY(status);
  if (status == WEFT_IN_PROGRESS) {
    CONFORMANCE_CHECK(error, slot->message.data == data);
    CONFORMANCE_CHECK(error, end->started - end->finished >= end->flow->depth);
    end->stuck = true;
    return status;
  }
  slot->under_way = true;
  end->started++;
  self->started++;
  return WEFT_OK;
}

static enum weft_status finish_one(struct traffic_rank *self, struct traffic_end *end, uint64_t k,
                                   struct weft_transport *transport, struct weft_error *error) {
  struct traffic_slot *slot = &end->slots[k % end->window];
  const enum weft_status status = transport->ops->test(transport, &slot->message, error);
  if (status != WEFT_OK) {
    return status;
  }
  slot->under_way = false;
  CONFORMANCE_CHECK(error, slot->message.data != NULL);
  CONFORMANCE_CHECK(error, slot->message.begin <= slot->message.end);
  CONFORMANCE_CHECK(error, slot->message.end <= transport->ops->now(transport));
  return end->sends ? WEFT_OK : check_message(self->traffic, end->number, k, &slot->message, error);
}

/* In any order when hesitant; *moved when something was done. */
static enum weft_status finish_some(struct traffic_rank *self, struct traffic_end *end,
                                    struct weft_transport *transport, bool *moved, bool *left,
                                    struct weft_error *error) {
  for (uint64_t k = end->finished; k < end->started; k++) {
    if (!end->slots[k % end->window].under_way) {
      continue;
    }
    if (self->traffic->hesitant && weft_random_below(&self->random, 4) == 0) {
      *left = true;
      continue;
    }
    const enum weft_status status = finish_one(self, end, k, transport, error);
    WEFT_TRY(status);
    *moved |= status == WEFT_OK;
  }
  while (end->finished < end->started && !end->slots[end->finished % end->window].under_way) {
    end->finished++;
  }
  return WEFT_OK;
}

static enum weft_status advance_end(struct traffic_rank *self, struct traffic_end *end,
                                    struct weft_transport *transport, bool *moved, bool *left,
                                    struct weft_error *error) {
  while (may_start(self, end)) {
    if (self->traffic->hesitant && weft_random_below(&self->random, 4) == 0) {
      *left = true;
      break;
    }
    const struct traffic *traffic = self->traffic;
    if (traffic->fail_after != 0 && transport->rank == traffic->fail_rank &&
        self->started == traffic->fail_after) {
      return weft_fail(error, WEFT_ERR_STAGE, "", "rank %u fails on purpose", transport->rank);
    }
    const enum weft_status status = start_next(self, end, transport, error);
    WEFT_TRY(status);
    if (status == WEFT_IN_PROGRESS) {
      break;
    }
    *moved = true;
  }
  return finish_some(self, end, transport, moved, left, error);
}

static enum weft_status open_ends(struct traffic_rank *self, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct weft_channel_end ends[TRAFFIC_FLOWS_MAX];
  for (uint32_t k = 0; k < self->end_count; k++) {
    const struct traffic_end *end = &self->ends[k];
    ends[k] = (struct weft_channel_end){.channel = end->number,
                                        .peer = end->sends ? end->flow->to : end->flow->from,
                                        .sends = end->sends,
                                        .depth = end->flow->depth,
                                        .bytes_max = end->flow->bytes_max};
  }
  self->opened = true;
  return transport->ops->open(transport, ends, self->end_count, error);
}

static bool all_finished(const struct traffic_rank *self) {
  for (uint32_t k = 0; k < self->end_count; k++) {
    if (self->ends[k].finished < self->ends[k].flow->count) {
      return false;
    }
  }
  return true;
}

static enum weft_status advance(struct conformance_rank *rank, struct weft_error *error) {
  struct traffic_rank *self = rank->state;
  struct weft_transport *transport = rank->transport;
  bool left = false;
  if (!self->opened) {
    WEFT_TRY(open_ends(self, transport, error));
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t k = 0; k < self->end_count; k++) {
      WEFT_TRY(advance_end(self, &self->ends[k], transport, &moved, &left, error));
    }
  }
  if (all_finished(self)) {
    return WEFT_OK;
  }
  if (left) {
    rank->until =
        transport->ops->now(transport) + 1 + (int64_t)weft_random_below(&self->random, 2000);
  }
  return WEFT_IN_PROGRESS;
}

/* Cancels what is in flight and frees all buffers, while others may be at work. */
static void tear_down(struct conformance_rank *rank) {
  struct traffic_rank *self = rank->state;
  for (uint32_t k = 0; k < self->end_count && self->traffic->fail_after != 0; k++) {
    for (uint32_t s = 0; s < self->ends[k].window; s++) {
      struct traffic_slot *slot = &self->ends[k].slots[s];
      if (slot->under_way) {
        rank->transport->ops->cancel(rank->transport, &slot->message);
      }
      self->freed += slot->message.data != NULL;
      test_block_free(slot->message.data, self->ends[k].flow->bytes_max + 1);
      slot->message.data = NULL;
    }
  }
}

/* ---- before and after ---- */

static void add_end(struct traffic_rank *self, uint32_t number, bool sends) {
  const struct traffic_flow *flow = &self->traffic->flows[number];
  struct traffic_end *end = &self->ends[self->end_count];
  self->by_flow[number] = ++self->end_count;
  end->flow = flow;
  end->number = number;
  end->sends = sends;
  end->window = sends ? flow->send_window : flow->receive_window;
  end->slots = calloc(end->window, sizeof *end->slots);
  assert_non_null(end->slots);
  for (uint32_t s = 0; s < end->window; s++) {
    end->slots[s].message.device = test_device();
    end->slots[s].message.data = test_block_allocate(flow->bytes_max + 1);
    end->slots[s].message.capacity = flow->bytes_max;
    assert_non_null(end->slots[s].message.data);
  }
  self->buffers += end->window;
}

void traffic_begin(struct traffic *traffic, struct conformance_rank *ranks, uint32_t rank_count) {
  assert_in_range(rank_count, 1, TRAFFIC_RANKS_MAX);
  for (uint32_t r = 0; r < rank_count; r++) {
    struct traffic_rank *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->traffic = traffic;
    self->random.state = traffic->seed * 977 + r;
    for (uint32_t f = 0; f < traffic->flow_count && ranks[r].transport != NULL; f++) {
      if (traffic->flows[f].from == r || traffic->flows[f].to == r) {
        add_end(self, f, traffic->flows[f].from == r);
      }
    }
    traffic->ranks[r] = self;
    ranks[r].state = self;
    ranks[r].advance = advance;
    ranks[r].end = tear_down;
  }
}

struct block {
  void *data;
  uint64_t bytes;
};

static int compare_blocks(const void *a, const void *b) {
  const uintptr_t x = (uintptr_t)((const struct block *)a)->data;
  const uintptr_t y = (uintptr_t)((const struct block *)b)->data;
  return (x > y) - (x < y);
}

/* Puts a rank's buffers into `all`; returns how many. */
static uint64_t collect(const struct traffic_rank *self, struct block *all) {
  uint64_t count = 0;
  for (uint32_t k = 0; k < self->end_count; k++) {
    for (uint32_t s = 0; s < self->ends[k].window; s++) {
      assert_false(self->ends[k].slots[s].under_way);
      all[count++] = (struct block){.data = self->ends[k].slots[s].message.data,
                                    .bytes = self->ends[k].flow->bytes_max + 1};
    }
  }
  return count;
}

/* As many as there were, and all different: each was allocated once. */
static void check_buffers(struct traffic *traffic, uint32_t rank_count) {
  uint64_t count = 0;
  uint64_t found = 0;
  for (uint32_t r = 0; r < rank_count; r++) {
    count += traffic->ranks[r]->buffers;
  }
  struct block *all = calloc(count + 1, sizeof *all);
  assert_non_null(all);
  for (uint32_t r = 0; r < rank_count; r++) {
    found += collect(traffic->ranks[r], all + found);
  }
  assert_int_equal(found, count);
  qsort(all, count, sizeof *all, compare_blocks);
  for (uint64_t k = 0; k < count; k++) {
    assert_non_null(all[k].data);
    assert_true(k == 0 || all[k].data != all[k - 1].data);
    test_block_free(all[k].data, all[k].bytes);
  }
  free(all);
}

static void check_freed(const struct traffic *traffic, uint32_t rank_count) {
  uint64_t count = 0;
  uint64_t freed = 0;
  for (uint32_t r = 0; r < rank_count; r++) {
    count += traffic->ranks[r]->buffers;
    freed += traffic->ranks[r]->freed;
  }
  assert_int_equal(freed, count);
}

void traffic_finish(struct traffic *traffic, uint32_t rank_count) {
  if (traffic->fail_after != 0) {
    check_freed(traffic, rank_count);
  } else {
    check_buffers(traffic, rank_count);
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    for (uint32_t k = 0; k < traffic->ranks[r]->end_count; k++) {
      free(traffic->ranks[r]->ends[k].slots);
    }
    free(traffic->ranks[r]);
  }
}
