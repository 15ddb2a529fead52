/* A message has a start and an arrival, a cell a begin and an end. Each has a depth too: one more
 * than that of everything it waits for. Where depths grow beyond the number of things there are,
 * something waits for itself. */
#include "support_graph_timing.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES = 8, RANKS = 4, EDGES = STAGES * STAGES, MICROBATCHES = 5 };
enum { RECORDS = 4 * STAGES * MICROBATCHES }; /* of a row: F, I, W, and headers of overlaps */

static uint32_t below(struct weft_random *random, uint32_t bound) {
  return weft_random_below(random, bound);
}

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count + 1, size);
  assert(memory != NULL);
  return memory;
}

/* ---- Random cases ---- */

struct weft_graph *any_graph(struct weft_random *random) {
  const uint32_t n = 2 + below(random, STAGES - 1), density = 20 + below(random, 60);
  struct weft_edge edges[EDGES];
  bool has_in[STAGES] = {false}, has_out[STAGES] = {false}, backward[STAGES] = {false};
  uint32_t count = 0;
  for (uint32_t from = n; from-- > 0;) {
    for (uint32_t to = from + 1; to < n; to++) {
      /* No stage is left alone. */
      const bool last_chance =
          to + 1 == n && !has_out[from] && !has_in[from] && (from == 0 || below(random, 2) == 0);
      const bool alone = to == from + 1 && !has_out[to] && !has_in[to];
      if (below(random, 100) < density || last_chance || alone) {
        struct weft_edge edge = weft_edge_make(from, to);
        edge.bytes = (double)below(random, 8) - 2;
        edge.gradient_bytes = (double)below(random, 8) - 2;
        edge.gradient = backward[to] && below(random, 4) > 0;
        backward[from] = backward[from] || edge.gradient;
        has_out[from] = has_in[to] = true;
        edges[count++] = edge;
      }
    }
    backward[from] = backward[from] || !has_out[from];
  }
  struct weft_graph *graph = NULL;
  struct weft_error error;
  const enum weft_status status = weft_graph_create(NULL, n, edges, count, NULL, &graph, &error);
  assert(status == WEFT_OK);
  (void)status;
  return graph;
}

struct choice {
  const struct weft_graph *graph;
  uint32_t microbatches;
  bool split;
  uint32_t rank_of[STAGES];
  bool done[4][STAGES][MICROBATCHES]; /* F, B or I, W */
};

static bool is_ready(const struct choice *choice, uint32_t op, uint32_t stage, uint32_t mb) {
  const struct weft_graph *graph = choice->graph;
  if (choice->done[op][stage][mb] || (op > 0 && !weft_graph_has_backward(graph, stage)) ||
      (op == 2 && !choice->split)) {
    return false;
  }
  bool ready = op == 0 || choice->done[op - 1][stage][mb];
  for (uint32_t e = 0; e < graph->edge_count && op < 2; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    if (op == 0 && edge->to == stage) {
      ready = ready && choice->done[0][edge->from][mb];
    } else if (op == 1 && edge->from == stage && edge->gradient) {
      ready = ready && choice->done[1][edge->to][mb];
    }
  }
  return ready;
}

static struct weft_action as_action(const struct choice *choice, uint32_t task) {
  static const uint8_t whole[] = {WEFT_OP_F, WEFT_OP_B};
  static const uint8_t split[] = {WEFT_OP_F, WEFT_OP_I, WEFT_OP_W};
  const uint32_t op = task / (STAGES * MICROBATCHES);
  return (struct weft_action){.op = (choice->split ? split : whole)[op],
                              .stage = (uint16_t)(task / MICROBATCHES % STAGES),
                              .microbatch = task % MICROBATCHES};
}

/* Any task that can be done now, on the given rank, not `other`; false: there is none. */
static bool pick(const struct choice *choice, struct weft_random *random, uint32_t rank,
                 uint32_t op_first, uint32_t op_last, uint32_t *picked) {
  uint32_t seen = 0;
  for (uint32_t op = op_first; op <= op_last; op++) {
    for (uint32_t s = 0; s < choice->graph->stage_count; s++) {
      for (uint32_t mb = 0; mb < choice->microbatches; mb++) {
        if ((rank == RANKS || choice->rank_of[s] == rank) && is_ready(choice, op, s, mb) &&
            below(random, ++seen) == 0) {
          *picked = (op * STAGES + s) * MICROBATCHES + mb;
        }
      }
    }
  }
  return seen > 0;
}

static void do_task(struct choice *choice, struct weft_action action) {
  const uint32_t op = action.op == WEFT_OP_F ? 0 : action.op == WEFT_OP_W ? 2 : 1;
  choice->done[op][action.stage][action.microbatch] = true;
}

struct weft_program *any_graph_table(struct weft_random *random, const struct weft_graph *graph) {
  struct choice choice = {.graph = graph,
                          .microbatches = 1 + below(random, MICROBATCHES),
                          .split = below(random, 2) == 0};
  const uint32_t ranks = 1 + below(random, RANKS), overlaps = below(random, 3) * 15;
  struct weft_action rows[RANKS][RECORDS], actions[RANKS * RECORDS];
  uint64_t sizes[RANKS] = {0};
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    choice.rank_of[s] = below(random, ranks);
  }
  uint32_t task = 0, second = 0;
  while (pick(&choice, random, RANKS, 0, 2, &task)) {
    const struct weft_action first = as_action(&choice, task);
    const uint32_t rank = choice.rank_of[first.stage];
    struct weft_action *row = rows[rank];
    if (first.op == WEFT_OP_F && below(random, 100) < overlaps &&
        pick(&choice, random, rank, 1, 1, &second)) {
      row[sizes[rank]++] = (struct weft_action){.op = WEFT_OP_OVERLAP_F_B, .parts = 2};
      row[sizes[rank]++] = first;
      row[sizes[rank]++] = as_action(&choice, second);
      do_task(&choice, as_action(&choice, second));
    } else {
      row[sizes[rank]++] = first;
    }
    do_task(&choice, first);
  }
  size_t total = 0;
  for (uint32_t r = 0; r < ranks; r++) {
    memcpy(&actions[total], rows[r], sizes[r] * sizeof *actions);
    total += sizes[r];
  }
  struct weft_program *table = NULL;
  struct weft_error error;
  enum weft_status status = weft_program_create(NULL, ranks, sizes, actions, &table, &error);
  assert(status == WEFT_OK);
  status = weft_program_set_graph(table, graph, &error);
  assert(status == WEFT_OK);
  (void)status;
  return table;
}

struct weft_costs *any_costs(struct weft_random *random, uint32_t stage_count) {
  struct weft_costs *costs = NULL;
  struct weft_error error;
  const enum weft_status status = weft_costs_create(NULL, stage_count, &costs, &error);
  assert(status == WEFT_OK);
  (void)status;
  for (uint32_t s = 0; s < stage_count; s++) {
    struct weft_stage_costs *stage = &costs->stages[s];
    stage->f = below(random, 6);
    stage->i = below(random, 6);
    stage->w = below(random, 6);
    stage->b = below(random, 9);
    stage->overlap_f_b = below(random, 3) == 0 ? (double)below(random, 9) : -1;
    stage->activation = below(random, 4);
    stage->activation_after_i = below(random, (uint32_t)stage->activation + 1);
  }
  costs->hop = (struct weft_hop_costs){
      .latency = below(random, 3), .bytes = below(random, 4), .bytes_per_unit = below(random, 3)};
  return costs;
}

/* ---- Times ---- */

/* Over one direction of an edge. */
struct message {
  double bytes;
  const struct weft_edge *edge;
  bool forward;
  uint32_t from, to; /* ranks */
  uint64_t maker;    /* record */
  uint64_t taker;
  int64_t occupancy;
  int64_t latency;
  int64_t start, arrival;
  uint32_t depth;
  struct message *before[2]; /* whose turn on a channel or queue is first; NULL: none */
  uint64_t issued_after[2];  /* cells whose end it waits for, with NCCL; UINT64_MAX: none */
};

struct timing_run {
  const struct weft_program *program;
  const struct weft_costs *costs;
  enum weft_channel_model scope;
  struct message *messages; /* [2 x edge + direction][microbatch] */
  size_t message_count;
  struct timed_record *records;
  uint32_t *depths; /* [record] */
  bool has_transfers;
  bool moved;
};

static struct message *message_at(const struct timing_run *run, uint32_t edge, bool forward,
                                  uint32_t mb) {
  return &run->messages[(2 * (size_t)edge + !forward) * run->program->microbatch_count + mb];
}

static bool is_compute(struct weft_action action) {
  return action.op >= WEFT_OP_F && action.op <= WEFT_OP_W;
}

static uint32_t records_of(const struct weft_action *cell) {
  return cell->op == WEFT_OP_OVERLAP_F_B ? 1u + cell->parts : 1;
}

/* The messages that an action consumes (or makes), by ascending stage; returns how many. */
static uint32_t messages_of(const struct timing_run *run, struct weft_action action, bool inputs,
                            struct message *found[STAGES]) {
  const struct weft_graph *graph = run->program->graph;
  uint32_t count = 0;
  for (uint32_t e = 0; e < graph->edge_count && is_compute(action); e++) {
    const struct weft_edge *edge = &graph->edges[e];
    const bool forward = action.op == WEFT_OP_F;
    const bool carries = forward || (edge->gradient && action.op != WEFT_OP_W);
    if (carries && (forward == inputs ? edge->to : edge->from) == action.stage) {
      found[count++] = message_at(run, e, forward, action.microbatch);
    }
  }
  return count;
}

static int64_t halves(double time) { return (int64_t)(2 * time); }

static int64_t duration_of(const struct timing_run *run, const struct weft_action *cell) {
  double sum = 0;
  for (uint32_t k = 0; k < records_of(cell); k++) {
    const struct weft_stage_costs *costs = &run->costs->stages[cell[k].stage];
    const double times[] = {costs->f, costs->b, costs->i, costs->w};
    if (cell->op == WEFT_OP_OVERLAP_F_B && cell[k].op == WEFT_OP_F && costs->overlap_f_b >= 0) {
      return halves(costs->overlap_f_b);
    }
    sum += is_compute(cell[k]) ? times[cell[k].op - WEFT_OP_F] : 0;
  }
  return halves(sum);
}

static void note_ends(struct timing_run *run) {
  const struct weft_program *program = run->program;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      struct message *found[STAGES];
      uint32_t count = messages_of(run, program->actions[i], true, found);
      for (uint32_t k = 0; k < count; k++) {
        found[k]->to = r;
        found[k]->taker = i;
      }
      count = messages_of(run, program->actions[i], false, found);
      for (uint32_t k = 0; k < count; k++) {
        found[k]->from = r;
        found[k]->maker = i;
      }
    }
  }
}

static void note_sizes(struct timing_run *run) {
  const struct weft_graph *graph = run->program->graph;
  const struct weft_hop_costs *hop = &run->costs->hop;
  for (size_t k = 0; k < run->message_count; k++) {
    struct message *message = &run->messages[k];
    message->edge = &graph->edges[k / run->program->microbatch_count / 2];
    message->forward = k / run->program->microbatch_count % 2 == 0;
    const double own = message->forward ? message->edge->bytes : message->edge->gradient_bytes;
    const double bytes = own < 0 ? hop->bytes : own;
    message->bytes = bytes;
    message->occupancy = hop->bytes_per_unit > 0 ? halves(bytes / hop->bytes_per_unit) : 0;
    message->latency = halves(hop->latency);
    message->issued_after[0] = message->issued_after[1] = UINT64_MAX;
  }
}

static struct message *carried_by(const struct timing_run *run, struct weft_action action) {
  const bool forward = action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_RECV_F;
  const bool up = action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_RECV_B;
  const uint32_t other = up ? action.stage + 1u + action.skip : action.stage - 1u - action.skip;
  const uint32_t edge =
      weft_graph_find(run->program->graph, up ? action.stage : other, up ? other : action.stage);
  assert(edge != WEFT_EDGE_NONE);
  return message_at(run, edge, forward, action.microbatch);
}

/* Which queue of a rank a transfer goes through. */
static uint32_t queue_of(const struct timing_run *run, uint32_t peer, bool sends) {
  switch (run->scope) {
    case WEFT_CHANNEL_RANK:
    case WEFT_CHANNEL_NCCL_WORLD: return 0;
    case WEFT_CHANNEL_NCCL_DIRECTED: return 2 * peer + sends;
    default: return 2 * peer;
  }
}

/* In a program: whose turn comes before whose, at either end. */
static void queue_row(struct timing_run *run, uint32_t rank) {
  const struct weft_program *program = run->program;
  struct message *last[2 * RANKS] = {NULL};
  struct message **last_sent = allocate(run->message_count, sizeof(void *));
  uint64_t cell_before = UINT64_MAX;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];) {
    const struct weft_action action = program->actions[i];
    const bool sends = action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_SEND_B;
    if (sends || action.op == WEFT_OP_RECV_F || action.op == WEFT_OP_RECV_B) {
      struct message *message = carried_by(run, action);
      const size_t channel = (size_t)(message - run->messages) / program->microbatch_count;
      if (run->scope != WEFT_CHANNEL_EDGE) {
        struct message **queue = &last[queue_of(run, sends ? message->to : message->from, sends)];
        message->before[sends] = *queue;
        *queue = message;
        if (run->scope >= WEFT_CHANNEL_NCCL_DIRECTED) {
          message->issued_after[sends] = cell_before;
        }
      } else if (sends) {
        message->before[0] = last_sent[channel];
        last_sent[channel] = message;
      }
    } else if (is_compute(action) || action.op == WEFT_OP_OVERLAP_F_B) {
      cell_before = i;
    }
    i += records_of(&program->actions[i]);
  }
  free(last_sent);
}

/* In a table: messages cross in the order in which they are made. */
static void queue_table_row(struct timing_run *run, uint32_t rank) {
  const struct weft_program *program = run->program;
  struct message **last = allocate(run->message_count, sizeof(void *));
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
    struct message *found[STAGES];
    const uint32_t count = messages_of(run, program->actions[i], false, found);
    for (uint32_t k = 0; k < count; k++) {
      const size_t channel = (size_t)(found[k] - run->messages) / program->microbatch_count;
      found[k]->before[0] = last[channel];
      last[channel] = found[k];
    }
  }
  free(last);
}

/* ---- Rules that push times on ---- */

static void push(struct timing_run *run, int64_t *time, int64_t to) {
  run->moved = run->moved || to > *time;
  *time = to > *time ? to : *time;
}

static void deepen(struct timing_run *run, uint32_t *depth, uint32_t below_it) {
  run->moved = run->moved || below_it + 1 > *depth;
  *depth = below_it + 1 > *depth ? below_it + 1 : *depth;
}

static void push_message(struct timing_run *run, struct message *message) {
  const struct timed_record *maker = &run->records[message->maker];
  push(run, &message->start, maker->end);
  deepen(run, &message->depth, run->depths[message->maker]);
  if (message->from == message->to) {
    push(run, &message->arrival, message->start);
    return;
  }
  for (int k = 0; k < 2; k++) {
    if (message->before[k] != NULL) {
      push(run, &message->start, message->before[k]->start + message->before[k]->occupancy);
      deepen(run, &message->depth, message->before[k]->depth);
    }
    if (message->issued_after[k] != UINT64_MAX) {
      push(run, &message->start, run->records[message->issued_after[k]].end);
      deepen(run, &message->depth, run->depths[message->issued_after[k]]);
    }
  }
  push(run, &message->arrival, message->start + message->occupancy + message->latency);
}

static void push_row(struct timing_run *run, uint32_t rank) {
  const struct weft_program *program = run->program;
  int64_t clock = 0;
  uint32_t depth = 0;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];) {
    const struct weft_action *cell = &program->actions[i];
    const uint32_t size = records_of(cell);
    struct timed_record *record = &run->records[i];
    if (is_compute(*cell) || cell->op == WEFT_OP_OVERLAP_F_B) {
      push(run, &record->begin, clock);
      deepen(run, &run->depths[i], depth);
      for (uint32_t k = 0; k < size; k++) {
        struct message *inputs[STAGES];
        const uint32_t count = messages_of(run, cell[k], true, inputs);
        for (uint32_t j = 0; j < count; j++) {
          push(run, &record->begin, inputs[j]->arrival);
          deepen(run, &run->depths[i], inputs[j]->depth);
        }
      }
      push(run, &record->end, record->begin + duration_of(run, cell));
      for (uint32_t k = 1; k < size; k++) {
        run->records[i + k] = *record;
        run->depths[i + k] = run->depths[i];
      }
      clock = record->end;
      depth = run->depths[i];
    }
    i += size;
  }
}

static bool settle(struct timing_run *run) {
  const size_t rounds = run->message_count + run->program->action_count + 2;
  for (size_t round = 0; round <= rounds; round++) {
    run->moved = false;
    for (uint32_t r = 0; r < run->program->rank_count; r++) {
      push_row(run, r);
    }
    for (size_t k = 0; k < run->message_count; k++) {
      if (run->messages[k].forward || run->messages[k].edge->gradient) {
        push_message(run, &run->messages[k]);
      }
    }
    if (!run->moved) {
      return true;
    }
  }
  return false;
}

/* ---- What follows from the times ---- */

static void blame_row(const struct timing_run *run, uint32_t rank, int64_t *idle) {
  const struct weft_program *program = run->program;
  int64_t clock = 0;
  bool first = true;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];) {
    const struct weft_action *cell = &program->actions[i];
    const struct message *latest = NULL;
    for (uint32_t k = 0; k < records_of(cell); k++) {
      struct message *inputs[STAGES];
      const uint32_t count = messages_of(run, cell[k], true, inputs);
      for (uint32_t j = 0; j < count; j++) {
        latest = latest == NULL || inputs[j]->arrival > latest->arrival ? inputs[j] : latest;
      }
    }
    if (is_compute(*cell) || cell->op == WEFT_OP_OVERLAP_F_B) {
      const int64_t gap = run->records[i].begin - clock;
      if (!first && gap > 0) {
        const int64_t wait = latest->start - run->records[latest->maker].end;
        const int64_t channel = wait < gap ? wait : gap;
        idle[WEFT_IDLE_CHANNEL] += channel;
        idle[latest->forward ? WEFT_IDLE_FORWARD : WEFT_IDLE_GRADIENT] += gap - channel;
      }
      clock = run->records[i].end;
      first = false;
    }
    i += records_of(cell);
  }
}

/* Messages from other ranks that are arriving or have arrived, and are not consumed, at every
 * moment at which one starts. */
static uint32_t count_buffers(const struct timing_run *run, uint32_t rank) {
  uint32_t most = 0;
  for (size_t k = 0; k < run->message_count; k++) {
    uint32_t used = 0;
    for (size_t j = 0; j < run->message_count; j++) {
      const struct message *message = &run->messages[j];
      used += (message->forward || message->edge->gradient) && message->to == rank &&
              message->from != rank && message->start <= run->messages[k].start &&
              run->records[message->taker].end > run->messages[k].start;
    }
    const bool counts = run->messages[k].to == rank && run->messages[k].from != rank &&
                        (run->messages[k].forward || run->messages[k].edge->gradient);
    most = counts && used > most ? used : most;
  }
  return most;
}

/* Bytes of messages to the rank, its own included, that are on the way or there and not consumed,
 * at every moment at which one starts. */
static double count_bytes(const struct timing_run *run, uint32_t rank) {
  double most = 0;
  for (size_t k = 0; k < run->message_count; k++) {
    double bytes = 0;
    for (size_t j = 0; j < run->message_count; j++) {
      const struct message *message = &run->messages[j];
      const bool waits = (message->forward || message->edge->gradient) && message->to == rank &&
                         message->start <= run->messages[k].start &&
                         run->records[message->taker].end > run->messages[k].start;
      bytes += waits ? message->bytes : 0;
    }
    const bool counts = run->messages[k].to == rank &&
                        (run->messages[k].forward || run->messages[k].edge->gradient);
    most = counts && bytes > most ? bytes : most;
  }
  return most;
}

static double peak_of_row(const struct timing_run *run, uint32_t rank) {
  const struct weft_program *program = run->program;
  double held = 0, peak = 0;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];) {
    const struct weft_action *cell = &program->actions[i];
    for (uint32_t k = 0; k < records_of(cell); k++) {
      held += cell[k].op == WEFT_OP_F ? run->costs->stages[cell[k].stage].activation : 0;
    }
    peak = held > peak ? held : peak;
    for (uint32_t k = 0; k < records_of(cell); k++) {
      const struct weft_stage_costs *costs = &run->costs->stages[cell[k].stage];
      const bool frozen = !weft_graph_has_backward(program->graph, cell[k].stage);
      const bool gone = cell[k].op == WEFT_OP_B || (cell[k].op == WEFT_OP_F && frozen);
      held -= gone ? costs->activation : 0;
      held -= cell[k].op == WEFT_OP_I ? costs->activation - costs->activation_after_i : 0;
      held -= cell[k].op == WEFT_OP_W ? costs->activation_after_i : 0;
    }
    i += records_of(cell);
  }
  return peak;
}

static void time_transfers(const struct timing_run *run) {
  for (uint64_t i = 0; i < run->program->action_count; i++) {
    const struct weft_action action = run->program->actions[i];
    if (action.op >= WEFT_OP_SEND_F && action.op <= WEFT_OP_RECV_B) {
      const struct message *message = carried_by(run, action);
      run->records[i] = (struct timed_record){message->start, message->arrival};
    }
  }
}

struct timed_program time_program(const struct weft_program *program,
                                  const struct weft_costs *costs, enum weft_channel_model scope) {
  const uint32_t p = program->rank_count;
  const size_t messages = 2 * (size_t)program->graph->edge_count * program->microbatch_count;
  struct timing_run run = {.program = program,
                           .costs = costs,
                           .scope = scope,
                           .messages = allocate(messages, sizeof *run.messages),
                           .message_count = messages,
                           .records = allocate(program->action_count, sizeof *run.records),
                           .depths = allocate(program->action_count, sizeof *run.depths)};
  struct timed_program timed = {.records = run.records,
                                .idle = allocate(p * WEFT_IDLE_CAUSES, sizeof *timed.idle),
                                .buffers = allocate(p, sizeof *timed.buffers),
                                .bytes = allocate(p, sizeof *timed.bytes),
                                .peaks = allocate(p, sizeof *timed.peaks)};
  for (uint64_t i = 0; i < program->action_count; i++) {
    const uint8_t op = program->actions[i].op;
    run.has_transfers |= op == WEFT_OP_SEND_F || op == WEFT_OP_SEND_B;
  }
  note_sizes(&run);
  note_ends(&run);
  for (uint32_t r = 0; r < p; r++) {
    (run.has_transfers ? queue_row : queue_table_row)(&run, r);
  }
  timed.finishes = settle(&run);
  for (uint32_t r = 0; r < p && timed.finishes; r++) {
    blame_row(&run, r, &timed.idle[(size_t)r * WEFT_IDLE_CAUSES]);
    timed.buffers[r] = count_buffers(&run, r);
    timed.bytes[r] = count_bytes(&run, r);
    timed.peaks[r] = peak_of_row(&run, r);
  }
  time_transfers(&run);
  free(run.messages);
  free(run.depths);
  return timed;
}

void timed_program_finish(struct timed_program *timed) {
  free(timed->records);
  free(timed->idle);
  free(timed->buffers);
  free(timed->bytes);
  free(timed->peaks);
}

/* ---- Tables by hand ---- */

struct weft_program *parse_text(const char *csv) {
  struct weft_program *program = NULL;
  struct weft_error error;
  if (weft_program_parse(NULL, csv, strlen(csv), "test", &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

struct weft_program *lower_plainly(const struct weft_program *table) {
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_program *program = NULL;
  struct weft_error error;
  options.unshard = options.reduce_grad = false;
  if (weft_lower(NULL, table, &options, &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}
