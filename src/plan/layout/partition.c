/* Partitions the parts of a model into stages so that ranks have equal work, and fit into their
 * memory.
 *
 * With one stage per rank the partition with the lightest heaviest stage is known
 * (weft_balanced_partition()). With several, the work of a rank is a sum over stages that lie apart. So that
 * partition is only the start of a local search: single boundaries, pairs of them, and all
 * boundaries from one to another move by one part as long as that makes the heaviest rank lighter,
 * or leaves it and makes the others more equal; restarts move some boundaries at random, with a
 * fixed seed. Where memory is short, the excess over the limit counts before time.
 *
 * How many microbatches a rank will hold is known only when there is an order. So there are
 * partitions for several assumptions, and the search tries them all. */
#include "plan/layout/partition.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "plan/problem/problem.h"

/* The number of pairs of boundaries is quadratic in the stages; pairs and restarts are left out
 * where they would take long. */
enum {
  THOROUGH_STAGES_MAX = 16,
  RESTARTS_STAGES_MAX = 32,
  PAIRS_STAGES_MAX = 64,
  PASSES_MAX = 100,
  RESTARTS = 160 /* divided by the stages */
};

struct partition {
  struct weft_search_control *control; /* NULL: none */
  const struct weft_shape *shape;
  const double *factors; /* [ranks] or NULL: all 1 */
  uint32_t part_count, stage_count;
  double limit;
  bool has_to_fit;   /* if any does: no other kind takes less memory */
  double *work;      /* [part_count] of a microbatch */
  double *held;      /* [part_count] most memory of a microbatch */
  double *kept;      /* [part_count] parameters and gradients */
  double *in_flight; /* [ranks] microbatches assumed in flight */
  double *load;      /* [ranks] sums of the work ... */
  double *memory;    /* [ranks] ... and of the memory of a rank's parts */
  uint32_t *first;   /* [stage_count + 1] */
  uint32_t *best;    /* [stage_count + 1] the best so far, during restarts */
};

/* ---- The score ---- */

/* Smaller is better, in this order: memory over the limit, heaviest rank, sum of squares. */
struct score {
  double over, heaviest, squares;
};

static bool is_less(double a, double b) { return a < b - 1e-12 * fabs(b); }

static bool is_better(const struct score *a, const struct score *b) {
  if (is_less(a->over, b->over) || is_less(b->over, a->over)) {
    return a->over < b->over;
  }
  if (is_less(a->heaviest, b->heaviest) || is_less(b->heaviest, a->heaviest)) {
    return a->heaviest < b->heaviest;
  }
  return is_less(a->squares, b->squares);
}

static struct score score_of(const struct partition *partition) {
  struct score score = {0, 0, 0};
  for (uint32_t r = 0; r < partition->shape->ranks; r++) {
    score.over += fmax(0, partition->memory[r] - partition->limit);
    score.heaviest = fmax(score.heaviest, partition->load[r]);
    score.squares += partition->load[r] * partition->load[r];
  }
  return score;
}

/* Adds a part to a stage (sign 1) or removes it (-1). */
static void put(struct partition *partition, uint32_t stage, uint32_t part, double sign) {
  const uint32_t rank = weft_shape_rank_of(partition->shape, stage);
  partition->load[rank] +=
      sign * partition->work[part] * (partition->factors != NULL ? partition->factors[rank] : 1);
  partition->memory[rank] +=
      sign * (partition->kept[part] + partition->in_flight[rank] * partition->held[part]);
}

static void add_up(struct partition *partition) {
  const uint32_t ranks = partition->shape->ranks;
  memset(partition->load, 0, ranks * sizeof *partition->load);
  memset(partition->memory, 0, ranks * sizeof *partition->memory);
  for (uint32_t s = 0; s < partition->stage_count; s++) {
    for (uint32_t k = partition->first[s]; k < partition->first[s + 1]; k++) {
      put(partition, s, k, 1);
    }
  }
}

/* ---- Moving boundaries ---- */

/* Boundary b is where stage b begins. Up: its first part moves to the stage before it. */
static bool move(struct partition *partition, uint32_t boundary, bool up) {
  uint32_t *first = partition->first;
  const uint32_t from = up ? boundary : boundary - 1, to = up ? boundary - 1 : boundary;
  if (first[from + 1] - first[from] < 2) {
    return false;
  }
  const uint32_t part = up ? first[boundary] : first[boundary] - 1;
  put(partition, from, part, -1);
  put(partition, to, part, 1);
  first[boundary] = up ? first[boundary] + 1 : first[boundary] - 1;
  return true;
}

/* Keeps a move if it improves the score. Sums are recomputed only once per pass: the rounding
 * errors of moving back and forth are smaller than what counts as better. */
static bool try_move(struct partition *partition, struct score *best, uint32_t boundary, bool up) {
  if (!move(partition, boundary, up)) {
    return false;
  }
  const struct score score = score_of(partition);
  if (is_better(&score, best)) {
    *best = score;
    return true;
  }
  (void)move(partition, boundary, !up);
  return false;
}

/* Whether removing a part can make the heaviest rank lighter, or bring one below the limit. With
 * few stages, moves that only make others more equal are tried too. */
static bool is_critical(const struct partition *partition, const struct score *best,
                        uint32_t stage) {
  const uint32_t rank = weft_shape_rank_of(partition->shape, stage);
  return partition->stage_count <= THOROUGH_STAGES_MAX ||
         !is_less(partition->load[rank], best->heaviest) ||
         partition->memory[rank] > partition->limit;
}

static bool try_pair(struct partition *partition, struct score *best, uint32_t boundary,
                     uint32_t other, unsigned ways) {
  const bool up = (ways & 1) != 0, other_up = (ways & 2) != 0;
  if (!is_critical(partition, best, up ? boundary : boundary - 1) &&
      !is_critical(partition, best, other_up ? other : other - 1)) {
    return false;
  }
  if (!move(partition, boundary, up)) {
    return false;
  }
  if (try_move(partition, best, other, other_up)) {
    return true;
  }
  (void)move(partition, boundary, !up);
  return false;
}

/* Whether a pass goes on to another boundary. Out of time it does not, unless this partition has to
 * fit, and does not yet. */
static bool goes_on(const struct partition *partition, const struct score *best,
                    uint32_t boundary) {
  return boundary < partition->stage_count && ((partition->has_to_fit && best->over > 0) ||
                                               !weft_search_control_poll(partition->control));
}

/* Moves a chain of boundaries from one on: what one stage loses, another one far away gains. The
 * order is such that no stage becomes empty on the way. */
static bool try_chain(struct partition *partition, struct score *best, uint32_t boundary, bool up) {
  const uint32_t count = partition->stage_count;
  uint32_t moved = 0, at = boundary;
  if (!is_critical(partition, best, up ? boundary : boundary - 1)) {
    return false;
  }
  while (at > 0 && at < count && move(partition, at, up)) {
    const struct score score = score_of(partition);
    moved++;
    if (is_better(&score, best)) {
      *best = score;
      return true;
    }
    at = up ? at - 1 : at + 1;
  }
  for (; moved > 0; moved--) {
    at = up ? at + 1 : at - 1;
    (void)move(partition, at, !up);
  }
  return false;
}

/* By one kind of move. */
static bool improve_by(struct partition *partition, struct score *best,
                       bool (*try)(struct partition *, struct score *, uint32_t, bool)) {
  bool improved = false;
  for (uint32_t boundary = 1; goes_on(partition, best, boundary); boundary++) {
    for (unsigned up = 0; up < 2; up++) {
      improved = try(partition, best, boundary, up != 0) || improved;
    }
  }
  return improved;
}

static bool improve_pairs(struct partition *partition, struct score *best) {
  bool improved = false;
  for (uint32_t boundary = 1; goes_on(partition, best, boundary); boundary++) {
    for (uint32_t other = boundary + 1; other < partition->stage_count; other++) {
      for (unsigned ways = 0; ways < 4; ways++) {
        improved = try_pair(partition, best, boundary, other, ways) || improved;
      }
    }
  }
  return improved;
}

static void improve(struct partition *partition) {
  for (unsigned pass = 0; pass < PASSES_MAX; pass++) {
    add_up(partition);
    struct score best = score_of(partition);
    if (!improve_by(partition, &best, try_move) && !improve_by(partition, &best, try_chain) &&
        (partition->stage_count > PAIRS_STAGES_MAX || !improve_pairs(partition, &best))) {
      return;
    }
  }
}

/* Moves a few boundaries at random. */
static void perturb(struct partition *partition, struct weft_random *random) {
  const uint32_t moves = 2 + weft_random_below(random, partition->stage_count);
  for (uint32_t n = 0; n < moves; n++) {
    const uint32_t boundary = 1 + weft_random_below(random, partition->stage_count - 1);
    (void)move(partition, boundary, weft_random_below(random, 2) == 0);
  }
}

static void search_locally(struct partition *partition) {
  const size_t size = ((size_t)partition->stage_count + 1) * sizeof *partition->first;
  struct weft_random random = {.state = partition->part_count};
  improve(partition);
  if (partition->stage_count < 2 || partition->stage_count > RESTARTS_STAGES_MAX) {
    return;
  }
  struct score best = score_of(partition);
  for (uint32_t n = 0;
       n < RESTARTS / partition->stage_count && !weft_search_control_poll(partition->control);
       n++) {
    memcpy(partition->best, partition->first, size);
    perturb(partition, &random);
    improve(partition);
    const struct score score = score_of(partition);
    if (is_better(&score, &best)) {
      best = score;
    } else {
      memcpy(partition->first, partition->best, size);
    }
  }
}

/* ---- Starting partitions ---- */

static double weight_between(const struct partition *partition, uint32_t begin, uint32_t end) {
  double sum = 0;
  for (uint32_t k = begin; k < end; k++) {
    sum += partition->work[k];
  }
  return sum;
}

static double heaviest_stage(const struct partition *partition) {
  double heaviest = 0;
  for (uint32_t s = 0; s < partition->stage_count; s++) {
    heaviest =
        fmax(heaviest, weight_between(partition, partition->first[s], partition->first[s + 1]));
  }
  return heaviest * (1 + 1e-9);
}

/* Each stage takes parts up to `most`, and leaves one part for each later stage. */
static void fill_from_front(struct partition *partition, double most) {
  uint32_t end = 0;
  for (uint32_t s = 0; s + 1 < partition->stage_count; s++) {
    const uint32_t left = partition->stage_count - s - 1;
    double sum = 0;
    partition->first[s] = end;
    do {
      sum += partition->work[end++];
    } while (end + left < partition->part_count && sum + partition->work[end] <= most);
    partition->first[s + 1] = end;
  }
}

static void fill_from_back(struct partition *partition, double most) {
  uint32_t begin = partition->part_count;
  for (uint32_t s = partition->stage_count - 1; s > 0; s--) {
    double sum = 0;
    do {
      sum += partition->work[--begin];
    } while (begin > s && sum + partition->work[begin - 1] <= most);
    partition->first[s] = begin;
  }
}

/* With one stage per rank, ranks of equal speed and enough memory the starting partition is optimal
 * already. */
static void arrange(struct partition *partition, enum weft_partition_kind kind) {
  if (kind == WEFT_PARTITION_LIGHT_LAST) {
    fill_from_front(partition, heaviest_stage(partition));
  } else if (kind == WEFT_PARTITION_LIGHT_FIRST) {
    fill_from_back(partition, heaviest_stage(partition));
  }
  if (partition->shape->stages_per_rank > 1 || partition->factors != NULL ||
      kind >= WEFT_PARTITION_FULL) {
    search_locally(partition);
  }
}

/* ---- Work and memory of the parts ---- */

static double known(double size) { return fmax(0, size); }

static void fill_parts(struct partition *partition, const struct weft_search_request *request) {
  for (uint32_t k = 0; k < partition->part_count; k++) {
    const struct weft_part_costs *part = &request->costs->parts[k];
    partition->work[k] = part->f + part->i + part->w;
    partition->held[k] = known(fmax(part->activation, part->activation_after_i));
    partition->kept[k] = known(part->parameters) + known(part->gradients);
  }
}

/* As in 1F1B: more on the first ranks, whose gradients arrive late. In a V all are equal. */
static void fill_in_flight(struct partition *partition, enum weft_partition_kind kind) {
  const struct weft_shape *shape = partition->shape;
  const double share = kind == WEFT_PARTITION_FULL ? 1 : kind == WEFT_PARTITION_HALF ? 0.5 : 0;
  for (uint32_t r = 0; r < shape->ranks; r++) {
    const double usual = shape->placement == WEFT_PLACEMENT_V && shape->stages_per_rank > 1
                             ? (shape->ranks + 1) / 2.0
                             : shape->ranks - r;
    partition->in_flight[r] = fmax(1, share * fmin(usual, shape->microbatches));
  }
}

enum weft_status weft_partition_make(const struct weft_allocator *allocator,
                                     const struct weft_search_request *request,
                                     const struct weft_shape *shape, enum weft_partition_kind kind,
                                     struct weft_search_control *control, uint32_t *first,
                                     struct weft_error *error) {
  assert(request->costs->part_count > 0 && first != NULL);
  struct partition partition = {
      .control = control,
      .shape = shape,
      .factors = request->rank_factors,
      .part_count = request->costs->part_count,
      .stage_count = shape->ranks * shape->stages_per_rank,
      .limit = kind >= WEFT_PARTITION_FULL ? request->memory_limit : INFINITY};
  const uint32_t ranks = shape->ranks, parts = partition.part_count;
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  partition.first = first;
  partition.has_to_fit = kind == WEFT_PARTITION_SINGLE;
  partition.work = weft_arena_allocate(&arena, parts, sizeof(double));
  partition.held = weft_arena_allocate(&arena, parts, sizeof(double));
  partition.kept = weft_arena_allocate(&arena, parts, sizeof(double));
  partition.in_flight = weft_arena_allocate(&arena, ranks, sizeof(double));
  partition.load = weft_arena_allocate(&arena, ranks, sizeof(double));
  partition.memory = weft_arena_allocate(&arena, ranks, sizeof(double));
  partition.best = weft_arena_allocate(&arena, (size_t)partition.stage_count + 1, sizeof(uint32_t));
  WEFT_TRY(weft_arena_status(&arena, error));
  fill_parts(&partition, request);
  fill_in_flight(&partition, kind);
  WEFT_TRY(weft_balanced_partition(allocator, partition.work, parts, partition.stage_count, first,
                                   error));
  arrange(&partition, kind);
  return WEFT_OK;
}
