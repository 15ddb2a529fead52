/* What other frameworks need. torchtitan (as of its pull request 4121, August 2026) runs a CSV file by
 * PyTorch's _PipelineScheduleRuntime whatever the name of the schedule; the name decides how many
 * stages a rank has and where they are: V for ZBVZeroBubble, with two stages per rank; one stage for
 * PipelineScheduleSingle; else a loop. Megatron-LM takes a layout of layers, whose stage i is on rank
 * i mod p, and runs an order of its own. */
#include <weft/target.h>

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <weft/lower.h>
#include <weft/spec.h>
#include <weft/support.h>

#include "base/plain_text.h"
#include "ir/action.h"
#include "ir/program.h"

enum { FLAGS_MAX = 8, NOTES_MAX = 8, SENTENCE_SIZE = 512 };

/* The target and the arena that owns what it points at. */
struct owned_target {
  struct weft_target target;
  struct weft_arena arena;
};

struct targeting {
  const struct weft_target_request *request;
  struct weft_target *target;
  struct weft_arena *arena;
  struct weft_error *error;
  uint32_t ranks, stages, stages_per_rank;
  enum weft_placement_kind placement;
  uint64_t parts; /* of all stages; 0: the model is not partitioned */
};

const char *weft_target_name(enum weft_target_kind kind) {
  static const char *const names[WEFT_TARGETS] = {"torchtitan", "pytorch", "megatron"};
  assert((unsigned)kind < WEFT_TARGETS);
  return names[kind];
}

/* ---- Text ---- */

/* Owned by the arena, whose status tells whether there was memory; "" then. */
static const char *keep(struct targeting *targeting, const char *text, size_t size) {
  const char *copy = weft_arena_copy_text(targeting->arena, text, size);
  return copy != NULL ? copy : "";
}

static void add_note(struct targeting *targeting, const char *format, ...) WEFT_PRINTF(2, 3);
static void add_note(struct targeting *targeting, const char *format, ...) {
  char sentence[SENTENCE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  assert(targeting->target->note_count < NOTES_MAX);
  targeting->target->notes[targeting->target->note_count++] =
      keep(targeting, sentence, strlen(sentence));
}

/* `value` lives as long as the target; NULL: none. */
static struct weft_target_flag *add_flag(struct targeting *targeting, const char *name,
                                         const char *value) {
  assert(targeting->target->flag_count < FLAGS_MAX);
  struct weft_target_flag *flag = &targeting->target->flags[targeting->target->flag_count++];
  *flag = (struct weft_target_flag){.name = name, .value = value};
  return flag;
}

static void add_number(struct targeting *targeting, const char *name, uint64_t number) {
  char text[24];
  const int size = snprintf(text, sizeof text, "%" PRIu64, number);
  add_flag(targeting, name, keep(targeting, text, (size_t)size))->is_number = true;
}

/* In double quotes. Bytes that are no UTF-8 are as os.fsdecode() has them, and a terminal must not
 * obey what is quoted. */
static void add_python_string(struct weft_text *text, const char *string) {
  weft_text_add(text, "\"");
  for (size_t left = strlen(string), length; left > 0; string += length, left -= length) {
    const unsigned char byte = (unsigned char)*string;
    length = weft_plain_length(string, left);
    if (byte == '"' || byte == '\\') {
      weft_text_add(text, "\\");
    }
    if (length > 0) {
      weft_text_append(text, string, length);
    } else {
      weft_text_addf(text, byte < 0x80 ? "\\x%02x" : "\\udc%02x", byte);
      length = 1;
    }
  }
  weft_text_add(text, "\"");
}

/* ---- The table and the partition ---- */

static enum weft_status check_table(struct targeting *targeting) {
  const struct weft_target_request *request = targeting->request;
  const struct weft_program *table = request->table;
  const char *name = weft_target_name(request->kind);
  if (!weft_graph_is_chain(table->graph)) {
    return weft_fail(targeting->error, WEFT_ERR_INVALID, "Weft's own runtime runs graphs of stages",
                     "the stages form a graph; %s has chains of stages", name);
  }
  if (table->rank_count == 0 || table->stage_count == 0) {
    return weft_fail(targeting->error, WEFT_ERR_USAGE, "", "the table has no stages");
  }
  uint32_t *rank_of = weft_arena_allocate(targeting->arena, table->stage_count, sizeof *rank_of);
  WEFT_TRY(weft_arena_status(targeting->arena, targeting->error));
  targeting->ranks = table->rank_count;
  targeting->stages = table->stage_count;
  targeting->placement = weft_placement_infer(table, rank_of);
  return WEFT_OK;
}

static enum weft_status check_stages(struct targeting *targeting) {
  const uint32_t p = targeting->ranks, stages = targeting->stages;
  if (p == 0 || stages == 0 || stages % p != 0) {
    return weft_fail(targeting->error, WEFT_ERR_USAGE, "every rank has as many stages there",
                     "%" PRIu32 " stages are not the same number on each of %" PRIu32 " ranks",
                     stages, p);
  }
  targeting->stages_per_rank = stages / p;
  return WEFT_OK;
}

static enum weft_status check_parts(struct targeting *targeting) {
  const struct weft_target_request *request = targeting->request;
  uint64_t parts = 0;
  for (uint32_t s = 0; request->stage_parts != NULL && s < targeting->stages; s++) {
    parts += request->stage_parts[s];
  }
  if (parts > WEFT_STAGES_MAX) {
    return weft_fail(targeting->error, WEFT_ERR_LIMIT, "",
                     "the model has %" PRIu64 " parts; the limit is %u", parts,
                     (unsigned)WEFT_STAGES_MAX);
  }
  if (request->part_names != NULL && parts != request->part_count) {
    return weft_fail(
        targeting->error, WEFT_ERR_USAGE, "name the parts of the costs, in their order",
        "the plan has %" PRIu64 " parts, but %" PRIu32 " are named", parts, request->part_count);
  }
  targeting->parts = parts;
  return WEFT_OK;
}

/* What a part is called where nobody says; the only one is all of them. */
static const char *usual_name(const struct targeting *targeting, uint64_t part, const char *first,
                              const char *last, const char *only) {
  const uint64_t end = targeting->parts - 1;
  return end == 0 ? only : part == 0 ? first : part == end ? last : NULL;
}

/* ---- PyTorch ---- */

static void note_stages(struct targeting *targeting) {
  const uint32_t p = targeting->ranks, v = targeting->stages_per_rank;
  if (targeting->placement == WEFT_PLACEMENT_INFERRED) {
    add_note(targeting, "each rank has the stages of its row");
  } else if (v == 1) {
    add_note(targeting, "rank r has stage r");
  } else if (targeting->placement == WEFT_PLACEMENT_V) {
    add_note(targeting, "rank r has stages r and %" PRIu32 " - r%s", 2 * p - 1,
             v > 2 ? ", and so on, to and fro" : "");
  } else {
    add_note(targeting, "rank r has stages r and r + %" PRIu32 "%s", p, v > 2 ? ", and so on" : "");
  }
}

static void note_compile(struct targeting *targeting) {
  if (weft_program_has(targeting->request->table, WEFT_OP_BIT(WEFT_OP_I))) {
    add_note(targeting,
             "the table splits backwards into I and W, which PyTorch cannot do with what "
             "torch.compile has compiled (torchtitan issue 3584): leave compiling off, or plan "
             "without splitting them");
  }
}

static enum weft_status take_table(struct targeting *targeting) {
  return weft_table_for_pytorch(targeting->arena->allocator, targeting->request->table,
                                &targeting->target->table, targeting->error);
}

static enum weft_status need_pytorch(struct targeting *targeting) {
  const struct weft_program *table = targeting->request->table;
  WEFT_SCOPED_TEXT code = {.allocator = targeting->arena->allocator};
  WEFT_TRY(take_table(targeting));
  weft_text_addf(&code,
                 "from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime\n"
                 "runtime = _PipelineScheduleRuntime(stages, n_microbatches=%" PRIu32
                 ", loss_fn=loss_fn)\nruntime._load_csv(",
                 table->microbatch_count);
  add_python_string(&code, targeting->request->file);
  weft_text_add(&code, ", format=\"compute_only\")\n");
  WEFT_TRY(weft_text_status(&code, targeting->error));
  targeting->target->code = keep(targeting, code.data, code.size);
  assert(targeting->ranks > 0);
  targeting->stages_per_rank = targeting->stages / targeting->ranks;
  note_stages(targeting);
  note_compile(targeting);
  return WEFT_OK;
}

/* ---- torchtitan ---- */

static enum weft_status check_placement(struct targeting *targeting) {
  const uint32_t v = targeting->stages_per_rank;
  static const char hint[] =
      "plan with 2 stages per rank, or with placement loop; PyTorch itself can run it";
  if (targeting->placement == WEFT_PLACEMENT_V && v > 2) {
    return weft_fail(targeting->error, WEFT_ERR_INVALID, hint,
                     "torchtitan has no V with %" PRIu32 " stages per rank", v);
  }
  return targeting->placement != WEFT_PLACEMENT_INFERRED
             ? WEFT_OK
             : weft_fail(targeting->error, WEFT_ERR_INVALID, hint,
                         "the stages of the table are placed neither as a loop nor as a V, and "
                         "torchtitan has no other placement");
}

static const char *schedule_of(const struct targeting *targeting) {
  if (targeting->stages_per_rank == 1) {
    return "PipelineScheduleSingle";
  }
  return targeting->placement == WEFT_PLACEMENT_V ? "ZBVZeroBubble" : "PipelineScheduleMulti";
}

/* Its modules, with "+" between several. */
static const char *modules_of(struct targeting *targeting, uint64_t part) {
  if (targeting->request->part_names != NULL) {
    return targeting->request->part_names[part];
  }
  char layer[32];
  const char *usual =
      usual_name(targeting, part, "tok_embeddings", "norm+lm_head", "tok_embeddings+norm+lm_head");
  if (usual != NULL) {
    return usual;
  }
  const int size = snprintf(layer, sizeof layer, "layers.%" PRIu64, part - 1);
  return keep(targeting, layer, (size_t)size);
}

static uint32_t count_modules(const char *names) {
  uint32_t count = 1;
  for (; *names != '\0'; names++) {
    count += *names == '+';
  }
  return count;
}

static enum weft_status list_modules(struct targeting *targeting) {
  struct weft_target *target = targeting->target;
  uint32_t count = 0;
  const char **names = weft_arena_allocate(targeting->arena, targeting->parts, sizeof *names);
  target->stage_modules =
      weft_arena_allocate(targeting->arena, targeting->stages, sizeof *target->stage_modules);
  WEFT_TRY(weft_arena_status(targeting->arena, targeting->error));
  for (uint64_t part = 0; part < targeting->parts; part++) {
    names[part] = modules_of(targeting, part);
    count += count_modules(names[part]);
  }
  target->modules = weft_arena_allocate(targeting->arena, count, sizeof *target->modules);
  WEFT_TRY(weft_arena_status(targeting->arena, targeting->error));
  target->stage_count = targeting->stages;
  uint32_t at = 0;
  for (uint32_t s = 0, part = 0; s < targeting->stages; s++) {
    const uint32_t first = at;
    for (uint32_t k = 0; k < targeting->request->stage_parts[s]; k++, part++) {
      for (const char *name = names[part]; name != NULL;) {
        const size_t size = strcspn(name, "+");
        target->modules[at++] = keep(targeting, name, size);
        name = name[size] == '+' ? name + size + 1 : NULL;
      }
    }
    target->stage_modules[s] = at - first;
  }
  assert(at == count);
  return weft_arena_status(targeting->arena, targeting->error);
}

static enum weft_status need_torchtitan(struct targeting *targeting) {
  const struct weft_target_request *request = targeting->request;
  WEFT_TRY(check_stages(targeting));
  WEFT_TRY(check_placement(targeting));
  WEFT_TRY(check_parts(targeting));
  WEFT_TRY(take_table(targeting));
  const uint32_t m = request->table->microbatch_count;
  const char *schedule = schedule_of(targeting);
  add_number(targeting, "--parallelism.pipeline_parallel_degree", targeting->ranks);
  add_flag(targeting, "--parallelism.pipeline_parallel_schedule", schedule);
  add_flag(targeting, "--parallelism.pipeline_parallel_schedule_csv",
           keep(targeting, request->file, strlen(request->file)));
  add_number(targeting, "--parallelism.num_pp_microbatches", m);
  add_flag(targeting, "--training.disable_cuda_graphs", NULL);
  if (request->tokens_per_microbatch > 0) {
    add_number(targeting, "--training.num_tokens_per_microbatch_per_dp_rank",
               request->tokens_per_microbatch);
  }
  add_note(targeting,
           "with a CSV file the name %s decides only where stages are; the order is the file's",
           schedule);
  note_stages(targeting);
  add_note(targeting,
           "num_pp_microbatches must stay %" PRIu32 ": the table has %" PRIu32
           " microbatch%s; --training.num_tokens_per_microbatch_per_dp_rank sets the size of one",
           m, m, m == 1 ? "" : "es");
  add_note(targeting, "torchtitan captures CUDA graphs by default, which do not support pipelines");
  if (targeting->stages_per_rank > 2) {
    add_note(targeting,
             "torchtitan makes 2 stages per rank by default: set "
             "--parallelism.pipeline_parallel_layers_per_stage so that %" PRIu32
             " stages come out, or module_fqns_per_model_part with as many lists",
             targeting->stages);
  }
  note_compile(targeting);
  return targeting->parts > 0 ? list_modules(targeting) : WEFT_OK;
}

/* ---- Megatron-LM ---- */

static const char *letter_of(const struct targeting *targeting, uint64_t part) {
  if (targeting->request->part_names != NULL) {
    return targeting->request->part_names[part];
  }
  const char *usual = usual_name(targeting, part, "E", "L", "EL");
  return usual != NULL ? usual : "t";
}

static enum weft_status write_layout(struct targeting *targeting) {
  WEFT_SCOPED_TEXT layout = {.allocator = targeting->arena->allocator};
  for (uint32_t s = 0, part = 0; s < targeting->stages; s++) {
    weft_text_add(&layout, s > 0 ? "|" : "");
    for (uint32_t k = 0; k < targeting->request->stage_parts[s]; k++, part++) {
      const char *letter = letter_of(targeting, part);
      if (letter[0] == '\0' || letter[strspn(letter, "EtmL")] != '\0') {
        char name[64];
        return weft_fail(targeting->error, WEFT_ERR_USAGE,
                         "E is the embedding, t a layer, m an MTP layer, L the loss",
                         "part %" PRIu32 " is called '%s'; expected E, t, m or L", part,
                         weft_escape(name, sizeof name, letter, strlen(letter)));
      }
      weft_text_add(&layout, letter);
    }
  }
  WEFT_TRY(weft_text_status(&layout, targeting->error));
  targeting->target->layout = keep(targeting, layout.data, layout.size);
  return WEFT_OK;
}

static enum weft_status need_megatron(struct targeting *targeting) {
  if (targeting->request->stage_parts == NULL) {
    return weft_fail(targeting->error, WEFT_ERR_USAGE, "give costs with parts",
                     "Megatron-LM takes the layout of the layers, and the plan does not partition "
                     "the model");
  }
  WEFT_TRY(check_stages(targeting));
  if (targeting->placement != WEFT_PLACEMENT_LOOP) {
    return weft_fail(targeting->error, WEFT_ERR_INVALID, "plan with placement loop",
                     "Megatron-LM places stages in a loop, and the plan %s",
                     targeting->placement == WEFT_PLACEMENT_V ? "is a V" : "has another placement");
  }
  WEFT_TRY(check_parts(targeting));
  if (targeting->parts == 0) {
    return weft_fail(targeting->error, WEFT_ERR_USAGE, "give costs with parts",
                     "the model has no parts");
  }
  WEFT_TRY(write_layout(targeting));
  add_number(targeting, "--pipeline-model-parallel-size", targeting->ranks);
  add_flag(targeting, "--pipeline-model-parallel-layout", targeting->target->layout);
  if (targeting->stages_per_rank > 1) {
    add_number(targeting, "--microbatch-group-size-per-virtual-pipeline-stage", targeting->ranks);
  }
  note_stages(targeting);
  add_note(targeting,
           "Megatron-LM takes the partition of the layers; its order of actions is its own");
  return WEFT_OK;
}

/* ---- The target ---- */

static enum weft_status find_needs(struct targeting *targeting) {
  const struct weft_target_request *request = targeting->request;
  struct weft_target *target = targeting->target;
  target->flags = weft_arena_allocate(targeting->arena, FLAGS_MAX, sizeof *target->flags);
  target->notes = weft_arena_allocate(targeting->arena, NOTES_MAX, sizeof *target->notes);
  WEFT_TRY(weft_arena_status(targeting->arena, targeting->error));
  if (request->table != NULL) {
    WEFT_TRY(check_table(targeting));
  } else {
    targeting->ranks = request->ranks;
    targeting->stages = request->stage_count;
  }
  enum weft_status status;
  switch (request->kind) {
    case WEFT_TARGET_TORCHTITAN: status = need_torchtitan(targeting); break;
    case WEFT_TARGET_PYTORCH: status = need_pytorch(targeting); break;
    default: status = need_megatron(targeting);
  }
  WEFT_TRY(status);
  return weft_arena_status(targeting->arena, targeting->error);
}

enum weft_status weft_target(const struct weft_allocator *allocator,
                             const struct weft_target_request *request, struct weft_target **out,
                             struct weft_error *error) {
  WEFT_NEED(request, error);
  WEFT_NEED(out, error);
  assert((unsigned)request->kind < WEFT_TARGETS);
  if (request->kind != WEFT_TARGET_MEGATRON) {
    WEFT_NEED(request->table, error);
    WEFT_NEED(request->file, error);
  }
  struct owned_target *owned = weft_array_allocate_zero(allocator, 1, sizeof *owned);
  if (owned == NULL) {
    return weft_fail_memory(error, sizeof *owned);
  }
  owned->arena.allocator = allocator;
  struct targeting targeting = {
      .request = request, .target = &owned->target, .arena = &owned->arena, .error = error};
  const enum weft_status status = find_needs(&targeting);
  if (status != WEFT_OK) {
    weft_target_destroy(&owned->target);
    return status;
  }
  *out = &owned->target;
  return WEFT_OK;
}

void weft_target_destroy(struct weft_target *target) {
  if (target == NULL) {
    return;
  }
  struct owned_target *owned = (struct owned_target *)target; /* its first member */
  struct weft_arena arena = owned->arena;
  weft_program_destroy(target->table);
  weft_array_free(arena.allocator, owned, 1, sizeof *owned);
  weft_arena_finish(&arena);
}
