/* What a rank's row needs; see row.h.
 *
 * The number of buffers of each edge follows from lifetimes on the row. A received buffer lives
 * from its RECV to the last backward of its microbatch. A sent buffer lives until the stage at the
 * other end has received it, which the row alone does not tell; but an activation has been received
 * when its gradient returns (I or B of the same microbatch), and a gradient is under way only
 * while the stage that it goes to still holds that microbatch's activation. With as many buffers as
 * these lifetimes overlap, a rank never waits for one. With fewer it would wait for a
 * neighbour to receive, as on a network that blocks. */
#include "run/executor/row.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/spec.h>
#include <weft/support.h>

#include "ir/lifetimes.h"
#include "ir/pairs.h"

/* ---- Counting ---- */

/* Now, and at most so far. */
struct level {
  uint32_t now, peak;
};

static void raise_level(struct level *level) {
  level->now++;
  level->peak = level->now > level->peak ? level->now : level->peak;
}

static void lower_level(struct level *level) { level->now -= level->now > 0; }

struct port_levels {
  struct level activations; /* held or, of an out-edge, not known to be received */
  struct level gradients;   /* held or, of an in-edge, not sent */
};

struct counting {
  const struct weft_row *row;
  struct level *slots;       /* [own stage] */
  struct port_levels *ports; /* [port] */
};

bool weft_row_find_stage(const struct weft_row *row, uint32_t stage, uint32_t *index) {
  assert(index != NULL);
  uint32_t low = 0;
  for (uint32_t count = row->own_count; count > 1; count -= count / 2) {
    low += row->own_stages[low + count / 2] <= stage ? count / 2 : 0;
  }
  *index = low;
  return low < row->own_count && row->own_stages[low] == stage;
}

static uint32_t find_port(const struct weft_row *row, uint32_t k, uint32_t other, bool in) {
  const struct weft_row_stage *stage = &row->stages[k];
  const uint32_t begin = stage->first_port + (in ? 0 : stage->in_count);
  const uint32_t end = stage->first_port + (in ? stage->in_count : stage->port_count);
  for (uint32_t p = begin; p < end; p++) {
    if (row->ports[p].other == other) {
      return p;
    }
  }
  return WEFT_PORT_NONE;
}

static void find_near(struct weft_row *row) {
  for (uint32_t k = 0; k < row->own_count; k++) {
    const struct weft_row_stage *stage = &row->stages[k];
    for (uint32_t p = 0; p < stage->port_count; p++) {
      const uint32_t other = row->ports[stage->first_port + p].other;
      uint32_t n;
      row->ports[stage->first_port + p].near =
          other != WEFT_STAGE_NONE && weft_row_find_stage(row, other, &n)
              ? find_port(row, n, row->own_stages[k], p >= stage->in_count)
              : WEFT_PORT_NONE;
    }
  }
}

static void count_end(struct counting *c, uint32_t k) {
  const struct weft_row_stage *stage = &c->row->stages[k];
  lower_level(&c->slots[k]);
  for (uint32_t p = 0; p < stage->port_count; p++) {
    struct port_levels *port = &c->ports[stage->first_port + p];
    lower_level(p < stage->in_count ? &port->activations : &port->gradients);
  }
}

static void count_forward(struct counting *c, uint32_t k) {
  const struct weft_row_stage *stage = &c->row->stages[k];
  raise_level(&c->slots[k]);
  for (uint32_t p = stage->in_count; p < stage->port_count; p++) {
    struct port_levels *port = &c->ports[stage->first_port + p];
    raise_level(&port->activations);
    const struct weft_row_port *of = &c->row->ports[stage->first_port + p];
    if (of->near != WEFT_PORT_NONE) {
      raise_level(&c->ports[of->near].activations);
    }
    if (of->other == WEFT_STAGE_NONE) {
      lower_level(&port->activations);
      raise_level(&port->gradients); /* the loss makes it */
    }
  }
}

/* The gradient of a microbatch: B or I. */
static void count_gradient(struct counting *c, uint32_t k) {
  const struct weft_row_stage *stage = &c->row->stages[k];
  for (uint32_t p = 0; p < stage->port_count; p++) {
    struct port_levels *port = &c->ports[stage->first_port + p];
    if (p >= stage->in_count) {
      lower_level(&port->activations);
      continue;
    }
    raise_level(&port->gradients);
    const uint32_t near = c->row->ports[stage->first_port + p].near;
    if (near != WEFT_PORT_NONE) {
      raise_level(&c->ports[near].gradients);
    }
  }
}

static void count_transfer(struct counting *c, uint32_t k, struct weft_action action) {
  const bool in = action.op == WEFT_OP_RECV_F || action.op == WEFT_OP_SEND_B;
  const uint32_t p = find_port(c->row, k, weft_transfer_other(action), in);
  if (p == WEFT_PORT_NONE) {
    return; /* there is no such edge: the executor says so */
  }
  switch (action.op) {
    case WEFT_OP_RECV_F: raise_level(&c->ports[p].activations); break;
    case WEFT_OP_RECV_B: raise_level(&c->ports[p].gradients); break;
    case WEFT_OP_SEND_B: lower_level(&c->ports[p].gradients); break;
    default: break;
  }
}

static void count_action(struct counting *c, struct weft_action action) {
  uint32_t k;
  if (!weft_row_find_stage(c->row, action.stage, &k)) {
    return; /* IDLE, or the head of an overlap */
  }
  if (weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    count_transfer(c, k, action);
  } else if (action.op == WEFT_OP_F) {
    count_forward(c, k);
  } else if (weft_op_in(action.op, WEFT_OPS_GRADIENT)) {
    count_gradient(c, k);
  }
  if (weft_ends_saved(action.op, c->row->stages[k].has_backward)) {
    count_end(c, k);
  }
}

/* How many microbatches a stage has between F and its gradient, at most, on
 * whatever rank it is. */
static uint32_t alive_at_most(const struct weft_row *row, uint32_t stage) {
  const struct weft_program *program = row->program;
  const uint32_t rank = row->rank_of[stage];
  struct level alive = {0, 0};
  if (rank == WEFT_RANK_NONE) {
    return 0;
  }
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
    const struct weft_action action = program->actions[i];
    if (action.stage == stage && action.op == WEFT_OP_F) {
      raise_level(&alive);
    } else if (action.stage == stage && weft_op_in(action.op, WEFT_OPS_GRADIENT)) {
      lower_level(&alive);
    }
  }
  return alive.peak;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* An activation whose gradient does not return may be under way for as long as it takes. */
static uint32_t ahead_of(const struct weft_row *row, uint32_t forward_ahead) {
  const uint32_t microbatches = row->program->microbatch_count;
  return forward_ahead == 0 || forward_ahead > microbatches ? microbatches : forward_ahead;
}

static void record_needs(const struct counting *c, struct weft_row *row, uint32_t k,
                         uint32_t forward_ahead) {
  struct weft_row_stage *stage = &row->stages[k];
  /* All sub-actions of an overlap begin before any of them ends. */
  const uint32_t together = row->sub_actions_max - 1;
  stage->slots = c->slots[k].peak + together;
  for (uint32_t p = 0; p < stage->port_count; p++) {
    struct weft_row_port *port = &row->ports[stage->first_port + p];
    const struct port_levels *levels = &c->ports[stage->first_port + p];
    port->activations = larger(levels->activations.peak, 1) + together;
    port->gradients = larger(levels->gradients.peak, 1) + together;
    if (p < stage->in_count) {
      const uint32_t alive = port->gradient ? alive_at_most(row, port->other) : 0;
      port->gradients = larger(port->gradients, alive + together);
    } else if (!stage->has_backward) {
      port->activations = larger(ahead_of(row, forward_ahead), 1);
    } else if (!port->gradient) {
      port->activations = larger(port->activations, ahead_of(row, forward_ahead));
    }
  }
}

/* ---- Reading the row ---- */

static void record_ops(struct weft_row *row) {
  for (uint64_t i = row->begin; i < row->end; i++) {
    const struct weft_action action = row->program->actions[i];
    uint32_t k;
    row->sub_actions_max = larger(row->sub_actions_max, weft_cell_parts(&action));
    if (!weft_row_find_stage(row, action.stage, &k)) {
      continue; /* IDLE, or the head of an overlap */
    }
    struct weft_row_stage *stage = &row->stages[k];
    if (weft_op_in(action.op, WEFT_OPS_BACKWARD)) {
      stage->has_backward = true;
      stage->splits = stage->splits || action.op != WEFT_OP_B;
      if (stage->first_backward == WEFT_RECORD_NONE) {
        stage->first_backward = (uint32_t)i;
      }
    }
    if (action.op == WEFT_OP_B || action.op == WEFT_OP_W) {
      stage->last_backward = (uint32_t)i;
    }
    stage->shards = stage->shards || action.op == WEFT_OP_UNSHARD;
    row->collectives += weft_op_in(action.op, WEFT_OPS_SHARD);
  }
}

static enum weft_status count_needs(const struct weft_allocator *allocator, struct weft_row *row,
                                    uint32_t forward_ahead, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  struct counting c = {.row = row,
                       .slots = weft_arena_allocate(&arena, row->own_count, sizeof *c.slots),
                       .ports = weft_arena_allocate(&arena, row->port_count, sizeof *c.ports)};
  WEFT_TRY(weft_arena_status(&arena, error));
  find_near(row);
  for (uint64_t i = row->begin; i < row->end; i++) {
    count_action(&c, row->program->actions[i]);
  }
  for (uint32_t k = 0; k < row->own_count; k++) {
    record_needs(&c, row, k, forward_ahead);
  }
  return WEFT_OK;
}

/* Every action of a row must be about the rank's own stages. */
static enum weft_status check_stages(const struct weft_row *row, struct weft_error *error) {
  for (uint64_t i = row->begin; i < row->end; i++) {
    const struct weft_action *action = &row->program->actions[i];
    const enum weft_op_kind kind = weft_op_info((enum weft_op)action->op)->kind;
    if (kind == WEFT_KIND_IDLE || kind == WEFT_KIND_GROUP) {
      continue;
    }
    const uint32_t owner = row->rank_of[action->stage];
    if (owner != row->rank) {
      char text[64], name[24] = "no rank";
      if (owner != WEFT_RANK_NONE) {
        (void)snprintf(name, sizeof name, "rank %" PRIu32, owner);
      }
      return weft_fail(error, WEFT_ERR_INVALID,
                       "verify the program to see everything that is wrong",
                       "rank %" PRIu32 " has %s, and stage %u belongs to %s", row->rank,
                       weft_action_format(action, text, sizeof text), action->stage, name);
    }
  }
  return WEFT_OK;
}

/* Of all stages, unless the program brings it. */
static enum weft_status find_ranks(struct weft_row *row, struct weft_error *error) {
  const struct weft_program *program = row->program;
  row->rank_of = program->known_ranks;
  if (row->rank_of == NULL) {
    uint32_t *ranks = weft_arena_allocate(&row->arena, program->stage_count, sizeof *ranks);
    WEFT_TRY(weft_arena_status(&row->arena, error));
    (void)weft_placement_infer(program, ranks);
    row->rank_of = ranks;
  }
  row->placement_hash =
      weft_checksum(row->rank_of, program->stage_count * sizeof *program->known_ranks);
  return check_stages(row, error);
}

/* ---- Ports ---- */

static void count_ports(const struct weft_program *program, uint32_t s,
                        struct weft_row_stage *stage) {
  const struct weft_action forward = weft_action_make(WEFT_OP_F, s, 0);
  const uint32_t stages = program->stage_count;
  stage->in_count = larger(weft_action_input_count(program->graph, forward, stages), 1);
  stage->port_count =
      stage->in_count + larger(weft_action_output_count(program->graph, forward, stages), 1);
}

/* `losses`: how many stages before it are losses. */
static void fill_ports(const struct weft_program *program, uint32_t s, uint32_t losses,
                       const struct weft_row_stage *stage, struct weft_row_port *ports) {
  assert(s < program->stage_count && stage->in_count >= 1);
  const struct weft_graph *graph = program->graph;
  const struct weft_action forward = weft_action_make(WEFT_OP_F, s, 0);
  const uint32_t edges = weft_graph_edge_count(graph, program->stage_count);
  for (uint32_t p = 0; p < stage->port_count; p++) {
    const bool in = p < stage->in_count;
    if (in ? weft_graph_is_source(graph, s) : weft_graph_is_loss(graph, s, program->stage_count)) {
      ports[p] = (struct weft_row_port){
          .other = WEFT_STAGE_NONE, .boundary = in ? 0 : edges + losses, .gradient = !in};
      continue;
    }
    const uint32_t e = in ? weft_action_input_channel(graph, forward, p) / 2
                          : weft_action_output_channel(graph, forward, p - stage->in_count) / 2;
    const struct weft_edge edge = weft_graph_edge(graph, e);
    ports[p] = (struct weft_row_port){
        .other = in ? edge.from : edge.to, .boundary = e, .gradient = edge.gradient};
  }
}

/* ---- Making ---- */

static void find_own_stages(struct weft_row *row) {
  const struct weft_program *program = row->program;
  for (uint32_t s = 0, k = 0; s < program->stage_count; s++) {
    if (row->rank_of[s] == row->rank) {
      struct weft_row_stage *stage = &row->stages[k];
      row->own_stages[k++] = s;
      stage->first_backward = stage->last_backward = WEFT_RECORD_NONE;
      count_ports(program, s, stage);
      stage->first_port = row->port_count;
      stage->held_at = row->held_bytes;
      stage->held_bytes =
          sizeof(struct weft_held) + stage->port_count * sizeof(struct weft_port_held);
      row->port_count += stage->port_count;
      row->held_bytes += stage->held_bytes * program->microbatch_count;
    }
  }
}

static void find_ports(struct weft_row *row) {
  const struct weft_graph *graph = row->program->graph;
  uint32_t losses = 0;
  for (uint32_t s = 0, k = 0; s < row->program->stage_count; s++) {
    if (row->rank_of[s] == row->rank) {
      fill_ports(row->program, s, losses, &row->stages[k], &row->ports[row->stages[k].first_port]);
      k++;
    }
    losses += weft_graph_is_loss(graph, s, row->program->stage_count);
  }
}

static enum weft_status allocate_row(struct weft_row *row, bool with_times,
                                     struct weft_error *error) {
  for (uint32_t s = 0; s < row->program->stage_count; s++) {
    row->own_count += row->rank_of[s] == row->rank;
  }
  row->held_count = (uint64_t)row->own_count * row->program->microbatch_count;
  row->stages = weft_arena_allocate(&row->arena, row->own_count, sizeof *row->stages);
  row->own_stages = weft_arena_allocate(&row->arena, row->own_count, sizeof *row->own_stages);
  WEFT_TRY(weft_arena_status(&row->arena, error));
  find_own_stages(row);
  row->ports = weft_arena_allocate(&row->arena, row->port_count, sizeof *row->ports);
  row->held = weft_arena_allocate(&row->arena, row->held_bytes, 1);
  if (with_times) {
    row->times = weft_arena_allocate(&row->arena, row->end - row->begin, sizeof *row->times);
  }
  return weft_arena_status(&row->arena, error);
}

static enum weft_status fill_row(const struct weft_allocator *allocator, struct weft_row *row,
                                 const struct weft_pipeline_options *options,
                                 struct weft_error *error) {
  size_t pairs;
  WEFT_TRY(weft_pairs_count(row->program, &pairs, NULL, error));
  WEFT_TRY(find_ranks(row, error));
  WEFT_TRY(allocate_row(row, !options->no_events, error));
  find_ports(row);
  assert(row->port_count >= 2 * row->own_count);
  record_ops(row);
  WEFT_TRY(count_needs(allocator, row, options->forward_ahead, error));
  return weft_row_lay_out_saved(row, options->stages, error);
}

WEFT_SCOPED_TYPE(weft_row)

enum weft_status weft_row_create(const struct weft_allocator *allocator,
                                 struct weft_program *program, uint32_t rank, bool training,
                                 const struct weft_pipeline_options *options, struct weft_row **out,
                                 struct weft_error *error) {
  assert(rank < program->rank_count);
  WEFT_SCOPED(weft_row) row = weft_array_allocate_zero(allocator, 1, sizeof *row);
  if (row == NULL) {
    weft_program_destroy(program);
    return weft_fail_memory(error, sizeof *row);
  }
  row->arena.allocator = allocator;
  row->program = program;
  row->hash = weft_program_hash(program);
  row->training = training;
  row->rank = rank;
  row->begin = program->row_begin[rank];
  row->end = program->row_begin[rank + 1];
  row->sub_actions_max = 1;
  WEFT_TRY(fill_row(allocator, row, options, error));
  *out = row;
  row = NULL;
  return WEFT_OK;
}

void weft_row_destroy(struct weft_row *row) {
  if (row == NULL) {
    return;
  }
  const struct weft_allocator *allocator = row->arena.allocator;
  weft_program_destroy(row->program);
  weft_arena_finish(&row->arena);
  weft_array_free(allocator, row, 1, sizeof *row);
}
