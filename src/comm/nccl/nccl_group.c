/* Groups. Sums are taken in the order of members, which NCCL's own collectives do not promise: a
 * collective on a GPU goes through memory of the host and MPI's groups, which do. */
#include <assert.h>

#include <weft/support.h>

#include "comm/nccl/nccl_world.h"

struct nccl_group {
  struct weft_group group; /* first */
  struct weft_nccl_world *world;
  struct weft_group *inner; /* of the mpi world */
  struct staged *staged;    /* in flight */
};

/* A collective on a GPU, in memory of the host. */
struct staged {
  struct weft_collective inner;
  struct weft_collective *of;
  char *from, *to;
  uint64_t from_bytes, to_bytes;
  struct staged *next;
};

static struct nccl_group *self_of(struct weft_group *group) { return (struct nccl_group *)group; }

static void free_staged(const struct nccl_group *self, struct staged *staged) {
  const struct weft_allocator *allocator = self->world->allocator;
  weft_array_free(allocator, staged->from, (size_t)staged->from_bytes + 1, 1);
  weft_array_free(allocator, staged->to, (size_t)staged->to_bytes + 1, 1);
  weft_array_free(allocator, staged, 1, sizeof *staged);
}

static void destroy(struct weft_group *group) {
  if (group == NULL) {
    return;
  }
  struct nccl_group *self = self_of(group);
  self->inner->ops->destroy(self->inner);
  while (self->staged != NULL) {
    struct staged *next = self->staged->next;
    free_staged(self, self->staged);
    self->staged = next;
  }
  weft_array_free(self->world->allocator, self, 1, sizeof *self);
}

static enum weft_status copy(struct staged *staged, bool to_host, struct weft_error *error) {
  const struct weft_collective *of = staged->of;
  const struct weft_copy one = {.to = to_host ? staged->from : of->to,
                                .to_device = to_host ? NULL : of->device,
                                .from = to_host ? of->from : staged->to,
                                .from_device = to_host ? of->device : NULL,
                                .row_bytes = to_host ? staged->from_bytes : staged->to_bytes,
                                .rows = 1};
  return one.row_bytes > 0 ? weft_copy(&one, NULL, error) : WEFT_OK;
}

static enum weft_status stage(struct nccl_group *self, struct weft_collective *collective,
                              struct staged **out, struct weft_error *error) {
  const struct weft_allocator *allocator = self->world->allocator;
  const uint64_t all = collective->bytes * self->group.size;
  struct staged *staged = weft_array_allocate_zero(allocator, 1, sizeof *staged);
  if (staged == NULL) {
    return weft_fail_memory(error, sizeof *staged);
  }
  staged->of = collective;
  staged->from_bytes = collective->kind == WEFT_REDUCE_SCATTER ? all : collective->bytes;
  staged->to_bytes = collective->kind == WEFT_ALL_GATHER ? all : collective->bytes;
  staged->from = weft_array_allocate(allocator, (size_t)staged->from_bytes + 1, 1);
  staged->to = weft_array_allocate(allocator, (size_t)staged->to_bytes + 1, 1);
  if (staged->from == NULL || staged->to == NULL) {
    free_staged(self, staged);
    return weft_fail_memory(error, (size_t)all);
  }
  staged->inner = (struct weft_collective){
      .kind = collective->kind, .from = staged->from, .to = staged->to, .bytes = collective->bytes};
  *out = staged;
  return WEFT_OK;
}

static enum weft_status start(struct weft_group *group, struct weft_collective *collective,
                              struct weft_error *error) {
  struct nccl_group *self = self_of(group);
  struct staged *staged = NULL;
  if (weft_device_is_host(collective->device)) {
    return self->inner->ops->start(self->inner, collective, error);
  }
  WEFT_TRY(stage(self, collective, &staged, error));
  assert(staged != NULL);
  enum weft_status status = copy(staged, true, error);
  if (status == WEFT_OK) {
    status = self->inner->ops->start(self->inner, &staged->inner, error);
  }
  if (status < 0) {
    free_staged(self, staged);
    return status;
  }
  staged->next = self->staged;
  self->staged = staged;
  return WEFT_OK;
}

static enum weft_status test(struct weft_group *group, struct weft_collective *collective,
                             struct weft_error *error) {
  struct nccl_group *self = self_of(group);
  if (weft_device_is_host(collective->device)) {
    return self->inner->ops->test(self->inner, collective, error);
  }
  struct staged **link = &self->staged;
  while (*link != NULL && (*link)->of != collective) {
    link = &(*link)->next;
  }
  struct staged *staged = *link;
  if (staged == NULL) {
    return WEFT_OK;
  }
  enum weft_status status = self->inner->ops->test(self->inner, &staged->inner, error);
  if (status == WEFT_OK) {
    status = copy(staged, false, error);
  }
  if (status == WEFT_OK) {
    *link = staged->next;
    free_staged(self, staged);
  }
  return status;
}

enum weft_status weft_nccl_group(struct weft_transport *transport, uint32_t id,
                                 const uint32_t *ranks, uint32_t count, struct weft_group **out,
                                 struct weft_error *error) {
  static const struct weft_group_ops ops = {.destroy = destroy, .start = start, .test = test};
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  struct nccl_group *self = weft_array_allocate_zero(world->allocator, 1, sizeof *self);
  if (self == NULL) {
    return weft_fail_memory(error, sizeof *self);
  }
  const enum weft_status status =
      world->inner->ops->group(world->inner, id, ranks, count, &self->inner, error);
  if (status < 0) {
    weft_array_free(world->allocator, self, 1, sizeof *self);
    return status;
  }
  self->world = world;
  self->group =
      (struct weft_group){.ops = &ops, .member = self->inner->member, .size = self->inner->size};
  *out = &self->group;
  return WEFT_OK;
}
