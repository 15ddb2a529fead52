/* See support_pipelines.h. */
#include "support_pipelines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_protected_device.h"

void pipelines_open(struct pipelines *pipelines, const struct weft_allocator *allocator,
                    const struct weft_comm_options *options) {
  struct weft_error error;
  const uint32_t count = options->rank_count;
  memset(pipelines, 0, sizeof *pipelines);
  assert_int_equal(weft_comm_open(allocator, "loopback", options, &pipelines->world, &error),
                   WEFT_OK);
  pipelines->rank_count = count;
  pipelines->items = calloc(count, sizeof(struct weft_pipeline *));
  pipelines->transports = calloc(count, sizeof(struct weft_transport *));
  pipelines->statuses = calloc(count, sizeof *pipelines->statuses);
  pipelines->errors = calloc(count, sizeof *pipelines->errors);
  pipelines->dead = calloc(count, sizeof *pipelines->dead);
  for (uint32_t r = 0; r < count; r++) {
    pipelines->transports[r] = weft_comm_endpoint(pipelines->world, r);
    test_device_restrict(pipelines->transports[r]);
  }
}

enum weft_status pipelines_create(struct pipelines *pipelines,
                                  const struct weft_allocator *allocator,
                                  const struct weft_pipeline_options *options,
                                  struct weft_error *error) {
  struct weft_pipeline_options placed = *options;
  placed.device = test_device();
  for (uint32_t r = 0; r < pipelines->rank_count; r++) {
    const enum weft_status status = weft_pipeline_create(allocator, pipelines->transports[r],
                                                         &placed, &pipelines->items[r], error);
    if (status < 0) {
      return status;
    }
  }
  return WEFT_OK;
}

void pipelines_close(struct pipelines *pipelines) {
  for (uint32_t r = 0; r < pipelines->rank_count; r++) {
    weft_pipeline_destroy(pipelines->items[r]);
  }
  for (uint32_t r = 0; r < pipelines->rank_count; r++) {
    struct weft_transport *transport = pipelines->transports[r];
    if (transport->ops->destroy != NULL) {
      transport->ops->destroy(transport);
    }
  }
  weft_comm_close(pipelines->world);
  free(pipelines->items);
  free(pipelines->transports);
  free(pipelines->statuses);
  free(pipelines->errors);
  free(pipelines->dead);
}

static uint32_t begin_all(struct pipelines *pipelines, bool training,
                          const struct weft_batch *batches, uint32_t batch_count) {
  uint32_t running = 0;
  for (uint32_t r = 0; r < pipelines->rank_count; r++) {
    if (pipelines->dead[r]) {
      continue;
    }
    pipelines->statuses[r] = weft_pipeline_begin(
        pipelines->items[r], training, &batches[batch_count == 1 ? 0 : r], &pipelines->errors[r]);
    if (pipelines->statuses[r] == WEFT_OK) {
      pipelines->statuses[r] = WEFT_IN_PROGRESS;
      running++;
      weft_comm_wake(pipelines->world, r);
    }
  }
  return running;
}

static void advance(struct pipelines *pipelines, uint32_t r, uint32_t *running) {
  struct weft_error *error = &pipelines->errors[r];
  const enum weft_status status = weft_pipeline_advance(pipelines->items[r], error);
  if (status == WEFT_IN_PROGRESS) {
    assert_int_equal(weft_pipeline_wait(pipelines->items[r], error), WEFT_OK);
    return;
  }
  pipelines->statuses[r] = status;
  (*running)--;
}

enum weft_status pipelines_step(struct pipelines *pipelines, bool training,
                                const struct weft_batch *batches, uint32_t batch_count,
                                struct weft_error *error) {
  uint32_t running = begin_all(pipelines, training, batches, batch_count);
  while (running > 0) {
    uint32_t r;
    const enum weft_status status = weft_comm_next(pipelines->world, &r, error);
    if (status < 0) {
      return status;
    }
    if (pipelines->statuses[r] == WEFT_IN_PROGRESS && !pipelines->dead[r]) {
      advance(pipelines, r, &running);
    }
  }
  for (uint32_t r = 0; r < pipelines->rank_count; r++) {
    if (pipelines->statuses[r] < 0) {
      *error = pipelines->errors[r];
      return pipelines->statuses[r];
    }
  }
  return WEFT_OK;
}

struct weft_event *pipelines_events(const struct pipelines *pipelines, uint64_t *count) {
  uint64_t total = 0;
  for (uint32_t r = 0; r < pipelines->rank_count; r++) {
    uint64_t own;
    weft_pipeline_events(pipelines->items[r], NULL, 0, &own);
    total += own;
  }
  struct weft_event *events = malloc((total + 1) * sizeof *events);
  *count = 0;
  for (uint32_t r = 0; r < pipelines->rank_count; r++) {
    uint64_t own;
    weft_pipeline_events(pipelines->items[r], events + *count, total - *count, &own);
    *count += own;
  }
  return events;
}
