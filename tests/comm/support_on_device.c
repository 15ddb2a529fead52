/* See support_on_device.h. Payloads are in memory of the host that the device accesses too, so
 * that no copy has to wait for the device's streams. It is freed at the end: CUDA waits for all
 * that runs on the device before it frees, and so for transfers that wait for other ranks. */
#include "support_on_device.h"

#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

enum { ENDS_MAX = 64, ROOM = 128 * 1024 };

/* A message under way. */
struct copy {
  struct weft_message message;
  struct weft_message *of;
  bool sends;
  struct copy *next;
};

struct on_device {
  struct weft_transport transport; /* first */
  struct weft_transport_ops ops;
  struct weft_transport *inner;
  struct weft_device *device;
  struct weft_channel_end ends[ENDS_MAX];
  uint32_t end_count;
  struct copy *copies;
  struct copy *unused; /* with their memory, of ROOM bytes */
};

static struct on_device *self_of(struct weft_transport *transport) {
  return (struct on_device *)transport;
}

static void destroy(struct weft_transport *transport) {
  struct on_device *self = self_of(transport);
  while (self->unused != NULL) {
    struct copy *copy = self->unused;
    self->unused = copy->next;
    self->device->ops->free_host(self->device, copy->message.data);
    free(copy);
  }
  free(self);
}

static enum weft_status open_channels(struct weft_transport *transport,
                                      const struct weft_channel_end *ends, uint32_t count,
                                      struct weft_error *error) {
  struct on_device *self = self_of(transport);
  if (count > ENDS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "", "%u ends", count);
  }
  for (uint32_t k = 0; k < count; k++) {
    self->ends[k] = ends[k];
    self->ends[k].device = self->device;
  }
  self->end_count = count;
  return self->inner->ops->open(self->inner, self->ends, count, error);
}

static const struct weft_channel_end *find(const struct on_device *self, uint32_t channel) {
  for (uint32_t k = 0; k < self->end_count; k++) {
    if (self->ends[k].channel == channel) {
      return &self->ends[k];
    }
  }
  return NULL;
}

static void give_back(struct on_device *self, struct copy **link) {
  struct copy *copy = *link;
  *link = copy->next;
  copy->next = self->unused;
  self->unused = copy;
}

static struct copy *take_copy(struct on_device *self) {
  struct copy *copy = self->unused;
  if (copy != NULL) {
    self->unused = copy->next;
    return copy;
  }
  copy = calloc(1, sizeof *copy);
  if (copy != NULL) {
    copy->message.data = self->device->ops->allocate_host(self->device, ROOM);
  }
  if (copy != NULL && copy->message.data == NULL) {
    free(copy);
    return NULL;
  }
  return copy;
}

static enum weft_status post_one(struct weft_transport *transport, uint32_t channel, bool sends,
                                 struct weft_message *message, struct weft_error *error) {
  struct on_device *self = self_of(transport);
  const struct weft_channel_end *end = find(self, channel);
  struct copy *copy = take_copy(self);
  if (copy == NULL) {
    return weft_fail_memory(error, ROOM);
  }
  void *data = copy->message.data;
  const uint64_t bytes = end != NULL ? end->bytes_max : message->capacity;
  copy->message = *message;
  copy->message.device = self->device;
  copy->message.capacity = ROOM;
  copy->message.data = data;
  copy->of = message;
  copy->sends = sends;
  copy->next = self->copies;
  self->copies = copy;
  if (sends && message->header.bytes <= bytes) {
    memcpy(copy->message.data, message->data, (size_t)message->header.bytes);
  }
  const enum weft_status status =
      self->inner->ops->post(self->inner, channel, sends, &copy->message, error);
  if (status != WEFT_OK) {
    give_back(self, &self->copies);
  }
  return status;
}

static struct copy **find_copy(struct on_device *self, const struct weft_message *message) {
  struct copy **link = &self->copies;
  while (*link != NULL && (*link)->of != message) {
    link = &(*link)->next;
  }
  return link;
}

static enum weft_status test_one(struct weft_transport *transport, struct weft_message *message,
                                 struct weft_error *error) {
  struct on_device *self = self_of(transport);
  struct copy **link = find_copy(self, message), *copy = *link;
  if (copy == NULL) {
    return WEFT_OK;
  }
  const enum weft_status status = self->inner->ops->test(self->inner, &copy->message, error);
  if (status != WEFT_OK) {
    return status;
  }
  if (!copy->sends) {
    message->header = copy->message.header;
    memcpy(message->shapes, copy->message.shapes, sizeof message->shapes);
    memcpy(message->data, copy->message.data, (size_t)message->header.bytes);
  }
  message->begin = copy->message.begin;
  message->end = copy->message.end;
  give_back(self, link);
  return WEFT_OK;
}

static void cancel_one(struct weft_transport *transport, struct weft_message *message) {
  struct on_device *self = self_of(transport);
  struct copy **link = find_copy(self, message);
  if (*link != NULL) {
    self->inner->ops->cancel(self->inner, &(*link)->message);
    give_back(self, link);
  }
}

static enum weft_status progress(struct weft_transport *transport, struct weft_error *error) {
  struct weft_transport *inner = self_of(transport)->inner;
  return inner->ops->progress(inner, error);
}
static enum weft_status wait_until(struct weft_transport *transport, int64_t until,
                                   struct weft_error *error) {
  struct weft_transport *inner = self_of(transport)->inner;
  return inner->ops->wait(inner, until, error);
}
static int64_t now(struct weft_transport *transport) {
  struct weft_transport *inner = self_of(transport)->inner;
  return inner->ops->now(inner);
}
static enum weft_status exchange(struct weft_transport *transport, const void *mine, void *all,
                                 size_t size, struct weft_error *error) {
  struct weft_transport *inner = self_of(transport)->inner;
  return inner->ops->exchange(inner, mine, all, size, error);
}
static void fail_world(struct weft_transport *transport, const struct weft_failure *failure) {
  struct weft_transport *inner = self_of(transport)->inner;
  inner->ops->fail(inner, failure);
}
static bool get_failure(struct weft_transport *transport, struct weft_failure *failure) {
  struct weft_transport *inner = self_of(transport)->inner;
  return inner->ops->get_failure(inner, failure);
}
static struct weft_rank_status *rank_status(struct weft_transport *transport, uint32_t rank) {
  struct weft_transport *inner = self_of(transport)->inner;
  return inner->ops->rank_status(inner, rank);
}
static void refresh_status(struct weft_transport *transport, int64_t until) {
  struct weft_transport *inner = self_of(transport)->inner;
  inner->ops->refresh_status(inner, until);
}
static void location(struct weft_transport *transport, uint32_t rank, char *buffer, size_t size) {
  struct weft_transport *inner = self_of(transport)->inner;
  inner->ops->location(inner, rank, buffer, size);
}

struct weft_transport *on_device_create(struct weft_transport *inner, struct weft_device *device) {
  struct on_device *self = calloc(1, sizeof *self);
  if (self == NULL) {
    return NULL;
  }
  self->inner = inner;
  self->device = device;
  self->ops = (struct weft_transport_ops){.name = "on a device",
                                          .async_progress = inner->ops->async_progress,
                                          .destroy = destroy,
                                          .open = open_channels,
                                          .post = post_one,
                                          .test = test_one,
                                          .cancel = cancel_one,
                                          .progress = progress,
                                          .wait = wait_until,
                                          .now = now,
                                          .exchange = exchange,
                                          .fail = fail_world,
                                          .get_failure = get_failure,
                                          .rank_status = rank_status,
                                          .refresh_status = refresh_status,
                                          .location = location};
  self->transport = (struct weft_transport){
      .ops = &self->ops, .rank = inner->rank, .rank_count = inner->rank_count};
  return &self->transport;
}
