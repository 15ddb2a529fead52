/* Chooses among pipelines and numbers of replicas. Each candidate is bounded first, for all its
 * partitions; then weft_search() plans the candidates in the order of their bounds by constructors,
 * the best eight of them with a little work, then four, two, and the best one with the rest. A
 * candidate whose bound is not below the best value is left out. */
#include <weft/choice.h>

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "plan/layout/layout.h"
#include "plan/layout/partition.h"
#include "plan/problem/problem.h"

/* Share of the work that goes into choosing among the best few candidates. */
#define CHOOSING 0.5
enum { FINALISTS = 8 };

/* The largest share of the time that is left for the constructors of one candidate. */
#define CONSTRUCTING 0.2

/* Bounds of partitions are rounded down by this share. */
#define SLACK 2e-9

enum { CANDIDATES_MAX = 1024 };

struct candidate {
  struct weft_choice_candidate is;
  struct weft_costs costs; /* of the request, or with an entry of a stage of this candidate */
  double *factors;         /* [is.ranks] of the slowest replica, or NULL */
  bool replicas_differ;    /* no replica is as slow as that: the bound is not the search's */
  bool is_finished;        /* a search can do nothing more for it */
};

struct choosing {
  const struct weft_allocator *allocator;
  const struct weft_choice_request *request;
  const struct weft_stage_source *source;
  struct weft_arena arena;
  struct candidate *list; /* [count] of CANDIDATES_MAX */
  uint32_t count;
  double best; /* value */
  int64_t begin_ns;
  double done, share; /* of the work: complete, and running */
  bool stopped;
  uint64_t evaluated;
};

/* ---- Candidates ---- */

static double *factors_of(struct choosing *choosing, struct candidate *candidate) {
  const uint32_t p = candidate->is.ranks, d = candidate->is.replicas;
  const double *all = choosing->request->search.rank_factors;
  double *factors;
  if (!WEFT_ALLOCATE(&choosing->arena, factors, p)) {
    return NULL;
  }
  memcpy(factors, all, p * sizeof *factors);
  for (uint32_t rank = p; rank < p * d; rank++) {
    factors[rank % p] = fmax(factors[rank % p], all[rank]);
  }
  candidate->replicas_differ = true;
  for (uint32_t k = 0; k < d; k++) {
    candidate->replicas_differ = candidate->replicas_differ &&
                                 memcmp(factors, all + (size_t)k * p, p * sizeof *factors) != 0;
  }
  return factors;
}

static enum weft_status add_candidate(struct choosing *choosing, const struct weft_shape *shape,
                                      struct weft_error *error) {
  const struct weft_search_request *search = &choosing->request->search;
  assert(choosing->count < CANDIDATES_MAX);
  struct candidate *candidate = &choosing->list[choosing->count];
  *candidate = (struct candidate){.is = {.ranks = shape->ranks,
                                         .replicas = search->ranks / shape->ranks,
                                         .microbatches = shape->microbatches,
                                         .stages_per_rank = shape->stages_per_rank,
                                         .placement = shape->placement,
                                         .value = INFINITY},
                                  .costs = *search->costs};
  if (search->costs->stage_count == 1 && choosing->source->divides_model) {
    if (!WEFT_ALLOCATE(&choosing->arena, candidate->costs.stages, 1)) {
      return weft_fail_memory(error, sizeof *candidate->costs.stages);
    }
    *candidate->costs.stages = weft_stage_costs_divide(
        &search->costs->stages[0], (double)shape->ranks * shape->stages_per_rank);
  }
  candidate->costs.of = WEFT_COSTS_OF_STAGE; /* the model is the same for any number of ranks */
  if (search->rank_factors != NULL) {
    candidate->factors = factors_of(choosing, candidate);
    if (candidate->factors == NULL) {
      return weft_fail_memory(error, shape->ranks * sizeof *candidate->factors);
    }
  }
  choosing->count++;
  return WEFT_OK;
}

/* All divisors of the ranks whose replicas can divide the batch. */
static enum weft_status list_candidates(struct choosing *choosing, struct weft_error *error) {
  const struct weft_search_request *search = &choosing->request->search;
  const uint64_t size = search->costs->microbatch_size > 0
                            ? (uint64_t)search->costs->microbatch_size
                            : 1; /* a whole number */
  for (uint32_t p = 1; p <= search->ranks; p++) {
    const uint64_t share = size * (search->ranks / p), m = choosing->request->global_batch / share;
    if (search->ranks % p != 0 || choosing->request->global_batch % share != 0 || m == 0 ||
        m > WEFT_MICROBATCHES_MAX) {
      continue;
    }
    struct weft_search_request own = *search;
    struct weft_shape shapes[WEFT_PLAN_SHAPES_MAX];
    own.ranks = p;
    own.microbatches = (uint32_t)m;
    own.keep_partition = false;
    const uint32_t count = choosing->source->list_shapes(&own, search->stages_per_rank, shapes);
    for (uint32_t n = 0; n < count; n++) {
      /* One rank has nothing to wait for: more stages do not help. */
      const bool helps = p > 1 || search->stages_per_rank > 0 || n == 0;
      WEFT_TRY(helps ? add_candidate(choosing, &shapes[n], error) : WEFT_OK);
    }
  }
  return WEFT_OK;
}

static enum weft_status check_request(const struct weft_choice_request *request,
                                      struct weft_error *error) {
  const struct weft_search_request *search = &request->search;
  const uint32_t stages = weft_graph_stage_count(search->graph);
  WEFT_TRY(
      weft_costs_check(search->costs, stages > 0 ? stages : search->costs->stage_count, error));
  if (search->ranks == 0 || request->global_batch == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give each of them at least 1",
                     "%" PRIu32 " ranks and a global batch of %" PRIu64 " make no pipeline",
                     search->ranks, request->global_batch);
  }
  if (search->ranks > WEFT_RANKS_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "plan for fewer ranks",
                     "%" PRIu32 " ranks; the limit is %" PRIu32, search->ranks, WEFT_RANKS_MAX);
  }
  WEFT_TRY(weft_plan_check_factors(search, error));
  if (search->rank_of != NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "leave one of them out",
                     "the ranks of a pipeline are to be chosen, and those of its stages are given");
  }
  if (weft_stage_source_of(search)->count_pieces(search) == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give costs with parts, one for each layer",
                     "the costs have no parts: the choice of the ranks of a pipeline needs to know "
                     "what can be divided");
  }
  return WEFT_OK;
}

static enum weft_status fail_none(const struct choosing *choosing, struct weft_error *error) {
  assert(choosing->count == 0);
  const struct weft_search_request *search = &choosing->request->search;
  const struct weft_stage_source *source = choosing->source;
  return weft_fail(
      error, WEFT_ERR_USAGE, "choose a batch that the replicas can divide, or other ranks",
      "no pipeline divides %" PRIu32 " ranks, %" PRIu32 " %s and a global batch of %" PRIu64
      " in microbatches of %g%s%s: ranks x replicas = %" PRIu32
      ", every %s, and every replica has the same number of microbatches",
      search->ranks, source->count_pieces(search), source->pieces, choosing->request->global_batch,
      fmax(1, search->costs->microbatch_size),
      search->any_placement ? "" : ", with equally many stages on each rank, as in a ",
      search->any_placement ? "" : weft_placement_name(search->placement), search->ranks,
      source->rule);
}

/* ---- Bounds ---- */

/* Else the search finds a placement. */
static bool is_placed(const struct candidate *candidate) {
  return candidate->is.placement != WEFT_PLACEMENT_INFERRED;
}

static struct weft_search_request request_of(const struct choosing *choosing,
                                             const struct candidate *candidate) {
  struct weft_search_request request = choosing->request->search;
  request.ranks = candidate->is.ranks;
  request.replicas = candidate->is.replicas;
  request.microbatches = candidate->is.microbatches;
  request.stages_per_rank = candidate->is.stages_per_rank;
  if (is_placed(candidate)) {
    request.any_placement = false;
    request.placement = candidate->is.placement;
  }
  request.keep_partition = request.keep_partition && !choosing->source->divides_model;
  request.costs = &candidate->costs;
  request.rank_factors = candidate->factors;
  return request;
}

/* The slowest replica decides. */
static enum weft_status bound(const struct choosing *choosing, struct candidate *candidate,
                              struct weft_error *error) {
  struct weft_search_request request = request_of(choosing, candidate);
  for (uint32_t d = 0; d < (candidate->replicas_differ ? candidate->is.replicas : 1); d++) {
    double own = 0;
    if (candidate->replicas_differ) {
      request.rank_factors =
          choosing->request->search.rank_factors + (size_t)d * candidate->is.ranks;
    }
    WEFT_TRY(weft_plan_open_bound(choosing->allocator, &request, &own, error));
    candidate->is.bound = fmax(candidate->is.bound, own);
  }
  return WEFT_OK;
}

/* Candidates that are too large for a search are left out. WEFT_ERR_LIMIT: all are. */
static enum weft_status bound_all(struct choosing *choosing, struct weft_error *error) {
  struct weft_error own;
  enum weft_status status = WEFT_OK;
  uint32_t kept = 0;
  for (uint32_t n = 0; n < choosing->count; n++) {
    status = bound(choosing, &choosing->list[n], &own);
    if (status == WEFT_OK) {
      choosing->list[kept++] = choosing->list[n];
    } else if (status != WEFT_ERR_LIMIT) {
      break;
    }
  }
  if (status != WEFT_OK && (status != WEFT_ERR_LIMIT || kept == 0)) {
    if (error != NULL) {
      *error = own;
    }
    return status;
  }
  choosing->count = kept;
  return WEFT_OK;
}

/* ---- Searches ---- */

static double time_left(const struct choosing *choosing) {
  const double limit = choosing->request->search.time_limit;
  const double seconds = (double)(weft_clock_ns() - choosing->begin_ns) * 1e-9;
  return limit > 0 ? limit - seconds : INFINITY;
}

static double bound_of_all(const struct choosing *choosing) {
  double least = choosing->best;
  for (uint32_t n = 0; n < choosing->count; n++) {
    least = fmin(least, choosing->list[n].is.bound);
  }
  return least;
}

static bool stop(void *context) {
  struct choosing *choosing = context;
  const struct weft_search_request *search = &choosing->request->search;
  choosing->stopped = choosing->stopped || (search->stop != NULL && search->stop(search->context));
  return choosing->stopped;
}

static void report(void *context, const struct weft_search_progress *at) {
  const struct choosing *choosing = context;
  const struct weft_search_request *search = &choosing->request->search;
  struct weft_search_progress progress = {.value = fmin(choosing->best, at->value),
                                          .bound = bound_of_all(choosing),
                                          .done = choosing->done + choosing->share * at->done,
                                          .evaluated = choosing->evaluated + at->evaluated};
  if (search->report != NULL) {
    search->report(search->context, &progress);
  }
}

/* Seconds of a typical core, for each op, that a plan by constructors takes at least. */
#define PLAN_SECONDS 4e-7

/* Whether a share of the time that is left may do for a plan. */
static bool is_affordable(const struct choosing *choosing, const struct candidate *candidate,
                          double share) {
  const struct weft_choice_candidate *is = &candidate->is;
  const double ops = 3.0 * is->ranks * is->stages_per_rank * is->microbatches;
  return PLAN_SECONDS * ops < share * time_left(choosing);
}

static bool is_open(const struct choosing *choosing, const struct candidate *candidate) {
  return !candidate->is_finished && candidate->is.bound * (1 + SLACK) < choosing->best;
}

static void take_answer(struct choosing *choosing, struct candidate *candidate,
                        struct weft_search_answer *answer) {
  const double value =
      (answer->objective == WEFT_OBJECTIVE_SPAN ? answer->span : answer->makespan) +
      answer->all_reduce;
  choosing->evaluated += answer->evaluated;
  if (!candidate->replicas_differ) {
    candidate->is.bound = fmax(candidate->is.bound, answer->open_bound);
  }
  if (value < candidate->is.value) {
    weft_search_answer_destroy(candidate->is.answer);
    candidate->is.answer = answer;
    candidate->is.value = value;
    choosing->best = fmin(choosing->best, value);
  } else {
    weft_search_answer_destroy(answer);
  }
}

/* With a share of the work, or all the time that is left. */
static enum weft_status plan_candidate(struct choosing *choosing, struct candidate *candidate,
                                       double share, double seconds, struct weft_error *error) {
  struct weft_search_request request = request_of(choosing, candidate);
  struct weft_search_answer *answer;
  struct weft_error own;
  request.effort *= share;
  if (request.time_limit > 0) {
    request.time_limit = fmax(1e-3, fmin(seconds, time_left(choosing)));
    request.use_time = request.use_time && share > 0;
  }
  request.stop = stop;
  request.report = report;
  request.context = choosing;
  choosing->share = share;
  const enum weft_status status = weft_search(choosing->allocator, &request, &answer, &own);
  choosing->done = fmin(1, choosing->done + share);
  if (status == WEFT_OK) {
    take_answer(choosing, candidate, answer);
    return WEFT_OK;
  }
  if (status == WEFT_ERR_INVALID) { /* no partition that was tried fits into the memory */
    candidate->is_finished = true;
    return WEFT_OK;
  }
  if (error != NULL) {
    *error = own;
  }
  return status;
}

/* By value, then by bound. */
static int compare_candidates(const void *a, const void *b) {
  const struct weft_choice_candidate *one = &((const struct candidate *)a)->is;
  const struct weft_choice_candidate *other = &((const struct candidate *)b)->is;
  const double keys[][2] = {{one->value, other->value},
                            {one->bound, other->bound},
                            {one->ranks, other->ranks},
                            {one->stages_per_rank, other->stages_per_rank},
                            {one->placement, other->placement}};
  size_t k = 0;
  while (k + 1 < WEFT_ARRAY_LENGTH(keys) && keys[k][0] == keys[k][1]) {
    k++;
  }
  return (keys[k][0] > keys[k][1]) - (keys[k][0] < keys[k][1]);
}

static void sort(struct choosing *choosing) {
  qsort(choosing->list, choosing->count, sizeof *choosing->list, compare_candidates);
}

/* Plans up to `most` open candidates, the best first, with a share of the work and of the time for
 * each; without a share by constructors alone. A search that does not use its time, although it
 * should, has nothing left to do. */
static enum weft_status plan_some(struct choosing *choosing, uint32_t most, double share,
                                  double seconds, bool to_the_end, struct weft_error *error) {
  sort(choosing);
  for (uint32_t n = 0; n < choosing->count && most > 0; n++) {
    struct candidate *candidate = &choosing->list[n];
    if (choosing->best < INFINITY && (choosing->stopped || time_left(choosing) <= 0)) {
      break;
    }
    if (is_open(choosing, candidate) && is_affordable(choosing, candidate, 1)) {
      WEFT_TRY(plan_candidate(choosing, candidate, share, seconds, error));
      candidate->is_finished = candidate->is_finished || to_the_end;
      most--;
    }
  }
  return WEFT_OK;
}

/* All that there is time for get the constructors, those with one stage per rank first: they take
 * little time, and their bounds are close. The last round is for those left out, as long as there is
 * no plan at all. */
static enum weft_status construct_all(struct choosing *choosing, struct weft_error *error) {
  sort(choosing);
  for (unsigned round = 0; round < 3; round++) {
    for (uint32_t n = 0; n < choosing->count; n++) {
      struct candidate *candidate = &choosing->list[n];
      if (choosing->best < INFINITY &&
          (round == 2 || choosing->stopped || time_left(choosing) <= 0)) {
        break;
      }
      if (is_open(choosing, candidate) &&
          (round == 2 || ((candidate->is.stages_per_rank > 1) == (round == 1) &&
                          is_affordable(choosing, candidate, CONSTRUCTING)))) {
        WEFT_TRY(plan_candidate(choosing, candidate, 0, INFINITY, error));
      }
    }
  }
  return WEFT_OK;
}

/* First by constructors; then half as many candidates share as much work in each round. */
static enum weft_status plan_all(struct choosing *choosing, struct weft_error *error) {
  WEFT_TRY(construct_all(choosing, error));
  const double left = time_left(choosing);
  for (uint32_t most = FINALISTS; most > 1; most /= 2) {
    const double share = CHOOSING / log2(FINALISTS) / most;
    WEFT_TRY(plan_some(choosing, most, share, share * left, false, error));
    choosing->done = (log2(FINALISTS) - log2(most) + 1) / log2(FINALISTS) * CHOOSING;
  }
  /* One gets the rest; the next one only if that one has left time. */
  const bool use_time = choosing->request->search.use_time;
  return plan_some(choosing, use_time ? choosing->count : 1, 1 - CHOOSING, INFINITY, true, error);
}

/* ---- The result ---- */

static enum weft_status explain_memory(const struct choosing *choosing, struct weft_error *error) {
  static const char hint[] = "give more memory, or use more ranks";
  const struct weft_search_request *search = &choosing->request->search;
  struct weft_memory_need need = {.least = INFINITY, .enough = INFINITY};
  const struct candidate *where = NULL;
  for (uint32_t n = 0; n < choosing->count; n++) {
    struct weft_search_request request = request_of(choosing, &choosing->list[n]);
    struct weft_memory_need own;
    request.time_limit = request.time_limit > 0 ? fmax(1e-3, time_left(choosing)) : 0;
    WEFT_TRY(weft_search_least_memory(choosing->allocator, &request, &own, error));
    need.least = fmin(need.least, own.least);
    if (own.enough < need.enough) {
      need.enough = own.enough;
      where = &choosing->list[n];
    }
  }
  assert(where != NULL);
  char pipeline[96], stages[48] = "";
  if (is_placed(where)) {
    (void)snprintf(stages, sizeof stages, " with %" PRIu32 " stage%s on each",
                   where->is.stages_per_rank, where->is.stages_per_rank == 1 ? "" : "s");
  }
  (void)snprintf(pipeline, sizeof pipeline, "a pipeline of %" PRIu32 " rank%s%s", where->is.ranks,
                 where->is.ranks == 1 ? "" : "s", stages);
  const char *tried = is_placed(where) ? "" : " on the placements tried";
  if (need.least == need.enough) {
    return weft_fail(error, WEFT_ERR_INVALID, hint,
                     "no candidate fits into a memory of %.9g per rank%s; the least is %.9g: %s",
                     search->memory_limit, tried, need.least, pipeline);
  }
  return weft_fail(error, WEFT_ERR_INVALID, hint,
                   "no candidate %s into a memory of %.9g per rank%s; %.9g is enough for %s, and "
                   "every one needs at least %.9g",
                   need.least > search->memory_limit ? "fits" : "was found that fits",
                   search->memory_limit, tried, need.enough, pipeline, need.least);
}

static enum weft_status make_choice(struct choosing *choosing, struct weft_choice **out,
                                    struct weft_error *error) {
  struct weft_choice *choice = weft_array_allocate_zero(choosing->allocator, 1, sizeof *choice);
  if (choice == NULL) {
    return weft_fail_memory(error, sizeof *choice);
  }
  choice->allocator = choosing->allocator;
  choice->candidates =
      weft_array_allocate(choosing->allocator, choosing->count, sizeof *choice->candidates);
  if (choice->candidates == NULL) {
    weft_choice_destroy(choice);
    return weft_fail_memory(error, choosing->count * sizeof *choice->candidates);
  }
  sort(choosing);
  choice->count = choosing->count;
  choice->bound = bound_of_all(choosing);
  choice->optimal = choosing->best <= choice->bound * (1 + SLACK);
  choice->stopped = !choice->optimal && (choosing->stopped || time_left(choosing) <= 0);
  choice->evaluated = choosing->evaluated;
  for (uint32_t n = 0; n < choosing->count; n++) {
    choice->candidates[n] = choosing->list[n].is;
    choosing->list[n].is.answer = NULL;
  }
  *out = choice;
  return WEFT_OK;
}

static enum weft_status choose(struct choosing *choosing, struct weft_choice **out,
                               struct weft_error *error) {
  WEFT_TRY(list_candidates(choosing, error));
  if (choosing->count == 0) {
    return fail_none(choosing, error);
  }
  WEFT_TRY(bound_all(choosing, error));
  WEFT_TRY(plan_all(choosing, error));
  return choosing->best == INFINITY ? explain_memory(choosing, error)
                                    : make_choice(choosing, out, error);
}

enum weft_status weft_choose(const struct weft_allocator *allocator,
                             const struct weft_choice_request *request, struct weft_choice **out,
                             struct weft_error *error) {
  WEFT_NEED(request, error);
  WEFT_NEED(request->search.costs, error);
  WEFT_NEED(out, error);
  WEFT_TRY(check_request(request, error));
  struct choosing choosing = {.allocator = allocator,
                              .request = request,
                              .source = weft_stage_source_of(&request->search),
                              .arena = {.allocator = allocator},
                              .best = INFINITY,
                              .begin_ns = (int64_t)weft_clock_ns()};
  enum weft_status status = WEFT_ALLOCATE(&choosing.arena, choosing.list, CANDIDATES_MAX)
                                ? choose(&choosing, out, error)
                                : weft_fail_memory(error, CANDIDATES_MAX * sizeof *choosing.list);
  for (uint32_t n = 0; n < choosing.count; n++) {
    weft_search_answer_destroy(choosing.list[n].is.answer);
  }
  weft_arena_finish(&choosing.arena);
  return status;
}

void weft_choice_destroy(struct weft_choice *choice) {
  if (choice == NULL) {
    return;
  }
  for (uint32_t n = 0; choice->candidates != NULL && n < choice->count; n++) {
    weft_search_answer_destroy(choice->candidates[n].answer);
  }
  weft_array_free(choice->allocator, choice->candidates, choice->count, sizeof *choice->candidates);
  weft_array_free(choice->allocator, choice, 1, sizeof *choice);
}
