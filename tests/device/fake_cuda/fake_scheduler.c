/* The scheduler: which of the nodes that may run is next. Only the head of a hardware queue may
 * run, and of a graph whose launch is a head, any node whose predecessors have run. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_driver.h"

/* ---- The end of a node ---- */

/* The head leaves its queue. */
static void retire(struct fake_queue *queue) {
  struct fake_node *node = queue->first;
  CUstream stream = node->stream;
  queue->first = node->next;
  if (queue->first == NULL) {
    queue->last = NULL;
  }
  if (node->kind == FAKE_NODE_RECORD || node->kind == FAKE_NODE_GRAPH) {
    node->mark->done = true;
    node->mark->lost = fake.lost[stream->device] != CUDA_SUCCESS;
    node->mark->time_ns = stream->time_ns;
  }
  if (node->kind == FAKE_NODE_GRAPH) {
    fake_launch_destroy(node->launch);
  }
  if (node->kind == FAKE_NODE_WORK && node->work.kind == FAKE_WORK_COPY) {
    free(node->work.of.copy.staged);
  }
  fake_mark_release(node->mark);
  free(node);
  fake.pending--;
  stream->pending--;
  fake_stream_release(stream);
}

void fake_queues_drop(int device) {
  for (uint32_t k = 0; k < FAKE_QUEUES_MAX; k++) {
    while (fake.queues[device][k].first != NULL) {
      retire(&fake.queues[device][k]);
    }
    fake.queues[device][k].begin_ns = 0;
  }
}

static void lose(int device, CUresult result) {
  if (fake.lost[device] == CUDA_SUCCESS) {
    fake.lost[device] = result;
  }
  fake_queues_drop(device);
}

/* ---- The choice ---- */

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* How many nodes of the head may run. Waits that are over leave the queue on the way. */
static uint32_t runnable(struct fake_queue *queue) {
  struct fake_node *head = queue->first;
  while (head != NULL && head->kind == FAKE_NODE_WAIT && head->mark->done) {
    CUstream stream = head->stream;
    if (head->mark->lost && fake.lost[stream->device] == CUDA_SUCCESS) {
      lose(stream->device, fake.lost[head->mark->device]); /* what it waits for will never be */
      return 0;
    }
    queue->begin_ns = later(queue->begin_ns, head->mark->time_ns);
    stream->time_ns = later(stream->time_ns, head->mark->time_ns);
    retire(queue);
    head = queue->first;
  }
  if (head == NULL || head->kind == FAKE_NODE_WAIT) {
    return 0;
  }
  if (head->kind == FAKE_NODE_GRAPH) {
    return fake_launch_may_begin(head->launch) ? fake_launch_ready_count(head) : 0;
  }
  return head->kind == FAKE_NODE_RECORD || fake_work_may_run(&head->work, head->plan);
}

struct choice {
  struct fake_queue *queue;
  uint32_t k; /* of the ready nodes of a graph */
};

/* Among nodes that a program cannot tell apart in time. */
static struct choice choose(void) {
  struct choice chosen = {NULL, 0};
  uint64_t total = 0, chosen_order = 0;
  bool chosen_starved = false;
  for (uint32_t device = 0; device < fake.options.devices; device++) {
    for (uint32_t q = 0; q < fake.options.queues; q++) {
      struct fake_queue *queue = &fake.queues[device][q];
      const uint32_t count = queue->first != NULL ? runnable(queue) : 0;
      if (count == 0) {
        continue;
      }
      const struct fake_node *head = queue->first;
      const bool graph = head->kind == FAKE_NODE_GRAPH;
      if (fake.options.policy == FAKE_CUDA_RANDOM || fake.options.policy == FAKE_CUDA_STARVE) {
        const bool starved =
            fake.options.policy == FAKE_CUDA_STARVE && head->stream->index == fake.options.starved;
        if (starved && chosen.queue != NULL) {
          continue;
        }
        total = chosen_starved ? 0 : total;
        total += count;
        if (fake_random() % total < count) {
          chosen = (struct choice){queue, (uint32_t)(fake_random() % count)};
        }
        chosen_starved = starved;
        continue;
      }
      for (uint32_t k = 0; k < count; k++) { /* the order of issue, in graphs that of capture */
        const uint64_t order =
            (head->operation.serial << 20) + (graph ? fake_launch_ready_at(head, k) : 0);
        if (chosen.queue == NULL ||
            (order > chosen_order) == (fake.options.policy == FAKE_CUDA_NEWEST)) {
          chosen = (struct choice){queue, k};
          chosen_order = order;
        }
      }
    }
  }
  return chosen;
}

bool fake_step(void) {
  const uint64_t before = fake.pending;
  const struct choice chosen = choose();
  if (chosen.queue == NULL || chosen.queue->first == NULL) { /* its device is lost meanwhile */
    return fake.pending < before;
  }
  struct fake_node *node = chosen.queue->first;
  CUstream stream = node->stream;
  const int device = stream->device;
  const uint64_t begin_ns = later(later(stream->time_ns, node->issued_ns), chosen.queue->begin_ns);
  CUresult result = node->result;
  int failed = device;
  bool ended = true;
  switch (node->kind) {
    case FAKE_NODE_WORK:
      if (result == CUDA_SUCCESS) {
        fake.now_ns = begin_ns;
        result = fake_work_run(&node->work, node->plan);
      }
      stream->time_ns = begin_ns + fake_work_time_ns(&node->work);
      break;
    case FAKE_NODE_RECORD: stream->time_ns = begin_ns; break;
    case FAKE_NODE_GRAPH:
      result = fake_launch_run(node, chosen.k, begin_ns, &ended);
      failed = fake_launch_device(node->launch);
      if (ended) {
        stream->time_ns = later(begin_ns, fake_launch_end_ns(node->launch));
      }
      break;
    case FAKE_NODE_WAIT: abort();
  }
  if (result != CUDA_SUCCESS && fake.crashed == NULL) {
    fake.crashed =
        node->kind == FAKE_NODE_GRAPH ? fake_launch_label(node->launch) : node->operation.label;
  }
  if (ended || result != CUDA_SUCCESS) {
    chosen.queue->begin_ns = begin_ns;
    retire(chosen.queue);
  }
  if (result != CUDA_SUCCESS) {
    lose(failed, result);
    lose(device, result);
  }
  return true;
}

/* ---- When nothing may run ---- */

static bool is_hung(const struct fake_node *head) {
  return head->kind == FAKE_NODE_GRAPH
             ? fake_launch_hangs(head->launch)
             : head->kind == FAKE_NODE_WORK && head->plan != NULL &&
                   head->plan->action == FAKE_PLAN_HANG && !head->plan->over;
}

/* A kernel that a test has told to hang, and no deadlock. */
static bool something_hangs(void) {
  for (uint32_t device = 0; device < FAKE_DEVICES_MAX; device++) {
    for (uint32_t q = 0; q < FAKE_QUEUES_MAX; q++) {
      const struct fake_node *head = fake.queues[device][q].first;
      if (head != NULL && is_hung(head)) {
        return true;
      }
    }
  }
  return false;
}

static bool waits_outside(void) {
  for (uint32_t device = 0; device < FAKE_DEVICES_MAX; device++) {
    for (uint32_t q = 0; q < FAKE_QUEUES_MAX; q++) {
      const struct fake_node *head = fake.queues[device][q].first;
      if (head != NULL && (head->kind == FAKE_NODE_GRAPH ? fake_launch_is_outside(head->launch)
                                                         : head->kind == FAKE_NODE_WORK &&
                                                               fake_work_is_outside(&head->work))) {
        return true;
      }
    }
  }
  return false;
}

/* A kernel runs that will crash: it does so now, because the host waits for it. */
static bool crashes_now(void) {
  const bool runs = fake.crash_begun && fake.crash_left > 0;
  fake.crash_left = runs ? 0 : fake.crash_left;
  return runs;
}

/* Gives the other process a moment. */
static void wait_outside(void) {
  pthread_mutex_unlock(&fake.lock);
  (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL);
  pthread_mutex_lock(&fake.lock);
}

static struct fake_queue *queue_of(const struct fake_node *node) {
  return &fake.queues[node->stream->device][node->stream->queue % fake.options.queues];
}

/* The first node in a queue for which it holds; NULL: none. */
static const struct fake_node *find_node(bool (*holds)(const struct fake_node *node,
                                                       const struct fake_node *of),
                                         const struct fake_node *of) {
  for (uint32_t device = 0; device < FAKE_DEVICES_MAX; device++) {
    for (uint32_t q = 0; q < FAKE_QUEUES_MAX; q++) {
      const struct fake_node *node = fake.queues[device][q].first;
      while (node != NULL && (node == of || !holds(node, of))) {
        node = node->next;
      }
      if (node != NULL) {
        return node;
      }
    }
  }
  return NULL;
}

static bool makes_mark(const struct fake_node *node, const struct fake_node *wait) {
  return node->kind != FAKE_NODE_WAIT && node->mark == wait->mark;
}

/* Whether a work writes to an address. */
struct search {
  struct fake_visitor visitor;
  uintptr_t address;
  bool found;
};

static CUresult compare(struct fake_visitor *visitor, uintptr_t data, uint64_t bytes, bool reads,
                        bool writes) {
  struct search *search = (struct search *)visitor;
  (void)reads;
  search->found = search->found || (writes && search->address - data < bytes);
  return CUDA_SUCCESS;
}

/* A kernel spins on memory that it is given. */
static bool writes_for(const struct fake_node *node, const struct fake_node *spins) {
  struct search search = {.visitor = {.visit = compare, .work = &node->work}};
  const struct fake_cuda_kernel *kernel = spins->work.of.launch.kernel->kernel;
  for (uint32_t k = 0; node->kind == FAKE_NODE_WORK && k < kernel->parameter_count; k++) {
    search.address = spins->work.of.launch.values[k];
    if ((kernel->addresses >> k & 1) != 0) {
      (void)fake_work_visit(&node->work, &search.visitor);
    }
  }
  return search.found;
}

/* What a node waits for; NULL: not known. */
static const struct fake_node *cause_of(const struct fake_node *node, const char **why) {
  const struct fake_node *head = queue_of(node)->first;
  *why = "it is behind that in a hardware queue";
  if (head != node) {
    return head;
  }
  *why =
      node->kind == FAKE_NODE_WAIT ? "its event has not happened" : "it spins on what that writes";
  return node->kind == FAKE_NODE_GRAPH
             ? NULL
             : find_node(node->kind == FAKE_NODE_WAIT ? makes_mark : writes_for, node);
}

enum { CYCLE_MAX = 64 };

/* The nodes of a cycle, first to last; 0: there is none, or it is not known. */
static uint32_t find_cycle(const struct fake_node **cycle) {
  const struct fake_node *at = NULL;
  const char *why;
  uint32_t count = 0;
  for (uint32_t k = 0; at == NULL && k < FAKE_DEVICES_MAX * FAKE_QUEUES_MAX; k++) {
    at = fake.queues[k / FAKE_QUEUES_MAX][k % FAKE_QUEUES_MAX].first;
  }
  for (; at != NULL && count < CYCLE_MAX; at = cause_of(at, &why)) {
    for (uint32_t k = 0; k < count; k++) {
      if (cycle[k] == at) {
        memmove(cycle, cycle + k, (count - k) * sizeof(void *));
        return count - k;
      }
    }
    cycle[count++] = at;
  }
  return 0;
}

/* As `weft verify` has it: who waits for whom, around the cycle; else the heads of all queues. The
 * devices are lost. */
static CUresult report_deadlock(void) {
  const struct fake_node *cycle[CYCLE_MAX];
  char text[3000] = "", first[200], second[200];
  const char *why;
  size_t used = 0;
  const uint32_t length = find_cycle(cycle);
  for (uint32_t k = 0; k < length && used < sizeof text - 500; k++) {
    const struct fake_node *next = cause_of(cycle[k], &why);
    used += (size_t)snprintf(text + used, sizeof text - used, "\n  %s waits for %s: %s",
                             fake_operation_text(&cycle[k]->operation, first, sizeof first),
                             fake_operation_text(&next->operation, second, sizeof second), why);
  }
  for (uint32_t k = 0; length == 0 && k < FAKE_DEVICES_MAX * FAKE_QUEUES_MAX; k++) {
    const struct fake_node *head = fake.queues[k / FAKE_QUEUES_MAX][k % FAKE_QUEUES_MAX].first;
    if (head != NULL && used < sizeof text - 300) {
      used += (size_t)snprintf(text + used, sizeof text - used, "\n  %s cannot run",
                               fake_operation_text(&head->operation, first, sizeof first));
    }
  }
  if (!fake.deadlocked) {
    (void)snprintf(first, sizeof first, "%u operations wait for each other in a cycle forever; ",
                   length);
    fake_find(FAKE_CUDA_DEADLOCK, "deadlock: %s%llu nodes are left and none may run%s",
              length > 0 ? first : "", (unsigned long long)fake.pending, text);
  }
  fake.deadlocked = true;
  if (fake.options.stall_waits) {
    return FAKE_LAUNCH_FAILED;
  }
  for (int device = 0; device < FAKE_DEVICES_MAX; device++) {
    lose(device, FAKE_LAUNCH_FAILED);
  }
  return FAKE_LAUNCH_FAILED;
}

CUresult fake_run_until_done(const bool *done) {
  while (!*done) {
    if (!fake_step() && !crashes_now()) {
      if (waits_outside()) {
        wait_outside();
        continue;
      }
      return something_hangs() ? FAKE_LAUNCH_FAILED : report_deadlock();
    }
  }
  return CUDA_SUCCESS;
}

CUresult fake_run_until_empty(CUstream stream) {
  while (stream->pending > 0) {
    if (!fake_step() && !crashes_now()) {
      if (waits_outside()) {
        wait_outside();
        continue;
      }
      return something_hangs() ? FAKE_LAUNCH_FAILED : report_deadlock();
    }
  }
  return fake.lost[stream->device];
}

CUresult fake_run_some(void) {
  const uint64_t count = fake_random() % (fake.options.query_nodes + 1);
  fake.crash_left -= fake.crash_begun && fake.crash_left > 0;
  for (uint64_t k = 0; k < count && fake.pending > 0; k++) {
    if (!fake_step()) {
      if (something_hangs() || waits_outside() || fake.crash_left > 0) {
        return CUDA_SUCCESS;
      }
      const CUresult result = report_deadlock();
      return fake.options.stall_waits ? CUDA_SUCCESS : result;
    }
  }
  return CUDA_SUCCESS;
}

/* ---- Control ---- */

uint64_t fake_cuda_run_nodes(uint64_t count) {
  uint64_t ran = 0;
  pthread_mutex_lock(&fake.lock);
  while (ran < count && fake_step()) {
    ran++;
  }
  pthread_mutex_unlock(&fake.lock);
  return ran;
}

bool fake_cuda_run(void) {
  pthread_mutex_lock(&fake.lock);
  CUresult result = CUDA_SUCCESS;
  while (fake.pending > 0 && result == CUDA_SUCCESS) {
    if (!fake_step() && !crashes_now()) {
      result = something_hangs() ? FAKE_LAUNCH_FAILED : report_deadlock();
    }
  }
  pthread_mutex_unlock(&fake.lock);
  return result == CUDA_SUCCESS;
}

uint64_t fake_cuda_pending(void) {
  pthread_mutex_lock(&fake.lock);
  const uint64_t pending = fake.pending;
  pthread_mutex_unlock(&fake.lock);
  return pending;
}
