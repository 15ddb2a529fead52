/* Cutting parts into stages so that ranks have equal work, and room in their memory.
 *
 * With one stage on each rank the cut of least heaviest stage is known (weft_parts_cut()).
 * With several, ranks have the sum of theirs, and stages that belong together lie apart in the
 * row. So the cut of stages is only the beginning: then single borders, pairs of them, and all
 * borders from one to another are moved by one part as long as that makes the heaviest rank
 * lighter, or equally heavy and the others more equal; and again, after some borders were
 * moved at random, always the same way. Where memory is short, what ranks have over the limit counts before time.
 *
 * How many microbatches a rank will hold is known only when there is an order. So there are
 * partitions for several answers to that, and the search tries them. */
#include "plan/layout/partition.h"

#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

/* Pairs of borders are as many as the square of the stages; so they, and beginning again, are
 * left out where that takes long. */
enum {
  THOROUGH_STAGES_MAX = 16,
  KICKS_STAGES_MAX = 32,
  PAIRS_STAGES_MAX = 64,
  PASSES_MAX = 100,
  KICKS = 160 /* divided by the stages */
};

struct partition {
  const struct weft_allocator *allocator;
  const struct weft_shape *shape;
  uint32_t part_count, stage_count;
  double limit;
  double *work;      /* [part_count] of a microbatch */
  double *held;      /* [part_count] by a microbatch, at most at any time */
  double *kept;      /* [part_count] all the time */
  double *in_flight; /* [ranks] microbatches to have room for */
  double *load;      /* [ranks] sums of the work ... */
  double *memory;    /* [ranks] ... and of the memory of a rank's parts */
  uint32_t *first;   /* [stage_count + 1] */
  uint32_t *best;    /* [stage_count + 1] so far, while others are tried */
};

/* ---- What is measured ---- */

/* Smaller is better: first what is over the limit, then the heaviest, then squares. */
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

/* One part more, or less, on a stage. */
static void put(struct partition *partition, uint32_t stage, uint32_t part, double sign) {
  const uint32_t rank = weft_shape_rank_of(partition->shape, stage);
  partition->load[rank] += sign * partition->work[part];
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

/* ---- Moving borders ---- */

/* Border b is where stage b begins. Up: its first part goes to the stage before it. */
static bool move(struct partition *partition, uint32_t border, bool up) {
  uint32_t *first = partition->first;
  const uint32_t giver = up ? border : border - 1, taker = up ? border - 1 : border;
  if (first[giver + 1] - first[giver] < 2) {
    return false;
  }
  const uint32_t part = up ? first[border] : first[border] - 1;
  put(partition, giver, part, -1);
  put(partition, taker, part, 1);
  first[border] = up ? first[border] + 1 : first[border] - 1;
  return true;
}

/* Keeps a move if it helps. Sums are added up again only when moves are kept: what going to and
 * fro leaves in the last digits is less than what counts as better. */
static bool try_move(struct partition *partition, struct score *best, uint32_t border, bool up) {
  if (!move(partition, border, up)) {
    return false;
  }
  const struct score score = score_of(partition);
  if (is_better(&score, best)) {
    *best = score;
    return true;
  }
  (void)move(partition, border, !up);
  return false;
}

/* Whether giving a part away makes the heaviest lighter, or brings one below the limit. With
 * few stages moves are tried that only make others more equal, too. */
static bool is_critical(const struct partition *partition, const struct score *best,
                        uint32_t stage) {
  const uint32_t rank = weft_shape_rank_of(partition->shape, stage);
  return partition->stage_count <= THOROUGH_STAGES_MAX ||
         !is_less(partition->load[rank], best->heaviest) ||
         partition->memory[rank] > partition->limit;
}

static bool try_pair(struct partition *partition, struct score *best, uint32_t border,
                     uint32_t other, unsigned ways) {
  const bool up = (ways & 1) != 0, other_up = (ways & 2) != 0;
  if (!is_critical(partition, best, up ? border : border - 1) &&
      !is_critical(partition, best, other_up ? other : other - 1)) {
    return false;
  }
  if (!move(partition, border, up)) {
    return false;
  }
  if (try_move(partition, best, other, other_up)) {
    return true;
  }
  (void)move(partition, border, !up);
  return false;
}

static bool improve_singles(struct partition *partition, struct score *best) {
  bool improved = false;
  for (uint32_t border = 1; border < partition->stage_count; border++) {
    for (unsigned up = 0; up < 2; up++) {
      improved = try_move(partition, best, border, up != 0) || improved;
    }
  }
  return improved;
}

/* All borders from one on: what one stage loses, another one far away gains. Up begins with
 * the first border, down with the last, so that no stage is empty on the way. */
static bool improve_chain(struct partition *partition, struct score *best, uint32_t border,
                          bool up) {
  const uint32_t count = partition->stage_count;
  uint32_t moved = 0, at = border;
  if (!is_critical(partition, best, up ? border : border - 1)) {
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

static bool improve_chains(struct partition *partition, struct score *best) {
  bool improved = false;
  for (uint32_t border = 1; border < partition->stage_count; border++) {
    for (unsigned up = 0; up < 2; up++) {
      improved = improve_chain(partition, best, border, up != 0) || improved;
    }
  }
  return improved;
}

static bool improve_pairs(struct partition *partition, struct score *best) {
  bool improved = false;
  for (uint32_t border = 1; border < partition->stage_count; border++) {
    for (uint32_t other = border + 1; other < partition->stage_count; other++) {
      for (unsigned ways = 0; ways < 4; ways++) {
        improved = try_pair(partition, best, border, other, ways) || improved;
      }
    }
  }
  return improved;
}

static void improve(struct partition *partition) {
  for (unsigned pass = 0; pass < PASSES_MAX; pass++) {
    add_up(partition);
    struct score best = score_of(partition);
    if (!improve_singles(partition, &best) && !improve_chains(partition, &best) &&
        (partition->stage_count > PAIRS_STAGES_MAX || !improve_pairs(partition, &best))) {
      return;
    }
  }
}

/* Moves a few borders at random. */
static void kick(struct partition *partition, struct weft_random *random) {
  const uint32_t moves = 2 + weft_random_below(random, partition->stage_count);
  for (uint32_t n = 0; n < moves; n++) {
    const uint32_t border = 1 + weft_random_below(random, partition->stage_count - 1);
    (void)move(partition, border, weft_random_below(random, 2) == 0);
  }
}

static void improve_again(struct partition *partition) {
  const size_t size = ((size_t)partition->stage_count + 1) * sizeof *partition->first;
  struct weft_random random = {.state = partition->part_count};
  improve(partition);
  if (partition->stage_count < 2 || partition->stage_count > KICKS_STAGES_MAX) {
    return;
  }
  struct score best = score_of(partition);
  for (uint32_t n = 0; n < KICKS / partition->stage_count; n++) {
    memcpy(partition->best, partition->first, size);
    kick(partition, &random);
    improve(partition);
    const struct score score = score_of(partition);
    if (is_better(&score, &best)) {
      best = score;
    } else {
      memcpy(partition->first, partition->best, size);
    }
  }
}

/* ---- Where to begin ---- */

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

/* Each stage takes what it can and leaves one part for each after it. */
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

/* With one stage on each rank and room for it the cut is the best already. */
static void arrange(struct partition *partition, enum weft_partition_kind kind) {
  if (kind == WEFT_PARTITION_LIGHT_LAST) {
    fill_from_front(partition, heaviest_stage(partition));
  } else if (kind == WEFT_PARTITION_LIGHT_FIRST) {
    fill_from_back(partition, heaviest_stage(partition));
  }
  if (partition->shape->stages_per_rank > 1 || kind >= WEFT_PARTITION_FULL) {
    improve_again(partition);
  }
}

/* ---- The parts' numbers ---- */

static double known(double size) { return fmax(0, size); }

static void fill_parts(struct partition *partition, const struct weft_search_request *request) {
  for (uint32_t k = 0; k < partition->part_count; k++) {
    const struct weft_part_costs *part = &request->costs->parts[k];
    partition->work[k] = part->f + part->i + part->w;
    partition->held[k] = known(fmax(part->activation, part->activation_after_i));
    partition->kept[k] = known(part->parameters) + known(part->gradients);
  }
}

/* As 1F1B has them: more on the ranks whose gradients come late. In a V all are alike. */
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

static bool allocate(struct partition *partition) {
  const struct weft_allocator *allocator = partition->allocator;
  const uint32_t parts = partition->part_count, ranks = partition->shape->ranks;
  partition->work = weft_array_allocate(allocator, parts, sizeof(double));
  partition->held = weft_array_allocate(allocator, parts, sizeof(double));
  partition->kept = weft_array_allocate(allocator, parts, sizeof(double));
  partition->in_flight = weft_array_allocate(allocator, ranks, sizeof(double));
  partition->load = weft_array_allocate(allocator, ranks, sizeof(double));
  partition->memory = weft_array_allocate(allocator, ranks, sizeof(double));
  partition->best =
      weft_array_allocate(allocator, (size_t)partition->stage_count + 1, sizeof(uint32_t));
  return partition->work != NULL && partition->held != NULL && partition->kept != NULL &&
         partition->in_flight != NULL && partition->load != NULL && partition->memory != NULL &&
         partition->best != NULL;
}

static void release(struct partition *partition) {
  const struct weft_allocator *allocator = partition->allocator;
  const uint32_t parts = partition->part_count, ranks = partition->shape->ranks;
  weft_array_free(allocator, partition->work, parts, sizeof(double));
  weft_array_free(allocator, partition->held, parts, sizeof(double));
  weft_array_free(allocator, partition->kept, parts, sizeof(double));
  weft_array_free(allocator, partition->in_flight, ranks, sizeof(double));
  weft_array_free(allocator, partition->load, ranks, sizeof(double));
  weft_array_free(allocator, partition->memory, ranks, sizeof(double));
  weft_array_free(allocator, partition->best, (size_t)partition->stage_count + 1, sizeof(uint32_t));
}

static enum weft_status fill(struct partition *partition, const struct weft_search_request *request,
                             enum weft_partition_kind kind, struct weft_error *error) {
  fill_parts(partition, request);
  fill_in_flight(partition, kind);
  WEFT_TRY(weft_parts_cut(partition->allocator, partition->work, partition->part_count,
                          partition->stage_count, partition->first, error));
  arrange(partition, kind);
  return WEFT_OK;
}

enum weft_status weft_partition_make(const struct weft_allocator *allocator,
                                     const struct weft_search_request *request,
                                     const struct weft_shape *shape, enum weft_partition_kind kind,
                                     uint32_t *first, struct weft_error *error) {
  struct partition partition = {
      .allocator = allocator,
      .shape = shape,
      .part_count = request->costs->part_count,
      .stage_count = shape->ranks * shape->stages_per_rank,
      .limit = kind >= WEFT_PARTITION_FULL ? request->memory_limit : INFINITY};
  partition.first = first;
  const enum weft_status status =
      allocate(&partition) ? fill(&partition, request, kind, error)
                           : weft_fail_memory(error, partition.part_count * sizeof *partition.work);
  release(&partition);
  return status;
}
