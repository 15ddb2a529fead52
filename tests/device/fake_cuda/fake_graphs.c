/* Graphs: a launch runs the nodes in any order that their predecessors allow. For the clocks, a
 * captured stream is a lane of the graph, in which each node comes after the one before it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

struct CUgraphExec_st {
  struct fake_object object;
  uint32_t references; /* the handle, launches */
  CUgraph graph;
  uint32_t *followers, *first_follower; /* [first_follower[n]], of node k from first_follower[k] */
  uint32_t *components;                 /* [lane_count] of the clocks */
  struct fake_clock *lanes;             /* [lane_count] */
  struct fake_clock **shown;            /* [n] NULL, or room for the clock that other lanes need */
  struct fake_mark *last;               /* the end of the last launch; NULL: none */
};

struct fake_launch {
  CUgraphExec executable;
  struct fake_mark *before; /* the end of the launch before; NULL: none */
  uint32_t left;            /* nodes that have not run */
  uint32_t *missing;        /* [n] predecessors that have not run */
  uint32_t *ready, ready_count;
  bool committed;             /* with one queue: the first of these is next, whenever it may run */
  uint64_t *begin_ns, end_ns; /* [n] the earliest */
  CUresult *results;          /* [n] what the work ends with */
  const struct fake_plan **plans; /* [n] */
  struct fake_mark **marks;       /* [n] of nodes that record; NULL: none */
  int failed;                     /* the device of the node that ran last, */
  const char *label;              /* and its label */
};

void fake_graph_release(CUgraph graph) {
  if (--graph->references > 0) {
    return;
  }
  for (uint32_t k = 0; k < graph->node_count; k++) {
    if (graph->nodes[k].records == NULL) {
      fake_work_forget(&graph->nodes[k].work);
    }
    free(graph->nodes[k].after);
  }
  free(graph->nodes);
  fake_object_destroy(graph);
}

static void release_executable(CUgraphExec executable) {
  if (--executable->references > 0) {
    return;
  }
  for (uint32_t k = 0; k < executable->graph->lane_count; k++) {
    fake_clock_component_give(executable->components[k]);
  }
  for (uint32_t k = 0; k < executable->graph->node_count; k++) {
    free(executable->shown[k]);
  }
  fake_mark_release(executable->last);
  free(executable->followers);
  free(executable->first_follower);
  free(executable->components);
  free(executable->lanes);
  free(executable->shown);
  fake_graph_release(executable->graph);
  fake_object_destroy(executable);
}

/* ---- Instantiation ---- */

static void list_followers(CUgraphExec executable) {
  const struct CUgraph_st *graph = executable->graph;
  const uint32_t n = graph->node_count;
  uint32_t edges = 0;
  for (uint32_t k = 0; k < n; k++) {
    edges += graph->nodes[k].after_count;
  }
  uint32_t *first = fake_allocate((n + 2) * sizeof *first); /* one ahead while it is filled */
  executable->followers = fake_allocate(edges * sizeof *executable->followers);
  for (uint32_t k = 0; k < n; k++) {
    for (uint32_t j = 0; j < graph->nodes[k].after_count; j++) {
      first[graph->nodes[k].after[j] + 2]++;
    }
  }
  for (uint32_t k = 2; k < n + 2; k++) {
    first[k] += first[k - 1];
  }
  for (uint32_t k = 0; k < n; k++) {
    for (uint32_t j = 0; j < graph->nodes[k].after_count; j++) {
      executable->followers[first[graph->nodes[k].after[j] + 1]++] = k;
    }
  }
  executable->first_follower = first;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph) {
  if (!fake_object_is(graph, FAKE_GRAPH)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const uint32_t n = graph->node_count, lanes = graph->lane_count;
  CUgraphExec executable = fake_object_create(FAKE_EXECUTABLE, sizeof *executable);
  executable->references = 1;
  executable->graph = graph;
  graph->references++;
  executable->components = fake_allocate(lanes * sizeof *executable->components);
  executable->lanes = fake_allocate(lanes * sizeof *executable->lanes);
  executable->shown = fake_allocate(n * sizeof(struct fake_clock *));
  for (uint32_t k = 0; k < lanes; k++) {
    executable->components[k] = fake_clock_component_take();
  }
  for (uint32_t k = 0; k < n; k++) {
    for (uint32_t j = 0; j < graph->nodes[k].after_count; j++) {
      const uint32_t before = graph->nodes[k].after[j];
      if (graph->nodes[before].lane != graph->nodes[k].lane && executable->shown[before] == NULL) {
        executable->shown[before] = fake_allocate(sizeof(struct fake_clock));
      }
    }
  }
  list_followers(executable);
  fake.statistics.executables++;
  *out = executable;
  return CUDA_SUCCESS;
}

/* ---- Launch ---- */

/* The clocks of all nodes, and what they access. The stream then comes after all of them. */
static void check_nodes(struct fake_launch *launch, CUstream stream) {
  CUgraphExec executable = launch->executable;
  const struct CUgraph_st *graph = executable->graph;
  for (uint32_t k = 0; k < graph->lane_count; k++) {
    fake_clock_copy(&executable->lanes[k], &stream->clock);
  }
  for (uint32_t k = 0; k < graph->node_count; k++) {
    const struct fake_graph_node *node = &graph->nodes[k];
    struct fake_clock *clock = &executable->lanes[node->lane];
    for (uint32_t j = 0; j < node->after_count; j++) {
      if (executable->shown[node->after[j]] != NULL) {
        fake_clock_join(clock, executable->shown[node->after[j]]);
      }
    }
    const uint32_t component = executable->components[node->lane];
    (void)fake_clock_tick(clock, component);
    if (node->records != NULL) {
      fake_clock_copy(&launch->marks[k]->clock, clock);
    } else {
      const struct fake_operation operation = {.name = node->work.name,
                                               .label = node->label,
                                               .stream_name = node->stream_name,
                                               .stream = node->stream,
                                               .serial = fake.serial};
      launch->results[k] = fake_work_check(&node->work, &operation, clock, component);
      launch->plans[k] = fake_work_plan(&node->work);
    }
    if (executable->shown[k] != NULL) {
      fake_clock_copy(executable->shown[k], clock);
    }
  }
  for (uint32_t k = 0; k < graph->lane_count; k++) {
    fake_clock_join(&stream->clock, &executable->lanes[k]);
  }
}

static struct fake_launch *create_launch(CUgraphExec executable) {
  const struct CUgraph_st *graph = executable->graph;
  const uint32_t n = graph->node_count;
  struct fake_launch *launch = fake_allocate(sizeof *launch);
  launch->executable = executable;
  executable->references++;
  launch->before = fake_mark_reference(executable->last);
  launch->left = n;
  launch->missing = fake_allocate(n * sizeof *launch->missing);
  launch->ready = fake_allocate(n * sizeof *launch->ready);
  launch->begin_ns = fake_allocate(n * sizeof *launch->begin_ns);
  launch->results = fake_allocate(n * sizeof *launch->results);
  launch->plans = fake_allocate(n * sizeof(struct fake_plan *));
  launch->marks = fake_allocate(n * sizeof(struct fake_mark *));
  for (uint32_t k = 0; k < n; k++) {
    launch->missing[k] = graph->nodes[k].after_count;
    if (launch->missing[k] == 0) {
      launch->ready[launch->ready_count++] = k;
    }
  }
  return launch;
}

void fake_launch_destroy(struct fake_launch *launch) {
  for (uint32_t k = 0; k < launch->executable->graph->node_count; k++) {
    if (launch->marks[k] != NULL) {
      launch->marks[k]->done = true;
      fake_mark_release(launch->marks[k]);
    }
  }
  fake_mark_release(launch->before);
  release_executable(launch->executable);
  free(launch->missing);
  free(launch->ready);
  free(launch->begin_ns);
  free(launch->results);
  free(launch->plans);
  free(launch->marks);
  free(launch);
}

static CUresult launch_graph(CUgraphExec executable, CUstream handle) {
  CUstream stream;
  if (!fake_object_is(executable, FAKE_EXECUTABLE)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  FAKE_TRY(fake_stream_of(handle, &stream));
  if (stream->capture != NULL) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const struct CUgraph_st *graph = executable->graph;
  for (uint32_t k = 0; k < graph->node_count; k++) {
    if (graph->nodes[k].records != NULL && !fake_object_is(graph->nodes[k].records, FAKE_EVENT)) {
      fake_find(FAKE_CUDA_FAULT, "a graph records an event that is destroyed");
      return CUDA_ERROR_INVALID_HANDLE;
    }
  }
  struct fake_launch *launch = create_launch(executable);
  struct fake_node *node =
      fake_node_create(FAKE_NODE_GRAPH, stream, fake_operation_of("cuGraphLaunch", stream));
  node->launch = launch;
  fake_stream_follow_host(stream);
  if (executable->last != NULL) { /* launches of one graph come one after the other */
    fake_clock_join(&stream->clock, &executable->last->clock);
  }
  stream->work_tick = fake_clock_tick(&stream->clock, stream->component);
  for (uint32_t k = 0; k < graph->node_count; k++) {
    CUevent event = graph->nodes[k].records;
    if (event != NULL) {
      fake_mark_release(event->mark);
      event->mark = fake_mark_create(event->device);
      launch->marks[k] = fake_mark_reference(event->mark);
    }
  }
  check_nodes(launch, stream);
  fake_mark_release(executable->last);
  executable->last = fake_mark_create(stream->device);
  fake_clock_copy(&executable->last->clock, &stream->clock);
  node->mark = fake_mark_reference(executable->last);
  fake_node_push(node);
  return CUDA_SUCCESS;
}

const struct CUgraph_st *fake_launch_graph(const struct fake_launch *launch) {
  return launch->executable->graph;
}

/* ---- Execution ---- */

bool fake_launch_may_begin(const struct fake_launch *launch) {
  return launch->before == NULL || launch->before->done;
}

static bool may_run(const struct fake_launch *launch, uint32_t k) {
  const struct fake_graph_node *node = &launch->executable->graph->nodes[k];
  return node->records != NULL || fake_work_may_run(&node->work, launch->plans[k]);
}

/* One queue takes one node after the other: any that comes next is chosen, and then waited for. */
static uint32_t commit(struct fake_launch *launch) {
  if (!launch->committed) {
    const uint64_t k = fake_random() % launch->ready_count;
    const uint32_t chosen = launch->ready[k];
    launch->ready[k] = launch->ready[0];
    launch->ready[0] = chosen;
    launch->committed = true;
  }
  return may_run(launch, launch->ready[0]);
}

/* Those that may run come first. A graph without nodes has one that does nothing. */
uint32_t fake_launch_ready_count(struct fake_node *node) {
  struct fake_launch *launch = node->launch;
  uint32_t count = 0;
  if (launch->left == 0) {
    return 1;
  }
  if (fake.options.queues == 1) {
    return commit(launch);
  }
  for (uint32_t k = 0; k < launch->ready_count; k++) {
    const uint32_t at = launch->ready[k];
    if (may_run(launch, at)) {
      launch->ready[k] = launch->ready[count];
      launch->ready[count++] = at;
    }
  }
  return count;
}

uint32_t fake_launch_ready_at(const struct fake_node *node, uint32_t k) {
  return node->launch->left > 0 ? node->launch->ready[k] : 0;
}

CUresult fake_launch_run(struct fake_node *of, uint32_t k, uint64_t begin_ns, bool *ended) {
  struct fake_launch *launch = of->launch;
  const CUgraphExec executable = launch->executable;
  *ended = launch->left <= 1;
  launch->failed = of->stream->device;
  launch->label = NULL;
  if (launch->left == 0) {
    return CUDA_SUCCESS;
  }
  const uint32_t at = launch->ready[k];
  const struct fake_graph_node *node = &executable->graph->nodes[at];
  uint64_t end_ns = launch->begin_ns[at] > begin_ns ? launch->begin_ns[at] : begin_ns;
  CUresult result = launch->results[at];
  if (node->records != NULL) {
    launch->marks[at]->done = true;
    launch->marks[at]->time_ns = end_ns;
  } else {
    launch->failed = node->work.device;
    launch->label = node->label;
    if (result == CUDA_SUCCESS) {
      fake.now_ns = end_ns;
      result = fake_work_run(&node->work, launch->plans[at]);
    }
    end_ns += fake_work_time_ns(&node->work);
  }
  launch->committed = false;
  launch->ready[k] = launch->ready[--launch->ready_count];
  launch->left--;
  launch->end_ns = launch->end_ns > end_ns ? launch->end_ns : end_ns;
  for (uint32_t j = executable->first_follower[at]; j < executable->first_follower[at + 1]; j++) {
    const uint32_t next = executable->followers[j];
    launch->begin_ns[next] = launch->begin_ns[next] > end_ns ? launch->begin_ns[next] : end_ns;
    if (--launch->missing[next] == 0) {
      launch->ready[launch->ready_count++] = next;
    }
  }
  return result;
}

uint64_t fake_launch_end_ns(const struct fake_launch *launch) { return launch->end_ns; }

int fake_launch_device(const struct fake_launch *launch) { return launch->failed; }

const char *fake_launch_label(const struct fake_launch *launch) { return launch->label; }

bool fake_launch_hangs(const struct fake_launch *launch) {
  for (uint32_t k = 0; k < launch->ready_count; k++) {
    const struct fake_plan *plan = launch->plans[launch->ready[k]];
    if (plan != NULL && plan->action == FAKE_PLAN_HANG && !plan->over) {
      return true;
    }
  }
  return false;
}

bool fake_launch_is_outside(const struct fake_launch *launch) {
  for (uint32_t k = 0; k < launch->ready_count; k++) {
    if (fake_work_is_outside(&launch->executable->graph->nodes[launch->ready[k]].work)) {
      return true;
    }
  }
  return false;
}

/* ---- Calls ---- */

static CUresult get_nodes(CUgraph graph, void **nodes, size_t *count) {
  if (!fake_object_is(graph, FAKE_GRAPH)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  for (size_t k = 0; nodes != NULL && k < *count; k++) {
    nodes[k] = k < graph->node_count ? &graph->nodes[k] : NULL;
  }
  if (nodes == NULL || *count > graph->node_count) {
    *count = graph->node_count;
  }
  return CUDA_SUCCESS;
}

static CUresult destroy_graph(CUgraph graph) {
  if (!fake_object_is(graph, FAKE_GRAPH)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  fake.statistics.graphs--;
  fake_graph_release(graph);
  return CUDA_SUCCESS;
}

static CUresult destroy_executable(CUgraphExec executable) {
  if (!fake_object_is(executable, FAKE_EXECUTABLE)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  fake.statistics.executables--;
  release_executable(executable);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, void *nodes, size_t *count) {
  FAKE_BODY(cuGraphGetNodes, get_nodes(graph, nodes, count));
}

CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
  FAKE_BODY(cuGraphInstantiate,
            flags != 0 ? CUDA_ERROR_INVALID_VALUE : instantiate(executable, graph));
}

CUresult cuGraphDestroy(CUgraph graph) { FAKE_BODY(cuGraphDestroy, destroy_graph(graph)); }

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  FAKE_BODY(cuGraphExecDestroy, destroy_executable(executable));
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  FAKE_BODY(cuGraphLaunch, launch_graph(executable, stream));
}
