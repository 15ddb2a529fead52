/* Random small pipelines (support_random_program.h).
 *
 * Every computation gets a time. In most programs the times come from one
 * random order of all computations that respects every dependency (there is
 * then a way to run it if messages are buffered); in some each rank has an
 * order of its own that respects only what lies on that rank. A SEND gets a
 * time after its producer, a RECV a time before its consumer: at the time of
 * the SEND where that is possible (which is safe even without buffers), or
 * anywhere. A row is then everything on the rank, by time. */
#include "support_random_program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "support_random_graph.h"

#define RANKS_MAX 3u
#define STAGES_MAX 9u
#define MICROBATCHES_MAX 6u
#define TASKS_MAX (STAGES_MAX * MICROBATCHES_MAX * 3u)
#define EDGES_MAX (STAGES_MAX * (STAGES_MAX - 1u) / 2u)
#define TRANSFERS_MAX (EDGES_MAX * MICROBATCHES_MAX * 2u)
#define EVENTS_MAX (TASKS_MAX + 2u * TRANSFERS_MAX)
#define NEEDS_MAX STAGES_MAX
#define TIME_STEP 1000
#define NONE UINT32_MAX

struct task {
  struct weft_action action;
  uint32_t rank;
  int64_t time;
  uint32_t needs[NEEDS_MAX]; /* tasks */
  uint32_t need_count;
  uint32_t fused; /* the B that runs together with this F, or NONE */
  bool hidden;    /* is the B of such a pair */
  bool placed;
};

/* One SEND and its RECV. */
struct transfer {
  uint32_t producer, consumer; /* tasks */
  uint32_t edge;
  int64_t send, recv; /* times */
};

struct plan {
  struct weft_random *random;
  uint32_t ranks, stages, microbatches;
  uint32_t rank_of[STAGES_MAX];
  struct weft_graph *graph; /* NULL: a chain, whose edges are these too */
  uint32_t edge_count;
  struct weft_edge edges[EDGES_MAX];
  uint32_t task_count;
  struct task tasks[TASKS_MAX];
  uint32_t forward[STAGES_MAX][MICROBATCHES_MAX];  /* task numbers */
  uint32_t backward[STAGES_MAX][MICROBATCHES_MAX]; /* the B or I, or NONE */
  uint32_t favour[WEFT_OP_W + 1][STAGES_MAX];
  uint32_t transfer_count;
  struct transfer transfers[TRANSFERS_MAX];
};

struct event {
  int64_t time;
  uint32_t order; /* breaks ties the same way on every rank */
  uint32_t rank;
  uint32_t record_count;
  struct weft_action records[3];
};

static uint32_t below(struct weft_random *random, uint32_t bound) {
  return weft_random_below(random, bound);
}

bool random_chance(struct weft_random *random, uint32_t percent) {
  return weft_random_below(random, 100) < percent;
}

/* --- Computations --------------------------------------------------------- */

static uint32_t add_task(struct plan *plan, enum weft_op op, uint32_t stage, uint32_t microbatch) {
  plan->tasks[plan->task_count] = (struct task){
      .action = draft_action(op, stage, microbatch),
      .rank = plan->rank_of[stage],
      .fused = NONE,
  };
  return plan->task_count++;
}

static void add_need(struct plan *plan, uint32_t task, uint32_t need) {
  struct task *waiting = &plan->tasks[task];
  assert(waiting->need_count < NEEDS_MAX && need != NONE);
  waiting->needs[waiting->need_count++] = need;
}

/* It is a loss, or a gradient comes to it. */
static bool has_backward(const struct plan *plan, uint32_t stage) {
  bool is_loss = true, trains = false;
  for (uint32_t e = 0; e < plan->edge_count; e++) {
    is_loss = is_loss && plan->edges[e].from != stage;
    trains = trains || (plan->edges[e].from == stage && plan->edges[e].gradient);
  }
  return is_loss || trains;
}

enum backward { BACKWARD_NONE, BACKWARD_FULL, BACKWARD_SPLIT, BACKWARD_MIXED };

static void add_forwards(struct plan *plan) {
  for (uint32_t mb = 0; mb < plan->microbatches; mb++) {
    for (uint32_t stage = 0; stage < plan->stages; stage++) {
      plan->forward[stage][mb] = add_task(plan, WEFT_OP_F, stage, mb);
      plan->backward[stage][mb] = NONE;
      for (uint32_t e = 0; e < plan->edge_count; e++) {
        if (plan->edges[e].to == stage) {
          add_need(plan, plan->forward[stage][mb], plan->forward[plan->edges[e].from][mb]);
        }
      }
    }
  }
}

static void add_backwards(struct plan *plan, enum backward backward) {
  for (uint32_t mb = 0; mb < plan->microbatches; mb++) {
    for (uint32_t stage = plan->stages; stage-- > 0;) {
      const bool split = backward == BACKWARD_SPLIT ||
                         (backward == BACKWARD_MIXED && random_chance(plan->random, 50));
      if (!has_backward(plan, stage)) {
        continue;
      }
      const uint32_t backwards = add_task(plan, split ? WEFT_OP_I : WEFT_OP_B, stage, mb);
      plan->backward[stage][mb] = backwards;
      add_need(plan, backwards, plan->forward[stage][mb]);
      for (uint32_t e = 0; e < plan->edge_count; e++) {
        if (plan->edges[e].from == stage && plan->edges[e].gradient) {
          add_need(plan, backwards, plan->backward[plan->edges[e].to][mb]);
        }
      }
      if (split) {
        add_need(plan, add_task(plan, WEFT_OP_W, stage, mb), backwards);
      }
    }
  }
}

/* Can the task be placed next, when only what lies on its rank counts (local)
 * or everything? */
static bool is_free(const struct plan *plan, const struct task *task, bool local) {
  for (uint32_t need = 0; need < task->need_count; need++) {
    const struct task *other = &plan->tasks[task->needs[need]];
    if (!other->placed && (!local || other->rank == task->rank)) {
      return false;
    }
  }
  return !task->placed;
}

/* Which of the ready tasks comes next: any of them, or the one of the stage
 * and op that this program favours. Favourites run far ahead of the others, so
 * that many messages are under way at once. */
static uint32_t choose_task(struct plan *plan, const uint32_t *ready, uint32_t count,
                            uint32_t favour_percent) {
  uint32_t best = ready[below(plan->random, count)];
  if (random_chance(plan->random, favour_percent)) {
    for (uint32_t k = 0; k < count; k++) {
      const struct weft_action *a = &plan->tasks[ready[k]].action, *b = &plan->tasks[best].action;
      if (plan->favour[a->op][a->stage] > plan->favour[b->op][b->stage]) {
        best = ready[k];
      }
    }
  }
  return best;
}

static void choose_favourites(struct plan *plan) {
  for (uint32_t op = WEFT_OP_F; op <= WEFT_OP_W; op++) {
    for (uint32_t stage = 0; stage < STAGES_MAX; stage++) {
      plan->favour[op][stage] = below(plan->random, 1000);
    }
  }
}

/* A random order of all tasks: the k-th gets the time k. */
static void place_tasks(struct plan *plan, bool local) {
  const uint32_t favour_percent = below(plan->random, 4) * 33;
  choose_favourites(plan);
  for (uint32_t placed = 0; placed < plan->task_count; placed++) {
    uint32_t ready[TASKS_MAX], count = 0;
    for (uint32_t number = 0; number < plan->task_count; number++) {
      if (is_free(plan, &plan->tasks[number], local)) {
        ready[count++] = number;
      }
    }
    assert(count > 0);
    struct task *task = &plan->tasks[choose_task(plan, ready, count, favour_percent)];
    task->placed = true;
    task->time = (int64_t)(placed + 1) * TIME_STEP;
  }
}

/* Makes some neighbours on a rank, an F and then a B of another stage, run
 * together, at the time of the F. */
static void fuse_some(struct plan *plan, uint32_t percent) {
  for (uint32_t number = 0; number < plan->task_count; number++) {
    struct task *first = &plan->tasks[number], *second = NULL;
    if (first->action.op != WEFT_OP_F || !random_chance(plan->random, percent)) {
      continue;
    }
    for (uint32_t other = 0; other < plan->task_count; other++) {
      struct task *task = &plan->tasks[other];
      if (task->rank == first->rank && task->time > first->time &&
          (second == NULL || task->time < second->time)) {
        second = task;
      }
    }
    if (second != NULL && second->action.op == WEFT_OP_B && !second->hidden &&
        second->action.stage != first->action.stage) {
      first->fused = (uint32_t)(second - plan->tasks);
      second->hidden = true;
      second->time = first->time;
    }
  }
}

/* --- Transfers ------------------------------------------------------------ */

static void add_transfer(struct plan *plan, uint32_t producer, uint32_t consumer, uint32_t edge) {
  if (plan->tasks[producer].rank != plan->tasks[consumer].rank) {
    plan->transfers[plan->transfer_count++] =
        (struct transfer){.producer = producer, .consumer = consumer, .edge = edge};
  }
}

static void add_transfers(struct plan *plan) {
  for (uint32_t mb = 0; mb < plan->microbatches; mb++) {
    for (uint32_t e = 0; e < plan->edge_count; e++) {
      const uint32_t from = plan->edges[e].from, to = plan->edges[e].to;
      add_transfer(plan, plan->forward[from][mb], plan->forward[to][mb], e);
      if (plan->edges[e].gradient && plan->backward[from][mb] != NONE) {
        add_transfer(plan, plan->backward[to][mb], plan->backward[from][mb], EDGES_MAX + e);
      }
    }
  }
}

static int64_t between(struct weft_random *random, int64_t low, int64_t high) {
  return low >= high ? low : low + (int64_t)below(random, (uint32_t)(high - low));
}

/* `aligned` in 100 of the transfers happen at one time on both sides. */
static void time_transfers(struct plan *plan, uint32_t aligned) {
  const int64_t end = (int64_t)(plan->task_count + 1) * TIME_STEP;
  for (uint32_t number = 0; number < plan->transfer_count; number++) {
    struct transfer *transfer = &plan->transfers[number];
    const int64_t made = plan->tasks[transfer->producer].time;
    const int64_t needed = plan->tasks[transfer->consumer].time;
    const bool prompt = random_chance(plan->random, 85);
    transfer->send = prompt ? made + 1 + below(plan->random, 9)
                            : between(plan->random, made + 1, needed > made ? needed : end);
    if (random_chance(plan->random, aligned)) {
      transfer->recv = transfer->send;
    } else {
      transfer->recv = random_chance(plan->random, 85) ? needed - 1 - below(plan->random, 9)
                                                       : between(plan->random, 0, needed);
    }
    if (transfer->recv >= needed) {
      transfer->recv = needed - 1;
    }
  }
}

static uint32_t find_next_on_edge(const struct plan *plan, uint32_t after) {
  const struct transfer *transfer = &plan->transfers[after];
  uint32_t next = NONE;
  for (uint32_t number = 0; number < plan->transfer_count; number++) {
    const struct transfer *other = &plan->transfers[number];
    const bool later =
        other->send > transfer->send || (other->send == transfer->send && number > after);
    if (other->edge == transfer->edge && later &&
        (next == NONE || other->send < plan->transfers[next].send)) {
      next = number;
    }
  }
  return next;
}

/* Makes the receives of each boundary come in the order of its sends, by moving
 * receives to earlier times: before its consumer a RECV may stand anywhere. */
static void align_edges(struct plan *plan) {
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t number = 0; number < plan->transfer_count; number++) {
      const uint32_t next = find_next_on_edge(plan, number);
      if (next != NONE && plan->transfers[number].recv >= plan->transfers[next].recv) {
        plan->transfers[number].recv = plan->transfers[next].recv - 1;
        changed = true;
      }
    }
  }
}

/* --- Rows ------------------------------------------------------------------ */

static int event_compare(const void *left, const void *right) {
  const struct event *a = left, *b = right;
  if (a->time != b->time) {
    return a->time < b->time ? -1 : 1;
  }
  return a->order < b->order ? -1 : a->order > b->order;
}

static struct event task_event(const struct plan *plan, uint32_t number) {
  const struct task *task = &plan->tasks[number];
  struct event event = {.time = task->time, .order = number, .rank = task->rank};
  if (task->fused == NONE) {
    event.record_count = 1;
    event.records[0] = task->action;
  } else {
    event.record_count = 3;
    event.records[0] = (struct weft_action){.op = WEFT_OP_OVERLAP_F_B, .parts = 2};
    event.records[1] = task->action;
    event.records[2] = plan->tasks[task->fused].action;
  }
  return event;
}

static struct event transfer_event(const struct plan *plan, uint32_t number, bool send) {
  const struct transfer *transfer = &plan->transfers[number];
  const struct task *task = &plan->tasks[send ? transfer->producer : transfer->consumer];
  const struct task *other = &plan->tasks[send ? transfer->consumer : transfer->producer];
  const bool forward = task->action.op == WEFT_OP_F;
  const enum weft_op op = send ? (forward ? WEFT_OP_SEND_F : WEFT_OP_SEND_B)
                               : (forward ? WEFT_OP_RECV_F : WEFT_OP_RECV_B);
  return (struct event){
      .time = send ? transfer->send : transfer->recv,
      .order = TASKS_MAX + number,
      .rank = task->rank,
      .record_count = 1,
      .records = {draft_transfer(op, task->action.stage, other->action.stage,
                                 task->action.microbatch)},
  };
}

static uint32_t collect_events(const struct plan *plan, struct event *events) {
  uint32_t count = 0;
  for (uint32_t number = 0; number < plan->task_count; number++) {
    if (!plan->tasks[number].hidden) {
      events[count++] = task_event(plan, number);
    }
  }
  for (uint32_t number = 0; number < plan->transfer_count; number++) {
    events[count++] = transfer_event(plan, number, true);
    events[count++] = transfer_event(plan, number, false);
  }
  qsort(events, count, sizeof events[0], event_compare);
  return count;
}

/* UNSHARD first, RESHARD and (after a backward) REDUCE_GRAD last; before those, in
 * some programs, TIE_GRAD. */
static void wrap_shards(const struct plan *plan, struct draft *draft, bool trains) {
  if (trains && has_backward(plan, 0) && (plan->stages + plan->microbatches) % 2 == 0) {
    const uint32_t last = plan->stages - 1;
    draft_append(draft, plan->rank_of[0], draft_action(WEFT_OP_TIE_GRAD, 0, 0));
    if (last > 0) {
      draft_append(draft, plan->rank_of[last], draft_action(WEFT_OP_TIE_GRAD, last, 0));
    }
  }
  for (uint32_t stage = 0; stage < plan->stages; stage++) {
    const struct weft_action gather = draft_action(WEFT_OP_UNSHARD, stage, 0);
    draft_insert(draft, plan->rank_of[stage], 0, &gather, 1);
    draft_append(draft, plan->rank_of[stage], draft_action(WEFT_OP_RESHARD, stage, 0));
    if (trains && has_backward(plan, stage)) {
      draft_append(draft, plan->rank_of[stage], draft_action(WEFT_OP_REDUCE_GRAD, stage, 0));
    }
  }
}

static void write_rows(struct plan *plan, struct draft *draft, uint32_t idle_percent) {
  static struct event events[EVENTS_MAX];
  const uint32_t count = collect_events(plan, events);
  draft_reset(draft, plan->ranks);
  draft_set_graph(draft, plan->graph);
  for (uint32_t number = 0; number < count; number++) {
    const struct event *event = &events[number];
    if (random_chance(plan->random, idle_percent)) {
      draft_append(draft, event->rank, draft_action(WEFT_OP_IDLE, 0, 0));
    }
    draft_insert(draft, event->rank, draft->rows[event->rank].count, event->records,
                 event->record_count);
  }
}

/* --- All of it -------------------------------------------------------------- */

static void place_stages(struct plan *plan) {
  const uint32_t kind = below(plan->random, 3);
  for (uint32_t stage = 0; stage < plan->stages; stage++) {
    const uint32_t turn = stage / plan->ranks, offset = stage % plan->ranks;
    switch (kind) {
      case 0: plan->rank_of[stage] = offset; break;
      case 1: plan->rank_of[stage] = turn % 2 == 0 ? offset : plan->ranks - 1 - offset; break;
      default: plan->rank_of[stage] = below(plan->random, plan->ranks); break;
    }
  }
}

/* Anything small; or two ranks and many microbatches, where it shows how much
 * a channel holds; or three ranks in a ring, where it shows what shares one. */
static enum backward choose_shape(struct plan *plan) {
  const uint32_t family = below(plan->random, 3);
  plan->task_count = 0;
  plan->transfer_count = 0;
  if (family == 0) {
    plan->ranks = 2 + below(plan->random, 2);
    plan->microbatches = 1 + below(plan->random, MICROBATCHES_MAX);
    plan->stages = plan->ranks + below(plan->random, 2 * plan->ranks + 1);
  } else if (family == 1) {
    plan->ranks = 2;
    plan->microbatches = MICROBATCHES_MAX - below(plan->random, 3);
    plan->stages = 2 + below(plan->random, 2);
  } else {
    plan->ranks = 3;
    plan->microbatches = 2 + below(plan->random, 2);
    plan->stages = 4 + below(plan->random, 3);
  }
  place_stages(plan);
  return family == 2 ? BACKWARD_NONE : (enum backward)below(plan->random, 4);
}

/* Who feeds whom. */
static void choose_edges(struct plan *plan, bool graph) {
  plan->edge_count = plan->stages - 1;
  for (uint32_t e = 0; e < plan->edge_count; e++) {
    plan->edges[e] = weft_edge_make(e, e + 1);
  }
  if (graph) {
    const struct random_graph_shape shape = random_graph_shape(plan->random, plan->stages);
    plan->graph = random_graph(plan->random, &shape);
    plan->edge_count = plan->graph->edge_count;
    memcpy(plan->edges, plan->graph->edges, plan->edge_count * sizeof plan->edges[0]);
  }
}

static bool fits(const struct draft *draft, const struct random_limits *limits) {
  const uint32_t limit = draft->rank_count == 2 ? limits->cells_two : limits->cells_three;
  for (uint32_t rank = 0; rank < draft->rank_count; rank++) {
    if (draft->rows[rank].count > limit) {
      return false;
    }
  }
  return true;
}

static void communicate(struct plan *plan, bool *misordered) {
  static const uint32_t aligned[] = {0, 0, 0, 30, 100};
  add_transfers(plan);
  time_transfers(plan, aligned[below(plan->random, 5)]);
  *misordered = random_chance(plan->random, 6);
  if (!*misordered) {
    align_edges(plan);
  }
}

void random_program(struct weft_random *random, const struct random_limits *limits,
                    struct draft *draft, bool *misordered) {
  struct plan plan = {.random = random};
  do {
    const enum backward backward = choose_shape(&plan);
    choose_edges(&plan, limits->graph);
    add_forwards(&plan);
    if (backward != BACKWARD_NONE) {
      add_backwards(&plan, backward);
    }
    place_tasks(&plan, random_chance(random, limits->communicate ? 12 : 50));
    fuse_some(&plan, random_chance(random, 25) ? 50 : 0);
    *misordered = false;
    if (limits->communicate) {
      communicate(&plan, misordered);
    }
    write_rows(&plan, draft, random_chance(random, 15) ? 15 : 0);
    if (limits->communicate && random_chance(random, 10)) {
      wrap_shards(&plan, draft, backward != BACKWARD_NONE);
    }
    weft_graph_destroy(plan.graph); /* the draft holds it */
    plan.graph = NULL;
  } while (!fits(draft, limits) || (limits->communicate && plan.transfer_count == 0));
}

/* --- Anything well-formed ---------------------------------------------------- */

static uint32_t any_number(struct weft_random *random, uint32_t limit) {
  switch (below(random, 8)) {
    case 0: return below(random, limit);
    case 1: return limit - 1 - below(random, 3);
    case 2: return below(random, 1000);
    default: return below(random, 10);
  }
}

static struct weft_action any_action(struct weft_random *random, uint32_t op_limit) {
  const uint32_t drawn = 1 + below(random, op_limit);
  const enum weft_op op = drawn < WEFT_OP_OVERLAP_F_B ? (enum weft_op)drawn : WEFT_OP_TIE_GRAD;
  const bool counted = op <= WEFT_OP_RECV_B;
  return draft_action(op, any_number(random, WEFT_STAGES_MAX),
                      counted ? any_number(random, WEFT_MICROBATCHES_MAX) : 0);
}

/* An overlap of one to four parts, now and then of many. */
static void any_overlap(struct weft_random *random, uint32_t op_limit, uint32_t rank,
                        struct draft *draft) {
  const uint32_t parts = random_chance(random, 2) ? 255 : 1 + below(random, 4);
  draft_append(draft, rank,
               (struct weft_action){.op = WEFT_OP_OVERLAP_F_B, .parts = (uint8_t)parts});
  for (uint32_t part = 0; part < parts; part++) {
    draft_append(draft, rank, any_action(random, op_limit));
  }
}

void random_rows(struct weft_random *random, uint32_t ranks, uint32_t cells, struct draft *draft) {
  const uint32_t op_limit = random_chance(random, 50) ? WEFT_OP_W : WEFT_OP_REDUCE_GRAD + 1;
  const uint32_t overlap_percent = random_chance(random, 30) ? 20 : 0;
  const uint32_t idle_percent = below(random, 4) * 25;
  draft_reset(draft, 1 + below(random, ranks));
  for (uint32_t rank = 0; rank < draft->rank_count; rank++) {
    const uint32_t count = below(random, cells + 1);
    for (uint32_t cell = 0; cell < count; cell++) {
      if (random_chance(random, idle_percent)) {
        draft_append(draft, rank, draft_action(WEFT_OP_IDLE, 0, 0));
      } else if (random_chance(random, overlap_percent)) {
        any_overlap(random, op_limit, rank, draft);
      } else {
        draft_append(draft, rank, any_action(random, op_limit));
      }
    }
  }
}
