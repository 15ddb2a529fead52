/* Recordings of what was called, and their nodes in other orders. Nothing is computed: memory has
 * versions, a version being the node that wrote it, and a node that reads must find those that it
 * would find in the order of the calls. Kernels depend on what they read alone, so an order with
 * the same versions has the same bits. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

enum { NONE = UINT32_MAX };

/* Bytes that are always accessed together. */
struct access {
  uint32_t segment;
  uint32_t version; /* READ: that of the order of the calls */
  bool reads, writes;
};

struct noted {
  enum fake_node_kind kind; /* WORK for those in a graph */
  struct fake_operation operation;
  uint32_t record;                     /* WAIT: for this node; NONE: for one before the recording */
  uint32_t first_access, access_count; /* WORK */
  uint32_t first_follower, follower_count, before_count; /* in a graph */
};

struct raw_access {
  uintptr_t begin, end;
  uint32_t node;
  bool reads, writes;
};

struct fake_cuda_recording {
  struct noted *nodes; /* in the order of calls; those of a graph stand behind its launch */
  uint32_t node_count, node_capacity;
  uint32_t graph, graph_node_count; /* the launch, or NONE */
  uint32_t *followers, follower_capacity, follower_count;
  struct raw_access *raw;
  uint32_t raw_count, raw_capacity;
  struct access *accesses;
  uint32_t access_count, access_capacity;
  uint32_t segment_count, stream_count;
  uint32_t *last_versions; /* [segment_count] after all nodes */
  /* Of a replay. */
  uint32_t *versions; /* [segment_count] */
  uint32_t *next, *waiting,
      *left;                    /* [node_count]: in its queue; queues that wait for it; missing */
  bool *done;                   /* [node_count] */
  uint32_t *ready, ready_count; /* nodes that may run */
  uint32_t *queue_of;           /* [stream_count] */
  char finding[700];
};

static struct fake_cuda_recording *current; /* NULL: none */
static uint64_t recordings;                 /* so far */

/* ---- Noting ---- */

static struct noted *add_node(enum fake_node_kind kind, const struct fake_operation *operation) {
  struct fake_cuda_recording *to = current;
  to->nodes = fake_array_grow(to->nodes, &to->node_capacity, to->node_count + 1, sizeof *to->nodes);
  struct noted *node = &to->nodes[to->node_count++];
  *node = (struct noted){.kind = kind, .operation = *operation, .record = NONE};
  to->stream_count =
      operation->stream >= to->stream_count ? operation->stream + 1 : to->stream_count;
  return node;
}

static CUresult note_access(struct fake_visitor *visitor, uintptr_t data, uint64_t bytes,
                            bool reads, bool writes) {
  struct fake_cuda_recording *to = current;
  (void)visitor;
  if (bytes > 0) {
    to->raw = fake_array_grow(to->raw, &to->raw_capacity, to->raw_count + 1, sizeof *to->raw);
    to->raw[to->raw_count++] = (struct raw_access){.begin = data,
                                                   .end = data + bytes,
                                                   .node = to->node_count - 1,
                                                   .reads = reads,
                                                   .writes = writes};
  }
  return CUDA_SUCCESS;
}

static void note_work(const struct fake_work *work) {
  struct fake_visitor visitor = {.visit = note_access, .work = work};
  (void)fake_work_visit(work, &visitor);
}

static void note_graph(const struct CUgraph_st *graph) {
  struct fake_cuda_recording *to = current;
  assert(to->graph == NONE); /* one launch per recording */
  to->graph = to->node_count - 1;
  to->graph_node_count = graph->node_count;
  for (uint32_t k = 0; k < graph->node_count; k++) {
    const struct fake_graph_node *node = &graph->nodes[k];
    const struct fake_operation operation = {.name = node->work.name,
                                             .label = node->label,
                                             .stream_name = node->stream_name,
                                             .stream = node->stream,
                                             .serial = fake.serial};
    add_node(FAKE_NODE_WORK, &operation)->before_count = node->after_count;
    assert(node->records == NULL);
    note_work(&node->work);
  }
  for (uint32_t k = 0; k < graph->node_count; k++) {
    struct noted *node = &to->nodes[to->graph + 1 + k];
    node->first_follower = to->follower_count;
    for (uint32_t j = k + 1; j < graph->node_count; j++) {
      for (uint32_t i = 0; i < graph->nodes[j].after_count; i++) {
        if (graph->nodes[j].after[i] == k) {
          to->followers = fake_array_grow(to->followers, &to->follower_capacity,
                                          to->follower_count + 1, sizeof *to->followers);
          to->followers[to->follower_count++] = to->graph + 1 + j;
        }
      }
    }
    node->follower_count = to->follower_count - node->first_follower;
  }
}

void fake_note_node(const struct fake_node *node) {
  if (current == NULL) {
    return;
  }
  struct noted *noted = add_node(node->kind, &node->operation);
  if (node->kind == FAKE_NODE_RECORD) {
    node->mark->noted_in = recordings;
    node->mark->noted = current->node_count - 1;
  } else if (node->kind == FAKE_NODE_WAIT && node->mark->noted_in == recordings) {
    noted->record = node->mark->noted;
  } else if (node->kind == FAKE_NODE_WORK) {
    note_work(&node->work);
  } else if (node->kind == FAKE_NODE_GRAPH) {
    note_graph(fake_launch_graph(node->launch));
  }
}

void fake_cuda_recording_begin(void) {
  pthread_mutex_lock(&fake.lock);
  fake_cuda_recording_free(current);
  current = fake_allocate(sizeof *current);
  current->graph = NONE;
  recordings++;
  pthread_mutex_unlock(&fake.lock);
}

/* ---- The versions in the order of the calls ---- */

static int compare_addresses(const void *a, const void *b) {
  const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
  return x < y ? -1 : x > y;
}

static uint32_t find(const uintptr_t *bounds, uint32_t count, uintptr_t address) {
  uint32_t low = 0, high = count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (bounds[middle] <= address) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The addresses at which any access begins or ends. */
static uintptr_t *list_bounds(const struct fake_cuda_recording *of, uint32_t *count) {
  uintptr_t *bounds = fake_allocate((2 * (size_t)of->raw_count + 1) * sizeof *bounds);
  for (uint32_t k = 0; k < of->raw_count; k++) {
    bounds[2 * k] = of->raw[k].begin;
    bounds[2 * k + 1] = of->raw[k].end;
  }
  qsort(bounds, 2 * (size_t)of->raw_count, sizeof *bounds, compare_addresses);
  *count = 0;
  for (uint32_t k = 0; k < 2 * of->raw_count; k++) {
    if (*count == 0 || bounds[*count - 1] != bounds[k]) {
      bounds[(*count)++] = bounds[k];
    }
  }
  return bounds;
}

/* Accesses of a node are in the order of visits: what it reads before what it writes. */
static void split_accesses(struct fake_cuda_recording *of) {
  uint32_t bound_count;
  uintptr_t *bounds = list_bounds(of, &bound_count);
  of->segment_count = bound_count;
  of->last_versions = fake_allocate(bound_count * sizeof *of->last_versions);
  for (uint32_t k = 0; k < of->raw_count; k++) {
    const struct raw_access *raw = &of->raw[k];
    struct noted *node = &of->nodes[raw->node];
    if (node->access_count == 0) {
      node->first_access = of->access_count;
    }
    for (uint32_t s = find(bounds, bound_count, raw->begin); bounds[s] < raw->end; s++) {
      of->accesses = fake_array_grow(of->accesses, &of->access_capacity, of->access_count + 1,
                                     sizeof *of->accesses);
      of->accesses[of->access_count++] = (struct access){.segment = s,
                                                         .version = of->last_versions[s],
                                                         .reads = raw->reads,
                                                         .writes = raw->writes};
      node->access_count++;
      if (raw->writes) {
        of->last_versions[s] = raw->node + 1;
      }
    }
  }
  free(bounds);
}

struct fake_cuda_recording *fake_cuda_recording_end(void) {
  pthread_mutex_lock(&fake.lock);
  struct fake_cuda_recording *of = current;
  current = NULL;
  split_accesses(of);
  of->versions = fake_allocate(of->segment_count * sizeof *of->versions);
  of->next = fake_allocate(of->node_count * sizeof *of->next);
  of->waiting = fake_allocate(of->node_count * sizeof *of->waiting);
  of->left = fake_allocate(of->node_count * sizeof *of->left);
  of->done = fake_allocate(of->node_count * sizeof *of->done);
  of->ready = fake_allocate((of->node_count + 1) * sizeof *of->ready);
  of->queue_of = fake_allocate(of->stream_count * sizeof *of->queue_of);
  pthread_mutex_unlock(&fake.lock);
  return of;
}

void fake_cuda_recording_free(struct fake_cuda_recording *recording) {
  if (recording == NULL) {
    return;
  }
  void *const arrays[] = {recording->nodes,
                          recording->followers,
                          recording->raw,
                          recording->accesses,
                          recording->last_versions,
                          recording->versions,
                          recording->next,
                          recording->waiting,
                          recording->left,
                          recording->done,
                          recording->ready,
                          recording->queue_of,
                          recording};
  for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
    free(arrays[k]);
  }
}

uint32_t fake_cuda_recording_nodes(const struct fake_cuda_recording *recording) {
  return recording->node_count;
}

/* ---- Another order ---- */

struct replay {
  struct fake_cuda_recording *of;
  const struct fake_cuda_options *options;
  uint64_t random;
  uint32_t heads[FAKE_QUEUES_MAX];      /* NONE: empty */
  uint32_t waits_with[FAKE_QUEUES_MAX]; /* the next queue that waits for the same */
  uint32_t left;                        /* nodes */
};

static uint32_t draw(struct replay *replay, uint32_t bound) { /* xorshift */
  replay->random ^= replay->random << 13;
  replay->random ^= replay->random >> 7;
  replay->random ^= replay->random << 17;
  return (uint32_t)((replay->random >> 32) * bound >> 32);
}

static uint32_t queue_of(const struct replay *replay, uint32_t node) {
  return replay->of->queue_of[replay->of->nodes[node].operation.stream];
}

/* The head is ready, or the queue waits. Waits that are over leave on the way. */
static void look_at_head(struct replay *replay, uint32_t queue) {
  struct fake_cuda_recording *of = replay->of;
  uint32_t head;
  while ((head = replay->heads[queue]) != NONE) {
    const uint32_t record = of->nodes[head].record;
    if (of->nodes[head].kind != FAKE_NODE_WAIT) {
      of->ready[of->ready_count++] = head;
      return;
    }
    if (record != NONE && !of->done[record]) {
      replay->waits_with[queue] = of->waiting[record];
      of->waiting[record] = queue;
      return;
    }
    of->done[head] = true;
    replay->left--;
    replay->heads[queue] = of->next[head];
  }
}

static bool find_version(struct replay *replay, const struct noted *node,
                         const struct access *access) {
  struct fake_cuda_recording *of = replay->of;
  const uint32_t found = of->versions[access->segment];
  const struct fake_operation before = {.name = "what was there", .stream = NONE};
  char reader[200], writer[200], expected[200];
  (void)snprintf(
      of->finding, sizeof of->finding, "seed %llu, %u queues: %s reads what %s wrote, not %s",
      (unsigned long long)replay->options->seed, replay->options->queues,
      fake_operation_text(&node->operation, reader, sizeof reader),
      fake_operation_text(found > 0 ? &of->nodes[found - 1].operation : &before, writer,
                          sizeof writer),
      fake_operation_text(access->version > 0 ? &of->nodes[access->version - 1].operation : &before,
                          expected, sizeof expected));
  return false;
}

static bool access_memory(struct replay *replay, uint32_t at) {
  struct fake_cuda_recording *of = replay->of;
  const struct noted *node = &of->nodes[at];
  const struct access *access = of->accesses + node->first_access;
  for (const struct access *end = access + node->access_count; access < end; access++) {
    if (access->reads && of->versions[access->segment] != access->version) {
      return find_version(replay, node, access);
    }
    if (access->writes) {
      of->versions[access->segment] = at + 1;
    }
  }
  return true;
}

static bool is_in_graph(const struct fake_cuda_recording *of, uint32_t node) {
  return of->graph != NONE && node > of->graph && node <= of->graph + of->graph_node_count;
}

static void pass(struct replay *replay, uint32_t queue) {
  replay->heads[queue] = replay->of->next[replay->heads[queue]];
  look_at_head(replay, queue);
}

/* The launch stays at the head of its queue until all of its nodes have run. */
static void begin_graph(struct replay *replay) {
  struct fake_cuda_recording *of = replay->of;
  for (uint32_t k = of->graph + 1; k <= of->graph + of->graph_node_count; k++) {
    of->left[k] = of->nodes[k].before_count;
    if (of->left[k] == 0) {
      of->ready[of->ready_count++] = k;
    }
  }
  of->left[of->graph] = of->graph_node_count;
  if (of->graph_node_count == 0) {
    pass(replay, queue_of(replay, of->graph));
  }
}

static bool run_node(struct replay *replay, uint32_t at) {
  struct fake_cuda_recording *of = replay->of;
  const struct noted *node = &of->nodes[at];
  of->done[at] = true;
  replay->left--;
  if (node->kind == FAKE_NODE_WORK && !access_memory(replay, at)) {
    return false;
  }
  if (is_in_graph(of, at)) {
    const uint32_t *follower = of->followers + node->first_follower;
    for (uint32_t k = 0; k < node->follower_count; k++) {
      if (--of->left[follower[k]] == 0) {
        of->ready[of->ready_count++] = follower[k];
      }
    }
    if (--of->left[of->graph] == 0) {
      pass(replay, queue_of(replay, of->graph));
    }
    return true;
  }
  if (node->kind == FAKE_NODE_GRAPH) {
    begin_graph(replay);
    return true;
  }
  pass(replay, queue_of(replay, at));
  if (node->kind == FAKE_NODE_RECORD) {
    uint32_t queue = of->waiting[at];
    while (queue != NONE) {
      const uint32_t next = replay->waits_with[queue];
      look_at_head(replay, queue);
      queue = next;
    }
  }
  return true;
}

/* The place in `ready`. */
static uint32_t choose(struct replay *replay) {
  const struct fake_cuda_recording *of = replay->of;
  uint32_t chosen = draw(replay, of->ready_count);
  if (replay->options->policy == FAKE_CUDA_STARVE) {
    for (uint32_t k = 0; k < of->ready_count &&
                         of->nodes[of->ready[chosen]].operation.stream == replay->options->starved;
         k++) {
      chosen = (chosen + 1) % of->ready_count;
    }
  } else if (replay->options->policy != FAKE_CUDA_RANDOM) {
    const bool newest = replay->options->policy == FAKE_CUDA_NEWEST;
    for (uint32_t k = 0; k < of->ready_count; k++) {
      chosen = (of->ready[k] > of->ready[chosen]) == newest ? k : chosen;
    }
  }
  return chosen;
}

static void begin(struct replay *replay) {
  struct fake_cuda_recording *of = replay->of;
  uint32_t tails[FAKE_QUEUES_MAX];
  memset(of->versions, 0, of->segment_count * sizeof *of->versions);
  memset(of->done, 0, of->node_count * sizeof *of->done);
  memset(of->waiting, 0xff, of->node_count * sizeof *of->waiting);
  memset(replay->heads, 0xff, sizeof replay->heads);
  of->ready_count = 0;
  for (uint32_t k = 0; k < of->stream_count; k++) {
    of->queue_of[k] = draw(replay, replay->options->queues);
  }
  for (uint32_t k = 0; k < of->node_count; k++) {
    if (is_in_graph(of, k)) {
      continue;
    }
    const uint32_t queue = queue_of(replay, k);
    of->next[k] = NONE;
    if (replay->heads[queue] == NONE) {
      replay->heads[queue] = k;
    } else {
      of->next[tails[queue]] = k;
    }
    tails[queue] = k;
  }
  for (uint32_t k = 0; k < replay->options->queues; k++) {
    look_at_head(replay, k);
  }
}

const char *fake_cuda_replay(struct fake_cuda_recording *recording,
                             const struct fake_cuda_options *options) {
  struct replay replay = {.of = recording,
                          .options = options,
                          .random = 2 * options->seed + 1,
                          .left = recording->node_count};
  assert(options->queues > 0 && options->queues <= FAKE_QUEUES_MAX);
  for (int k = 0; k < 4; k++) {
    (void)draw(&replay, 1);
  }
  begin(&replay);
  while (recording->ready_count > 0) {
    const uint32_t place = choose(&replay);
    const uint32_t node = recording->ready[place];
    recording->ready[place] = recording->ready[--recording->ready_count];
    if (!run_node(&replay, node)) {
      return recording->finding;
    }
  }
  if (replay.left > 0) {
    (void)snprintf(recording->finding, sizeof recording->finding,
                   "seed %llu, %u queues: deadlock: %u nodes are left and none may run",
                   (unsigned long long)options->seed, options->queues, replay.left);
    return recording->finding;
  }
  if (memcmp(recording->versions, recording->last_versions,
             recording->segment_count * sizeof *recording->versions) != 0) {
    (void)snprintf(recording->finding, sizeof recording->finding,
                   "seed %llu, %u queues: at the end memory has what another node wrote",
                   (unsigned long long)options->seed, options->queues);
    return recording->finding;
  }
  return NULL;
}
