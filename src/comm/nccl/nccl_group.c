/* Groups. Collectives on the GPU are enqueued on a communicator of the members (nccl_sum.c), which
 * open() makes; those in memory of the host are the mpi world's. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "comm/group_plan.h"
#include "comm/nccl/nccl_world.h"

/* A collective in the group's own stream, for which test() waits. */
struct weft_nccl_pending {
  struct weft_device_event *event;
  const struct weft_collective *of; /* NULL: of none now */
  struct weft_nccl_pending *next;
};

/* ---- Starting ---- */

static enum weft_status check_collective(const struct weft_nccl_group *group,
                                         const struct weft_collective *collective,
                                         struct weft_error *error) {
  WEFT_TRY(weft_group_check(collective, group->base.size, error));
  if (collective->device != group->device ||
      (group->base.size > 1 && group->communicator == NULL)) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "create the group with the device of its collectives, before channels are "
                     "opened",
                     "rank %" PRIu32 ": group %" PRIu32
                     " is %s, and a collective of it is on a device (%s)",
                     group->world->transport.rank, group->id,
                     collective->device == group->device ? "not connected"
                     : group->device == NULL             ? "one of the host"
                                                         : "one of another device",
                     weft_device_name(collective->device));
  }
  return WEFT_OK;
}

/* The event of a collective; of NULL: one that is free. */
static struct weft_nccl_pending *find_pending(const struct weft_nccl_group *group,
                                              const struct weft_collective *of) {
  struct weft_nccl_pending *one = group->pending;
  while (one != NULL && one->of != of) {
    one = one->next;
  }
  return one;
}

static enum weft_status record_pending(struct weft_nccl_group *group,
                                       const struct weft_collective *collective,
                                       struct weft_error *error) {
  assert(group->communicator != NULL && collective->stream == NULL);
  struct weft_nccl_world *world = group->world;
  struct weft_device *device = group->device;
  struct weft_nccl_pending *one = find_pending(group, NULL);
  if (one == NULL) {
    one = weft_array_allocate_zero(world->allocator, 1, sizeof *one);
    if (one == NULL) {
      return weft_fail_memory(error, sizeof *one);
    }
    one->next = group->pending;
    group->pending = one;
  }
  if (one->event == NULL) {
    WEFT_TRY(device->ops->event_create(device, false, &one->event, error));
  }
  WEFT_TRY(device->ops->event_record(device, one->event, group->communicator->stream, error));
  one->of = collective;
  world->polled++;
  return WEFT_OK;
}

/* In the group's own stream, which other work of the device is not ordered with. */
static enum weft_status start_own(struct weft_nccl_group *group, struct weft_collective *collective,
                                  struct weft_error *error) {
  struct weft_nccl_world *world = group->world;
  struct weft_nccl_communicator *communicator = group->communicator;
  WEFT_TRY(weft_nccl_own_stream(world, communicator, error));
  enum weft_status status =
      weft_nccl_collect(world, communicator, collective, communicator->stream, error);
  if (status == WEFT_OK) {
    status = record_pending(group, collective, error);
  }
  if (status < 0) {
    weft_nccl_drain(world, communicator); /* what was enqueued of it */
  }
  return status;
}

static enum weft_status start_collective(struct weft_group *base,
                                         struct weft_collective *collective,
                                         struct weft_error *error) {
  struct weft_nccl_group *group = (struct weft_nccl_group *)base;
  if (weft_device_is_host(collective->device)) {
    return group->inner->ops->start(group->inner, collective, error);
  }
  WEFT_TRY(check_collective(group, collective, error));
  if (base->size == 1) { /* it has no communicator */
    return weft_nccl_copy_own(group->device, collective, 0, collective->stream, error);
  }
  WEFT_TRY(weft_nccl_check_alive(group->world, error));
  return collective->stream != NULL ? weft_nccl_collect(group->world, group->communicator,
                                                        collective, collective->stream, error)
                                    : start_own(group, collective, error);
}

/* ---- Ending ---- */

static enum weft_status test_collective(struct weft_group *base, struct weft_collective *collective,
                                        struct weft_error *error) {
  struct weft_nccl_group *group = (struct weft_nccl_group *)base;
  struct weft_device *device = group->device;
  if (weft_device_is_host(collective->device)) {
    return group->inner->ops->test(group->inner, collective, error);
  }
  struct weft_nccl_pending *one = find_pending(group, collective);
  if (one == NULL) {
    return WEFT_OK;
  }
  const enum weft_status status = device->ops->event_query(device, one->event, error);
  if (status == WEFT_OK) {
    WEFT_TRY(weft_nccl_check_alive(group->world, error)); /* aborted work ends, too */
    one->of = NULL;
    group->world->polled--;
  }
  return status;
}

/* ---- Making and destroying ---- */

static void leave_world(struct weft_nccl_group *group) {
  struct weft_nccl_group **link = &group->world->groups;
  while (*link != NULL && *link != group) {
    link = &(*link)->next;
  }
  if (*link != NULL) {
    *link = group->next;
    group->world->group_count--;
  }
  if (group->communicator != NULL) {
    group->communicator->group = NULL; /* the communicator stays, until all end */
  }
}

static void destroy_group(struct weft_group *base) {
  struct weft_nccl_group *group = (struct weft_nccl_group *)base;
  const struct weft_allocator *allocator = group->world->allocator;
  while (group->pending != NULL) {
    struct weft_nccl_pending *one = group->pending;
    group->pending = one->next;
    if (one->of != NULL) { /* after a failure it may be under way */
      weft_nccl_drain(group->world, group->communicator);
      group->world->polled--;
    }
    group->device->ops->event_destroy(group->device, one->event);
    weft_array_free(allocator, one, 1, sizeof *one);
  }
  leave_world(group);
  group->inner->ops->destroy(group->inner);
  weft_array_free(allocator, group, 1, sizeof *group);
}

static enum weft_status check_group(const struct weft_nccl_world *world, uint32_t id,
                                    const struct weft_device *device, struct weft_error *error) {
  if (world->ends.opened) {
    return weft_fail(error, WEFT_ERR_USAGE, "create groups with a device before the pipeline",
                     "rank %" PRIu32 " creates group %" PRIu32
                     " for collectives on its GPU after its channels have been opened",
                     world->transport.rank, id);
  }
  if (world->groups != NULL && world->groups->device != device) {
    return weft_fail(error, WEFT_ERR_USAGE, "a rank has one device",
                     "rank %" PRIu32 " creates groups for two devices", world->transport.rank);
  }
  return WEFT_OK;
}

enum weft_status weft_nccl_group(struct weft_transport *transport, uint32_t id,
                                 const uint32_t *ranks, uint32_t count, struct weft_device *device,
                                 struct weft_group **out, struct weft_error *error) {
  assert(out != NULL && (ranks != NULL || count == 0));
  static const struct weft_group_ops ops = {
      .destroy = destroy_group, .start = start_collective, .test = test_collective};
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  device = weft_device_is_host(device) ? NULL : device;
  const bool connects = device != NULL && count > 1;
  if (connects) {
    WEFT_TRY(check_group(world, id, device, error));
  }
  struct weft_nccl_group *group = weft_array_allocate_zero(world->allocator, 1, sizeof *group);
  if (group == NULL) {
    return weft_fail_memory(error, sizeof *group);
  }
  const enum weft_status status =
      world->inner->ops->group(world->inner, id, ranks, count, NULL, &group->inner, error);
  if (status < 0) {
    weft_array_free(world->allocator, group, 1, sizeof *group);
    return status;
  }
  group->world = world;
  group->device = device;
  group->id = id;
  group->base =
      (struct weft_group){.ops = &ops, .member = group->inner->member, .size = group->inner->size};
  if (connects) {
    group->next = world->groups;
    world->groups = group;
    world->group_count++;
  }
  *out = &group->base;
  return WEFT_OK;
}
