/* The registry: the list of schedules, look-up by name, and weft_generate(),
 * which checks a shape against limits before it allocates anything. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "gen/generator.h"
#include "ir/program.h"

WEFT_SCOPED_TYPE(weft_program)

static const struct weft_generator *const generators[] = {
#define WEFT_GENERATOR(name) &weft_generator_##name,
#include "gen/generators.def"
#undef WEFT_GENERATOR
};

enum { GENERATOR_COUNT = sizeof generators / sizeof generators[0] };

size_t weft_schedule_count(void) { return GENERATOR_COUNT; }

const struct weft_schedule_info *weft_schedule_at(size_t index) {
  return index < GENERATOR_COUNT ? &generators[index]->info : NULL;
}

/* ---- Names ---- */

enum { NAME_MAX = 48, NAMES_MAX = 4 };

/* What others call them, folded; PyTorch's class names are found without their "Schedule". And
 * published schedules that are not here, each with what to do instead. */
static const struct {
  const char *name;
  const struct weft_generator *generator;
  const char *hint;
} aliases[] = {
    {"afab", &weft_generator_gpipe, NULL}, /* all forward, all backward */
    {"filldrain", &weft_generator_gpipe, NULL},
    {"pipedreamflush", &weft_generator_1f1b, NULL},
    {"dapple", &weft_generator_1f1b, NULL},
    {"bfs", &weft_generator_looped_bfs, NULL},
    {"breadthfirst", &weft_generator_looped_bfs, NULL},
    {"1f1binterleaved", &weft_generator_interleaved_1f1b, NULL},
    {"vpp", &weft_generator_interleaved_1f1b, NULL}, /* Megatron-LM's virtual pipeline */
    {"zb1p", &weft_generator_zbh1, NULL},            /* zero bubble with the memory of 1F1B */
    {"zbv", &weft_generator_zbv, NULL},
    {"vhalf", NULL,
     "it is not here by name; search for a plan on a V placement with a memory limit"},
    {"vmin", NULL,
     "it is not here by name; search for a plan on a V placement with a memory limit"},
    {"hanayo", NULL, "it is not here by name; search for a plan on a V placement"},
    {"zbh2", NULL,
     "it is not here by name; search for a plan, which may use more memory than ZBH1"},
    {"chimera", NULL,
     "it keeps two copies of the model, as no schedule here does; a plan on a V "
     "placement is the nearest"},
    {"dualpipe", NULL,
     "it keeps two copies of the model, as no schedule here does; 'DualPipeV' is the "
     "half of it that needs one"},
};

/* The part of a name that counts: letters in lower case and digits. */
static size_t fold(const char *name, char *folded, size_t size) {
  size_t used = 0;
  for (; *name != '\0' && used + 1 < size; name++) {
    const char c = *name;
    if (c >= 'A' && c <= 'Z') {
      folded[used++] = (char)(c - 'A' + 'a');
    } else if (c != '-' && c != '_' && c != ' ') {
      folded[used++] = c;
    }
  }
  folded[used] = '\0';
  return used;
}

/* All names, those of the generators first: the k-th one folded, or NULL after the last that has one. */
static const struct weft_generator *name_at(size_t k, char *folded) {
  if (k < GENERATOR_COUNT) {
    (void)fold(generators[k]->info.name, folded, NAME_MAX);
    return generators[k];
  }
  k -= GENERATOR_COUNT;
  if (k >= sizeof aliases / sizeof aliases[0] || aliases[k].generator == NULL) {
    return NULL;
  }
  (void)fold(aliases[k].name, folded, NAME_MAX);
  return aliases[k].generator;
}

static const struct weft_generator *find_folded(const char *folded) {
  char known[NAME_MAX];
  const struct weft_generator *generator;
  for (size_t k = 0; (generator = name_at(k, known)) != NULL; k++) {
    if (strcmp(folded, known) == 0) {
      return generator;
    }
  }
  return NULL;
}

/* ---- Suggestions: a wrong one is worse than none ---- */

static bool begins_like(const char *wanted, const char *known) {
  return strlen(wanted) >= 2 && strncmp(wanted, known, strlen(wanted)) == 0;
}

static bool is_part(const char *wanted, const char *known) {
  return strlen(wanted) >= 3 && strstr(known, wanted) != NULL;
}

static bool has_as_part(const char *wanted, const char *known) { return is_part(known, wanted); }

static bool is_near(const char *wanted, const char *known) {
  const size_t size = strlen(wanted);
  return weft_name_distance(wanted, size, known, strlen(known)) <= size / 3;
}

/* The schedules with a name that is like the wanted one. */
static unsigned find_like(const char *wanted, bool (*is_like)(const char *, const char *),
                          const char *found[NAMES_MAX]) {
  unsigned count = 0;
  char known[NAME_MAX];
  const struct weft_generator *generator;
  for (size_t k = 0; (generator = name_at(k, known)) != NULL; k++) {
    bool is_new = count < NAMES_MAX;
    for (unsigned j = 0; j < count; j++) {
      is_new = is_new && found[j] != generator->info.name;
    }
    if (is_new && is_like(wanted, known)) {
      found[count++] = generator->info.name;
    }
  }
  return count;
}

static void suggest(const char *wanted, char *hint, size_t size) {
  const char *found[NAMES_MAX];
  unsigned count = find_like(wanted, begins_like, found);
  count = count > 0 ? count : find_like(wanted, is_part, found);
  count = count > 0 ? count : find_like(wanted, is_near, found);
  count = count > 0 ? count : find_like(wanted, has_as_part, found);
  size_t used = (size_t)snprintf(hint, size, "%s", count > 0 ? "did you mean " : "");
  for (unsigned k = 0; k < count; k++) {
    used += (size_t)snprintf(hint + used, size - used, "%s'%s'%s",
                             k == 0          ? ""
                             : k + 1 < count ? ", "
                                             : " or ",
                             found[k], k + 1 == count ? "?" : "");
  }
}

static const struct weft_generator *find_generator(const char *name, struct weft_error *error) {
  static const char prefix[] = "schedule";
  char folded[NAME_MAX], shown[NAME_MAX], hint[192] = "";
  (void)fold(name, folded, sizeof folded);
  const size_t skipped = strncmp(folded, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
  const char *wanted = folded + skipped;
  const struct weft_generator *generator = find_folded(wanted);
  if (generator != NULL) {
    return generator;
  }
  suggest(wanted, hint, sizeof hint);
  for (size_t k = 0; k < sizeof aliases / sizeof aliases[0]; k++) {
    if (aliases[k].hint != NULL && strcmp(wanted, aliases[k].name) == 0) {
      (void)snprintf(hint, sizeof hint, "%s", aliases[k].hint);
    }
  }
  (void)weft_fail(error, WEFT_ERR_USAGE, hint, "unknown schedule '%s'",
                  weft_escape(shown, sizeof shown, name, strlen(name)));
  return NULL;
}

const struct weft_schedule_info *weft_schedule_find(const char *name, struct weft_error *error) {
  assert(name != NULL);
  const struct weft_generator *generator = find_generator(name, error);
  return generator != NULL ? &generator->info : NULL;
}

/* ---- Shapes ---- */

static enum weft_status check_positive(const struct weft_shape *shape, struct weft_error *error) {
  if (shape->ranks == 0 || shape->microbatches == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give at least one rank and one microbatch",
                     "%" PRIu32 " ranks and %" PRIu32 " microbatches: nothing to schedule",
                     shape->ranks, shape->microbatches);
  }
  return WEFT_OK;
}

static enum weft_status check_stages_per_rank(const struct weft_schedule_info *info, uint32_t v,
                                              struct weft_error *error) {
  char hint[128];
  if (v >= info->stages_per_rank_min && v <= info->stages_per_rank_max) {
    return WEFT_OK;
  }
  const uint32_t nearest =
      v < info->stages_per_rank_min ? info->stages_per_rank_min : info->stages_per_rank_max;
  (void)snprintf(hint, sizeof hint, "use v = %" PRIu32, nearest);
  if (info->stages_per_rank_min == info->stages_per_rank_max) {
    return weft_fail(error, WEFT_ERR_USAGE, hint,
                     "%s has %" PRIu32 " stage%s per rank; v = %" PRIu32 " was asked for",
                     info->name, nearest, nearest == 1 ? "" : "s", v);
  }
  return weft_fail(error, WEFT_ERR_USAGE, hint,
                   "%s needs at least %" PRIu32 " stages per rank; v = %" PRIu32 " was asked for",
                   info->name, info->stages_per_rank_min, v);
}

static enum weft_status check_size(const struct weft_generator *generator,
                                   const struct weft_shape *shape, struct weft_error *error) {
  const double cells = generator->cells(shape);
  const uint64_t stages = (uint64_t)shape->ranks * shape->stages_per_rank;
  if (cells > (double)WEFT_ACTIONS_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "use fewer ranks or microbatches",
                     "%s for p = %" PRIu32 ", v = %" PRIu32 ", m = %" PRIu32
                     " has %.0f actions; the limit is %" PRIu64,
                     generator->info.name, shape->ranks, shape->stages_per_rank,
                     shape->microbatches, cells, WEFT_ACTIONS_MAX);
  }
  if (stages > WEFT_STAGES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "use fewer ranks or stages per rank",
                     "%" PRIu64 " stages (about %.0f actions); the limit is %" PRIu32 " stages",
                     stages, cells, WEFT_STAGES_MAX);
  }
  if (shape->microbatches > WEFT_MICROBATCHES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "use fewer microbatches",
                     "%" PRIu32 " microbatches (about %.0f actions); the limit is %" PRIu32
                     " microbatches",
                     shape->microbatches, cells, WEFT_MICROBATCHES_MAX);
  }
  return WEFT_OK;
}

static enum weft_status check_shape(const struct weft_generator *generator,
                                    const struct weft_shape *shape, struct weft_error *error) {
  WEFT_TRY(check_positive(shape, error));
  WEFT_TRY(check_stages_per_rank(&generator->info, shape->stages_per_rank, error));
  WEFT_TRY(check_size(generator, shape, error));
  return generator->check != NULL ? generator->check(shape, error) : WEFT_OK;
}

/* ---- Generation ---- */

static enum weft_status generate_rows(const struct weft_allocator *allocator,
                                      const struct weft_generator *generator,
                                      const struct weft_shape *shape, struct weft_program **out,
                                      struct weft_error *error) {
  struct weft_program_builder builder;
  weft_program_builder_init(&builder, allocator, (uint64_t)generator->cells(shape), shape->ranks);
  for (uint32_t r = 0; r < shape->ranks && builder.status == WEFT_OK; r++) {
    generator->row(shape, r, &builder);
    weft_program_builder_end_row(&builder);
  }
  if (generator->finish == NULL) {
    return weft_program_builder_finish(&builder, NULL, out, error);
  }
  WEFT_SCOPED(weft_program) table = NULL;
  WEFT_TRY(weft_program_builder_finish(&builder, NULL, &table, error));
  assert(weft_program_is_sound(table) && table->rank_count == shape->ranks);
  return generator->finish(shape, table, out, error);
}

/* A fixed table serves one shape; fields left 0 are not compared. */
static enum weft_status generate_fixed(const struct weft_allocator *allocator,
                                       const struct weft_generator *generator,
                                       const struct weft_shape *shape, struct weft_program **out,
                                       struct weft_error *error) {
  struct weft_program *table;
  WEFT_TRY(weft_program_parse(allocator, generator->csv, strlen(generator->csv),
                              generator->info.name, &table, error));
  const uint32_t p = table->rank_count, m = table->microbatch_count;
  if ((shape->ranks != 0 && shape->ranks != p) ||
      (shape->microbatches != 0 && shape->microbatches != m)) {
    weft_program_destroy(table);
    return weft_fail(error, WEFT_ERR_USAGE, "leave the shape out: there is one",
                     "%s is a fixed table of %" PRIu32 " ranks and %" PRIu32
                     " microbatch%s; p = %" PRIu32 ", m = %" PRIu32 " was asked for",
                     generator->info.name, p, m, m == 1 ? "" : "es", shape->ranks,
                     shape->microbatches);
  }
  *out = table;
  return WEFT_OK;
}

enum weft_status weft_generate(const struct weft_allocator *allocator, const char *name,
                               const struct weft_shape *shape, struct weft_program **out,
                               struct weft_error *error) {
  WEFT_NEED(name, error);
  WEFT_NEED(shape, error);
  WEFT_NEED(out, error);
  const struct weft_generator *generator = find_generator(name, error);
  if (generator == NULL) {
    return WEFT_ERR_USAGE;
  }
  if (shape->graph != NULL) {
    return weft_generate_graph(allocator, &generator->info, shape, out, error);
  }
  if (generator->csv != NULL) {
    return generate_fixed(allocator, generator, shape, out, error);
  }
  struct weft_shape full = *shape;
  if (full.stages_per_rank == 0) {
    full.stages_per_rank = generator->info.stages_per_rank_default;
  }
  if (generator->info.trains) { /* evaluation runs at the placement of the training */
    full.placement = generator->info.placement;
  }
  WEFT_TRY(check_shape(generator, &full, error));
  return generate_rows(allocator, generator, &full, out, error);
}

void weft_row_put_oldest_w(struct weft_program_builder *row, uint64_t *next_i) {
  assert(*next_i <= row->count);
  while (*next_i < row->count && row->actions[*next_i].op != WEFT_OP_I) {
    ++*next_i;
  }
  if (*next_i < row->count) { /* it is not only after the builder ran out of memory */
    const struct weft_action input = row->actions[(*next_i)++];
    weft_program_builder_put(row, WEFT_OP_W, input.stage, input.microbatch);
  }
}

/* ---- Closed forms that several schedules share ---- */

double weft_bubble_full_backward(const struct weft_shape *shape,
                                 const struct weft_unit_costs *costs) {
  const double p = shape->ranks, v = shape->stages_per_rank, m = shape->microbatches;
  const double late = m < p ? (v - 1) * (p - m) : 0;
  return (p - 1 + late) * (costs->f + costs->i + costs->w);
}

double weft_peak_of_1f1b(const struct weft_shape *shape) {
  return weft_min_u32(shape->microbatches, shape->ranks);
}
