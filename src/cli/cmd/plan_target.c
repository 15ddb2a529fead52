/* Flags for torchtitan, and lines of code for PyTorch itself. torchtitan (as of its pull request
 * 4121, August 2026) runs a CSV file by PyTorch's _PipelineScheduleRuntime whatever the name of
 * the schedule; the name decides how many stages a rank has and where they are: V for
 * ZBVZeroBubble, with two stages per rank; one stage for PipelineScheduleSingle; else a loop. */
#include "cli/cmd/plan_target.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/lower.h>

#include "cli/io/code_quotes.h"
#include "cli/io/error_message.h"

enum { FLAGS_MAX = 8, NOTES_MAX = 8, NOTE_SIZE = 256, NUMBER_SIZE = 12 };

/* What a target needs, before it is formatted. */
struct needs {
  struct flag {
    const char *name;
    const char *value; /* NULL: none */
  } flags[FLAGS_MAX];
  char degree[NUMBER_SIZE], microbatches[NUMBER_SIZE];
  unsigned flag_count;
  char notes[NOTES_MAX][NOTE_SIZE];
  unsigned note_count;
};

static void add_flag(struct needs *needs, const char *name, const char *value) {
  needs->flags[needs->flag_count++] = (struct flag){name, value};
}

/* Room for the next note. */
static char *next_note(struct needs *needs) { return needs->notes[needs->note_count++]; }

/* ---- What the table is like ---- */

static bool splits_backward(const struct weft_program *table) {
  for (uint64_t k = 0; k < table->action_count; k++) {
    if (table->actions[k].op == WEFT_OP_I) {
      return true;
    }
  }
  return false;
}

static const char *schedule_of(const struct weft_search_answer *answer) {
  if (answer->stages_per_rank == 1) {
    return "PipelineScheduleSingle";
  }
  return answer->placement == WEFT_PLACEMENT_V ? "ZBVZeroBubble" : "PipelineScheduleMulti";
}

static void note_stages(struct needs *needs, const struct weft_search_answer *answer) {
  const uint32_t p = answer->table->rank_count, v = answer->stages_per_rank;
  if (v == 1) {
    (void)snprintf(next_note(needs), NOTE_SIZE, "rank r has stage r");
  } else if (answer->placement == WEFT_PLACEMENT_V) {
    (void)snprintf(next_note(needs), NOTE_SIZE, "rank r has stages r and %" PRIu32 " - r%s",
                   2 * p - 1, v > 2 ? ", and so on, to and fro" : "");
  } else {
    (void)snprintf(next_note(needs), NOTE_SIZE, "rank r has stages r and r + %" PRIu32 "%s", p,
                   v > 2 ? ", and so on" : "");
  }
}

static void note_compile(struct needs *needs, const struct weft_search_answer *answer) {
  if (splits_backward(answer->table)) {
    (void)snprintf(
        next_note(needs), NOTE_SIZE,
        "the table splits backwards into I and W, which PyTorch cannot do with what "
        "torch.compile has compiled (torchtitan issue 3584): leave compiling off, or plan "
        "with --no-split");
  }
}

/* ---- Targets ---- */

/* The flags point into *needs. */
static void need_torchtitan(struct needs *needs, const struct weft_cli_target *target,
                            const struct weft_search_answer *answer) {
  const uint32_t m = answer->table->microbatch_count, v = answer->stages_per_rank;
  (void)snprintf(needs->degree, NUMBER_SIZE, "%" PRIu32, answer->table->rank_count);
  (void)snprintf(needs->microbatches, NUMBER_SIZE, "%" PRIu32, m);
  add_flag(needs, "--parallelism.pipeline_parallel_degree", needs->degree);
  add_flag(needs, "--parallelism.pipeline_parallel_schedule", schedule_of(answer));
  add_flag(needs, "--parallelism.pipeline_parallel_schedule_csv", target->file);
  add_flag(needs, "--parallelism.num_pp_microbatches", needs->microbatches);
  add_flag(needs, "--training.disable_cuda_graphs", NULL);
  (void)snprintf(next_note(needs), NOTE_SIZE,
                 "with a CSV file the name %s decides only where stages are; the order is the "
                 "file's",
                 schedule_of(answer));
  note_stages(needs, answer);
  (void)snprintf(next_note(needs), NOTE_SIZE,
                 "num_pp_microbatches must stay %" PRIu32 ": the table has %" PRIu32
                 " microbatch%s; --training.num_tokens_per_microbatch_per_dp_rank sets the size "
                 "of one",
                 m, m, m == 1 ? "" : "es");
  (void)snprintf(next_note(needs), NOTE_SIZE,
                 "torchtitan captures CUDA graphs by default, which do not support pipelines");
  if (v > 2) {
    (void)snprintf(next_note(needs), NOTE_SIZE,
                   "torchtitan makes 2 stages per rank by default: set "
                   "--parallelism.pipeline_parallel_layers_per_stage so that %" PRIu32
                   " stages come out, or module_fqns_per_model_part with as many lists",
                   answer->table->stage_count);
  }
  note_compile(needs, answer);
}

static void need_pytorch(struct needs *needs, const struct weft_search_answer *answer) {
  note_stages(needs, answer);
  note_compile(needs, answer);
}

static void find_needs(struct needs *needs, const struct weft_cli_target *target,
                       const struct weft_search_answer *answer) {
  *needs = (struct needs){.flag_count = 0};
  if (target->kind == WEFT_CLI_TARGET_TORCHTITAN) {
    need_torchtitan(needs, target, answer);
  } else {
    need_pytorch(needs, answer);
  }
}

int weft_cli_target_check(const struct weft_cli *cli, const struct weft_cli_target *target,
                          const struct weft_search_answer *answer) {
  if (target->kind == WEFT_CLI_TARGET_TORCHTITAN && answer->placement == WEFT_PLACEMENT_V &&
      answer->stages_per_rank > 2) {
    weft_cli_print(cli, "plan with -v 2, or with --placement loop; PyTorch itself can run it",
                   "torchtitan has no V with %" PRIu32 " stages per rank, which is the best plan",
                   answer->stages_per_rank);
    return WEFT_CLI_FOUND_BAD;
  }
  return WEFT_CLI_OK;
}

int weft_cli_target_table(const struct weft_cli *cli, const struct weft_program *table,
                          struct weft_program **out) {
  struct weft_error error;
  return weft_cli_result(cli, NULL, weft_table_for_pytorch(cli->allocator, table, out, &error),
                         &error);
}

/* ---- Text ---- */

static void add_flags(struct weft_text *text, const struct needs *needs) {
  for (unsigned k = 0; k < needs->flag_count; k++) {
    const struct flag *flag = &needs->flags[k];
    weft_text_addf(text, "  %s", flag->name);
    if (flag->value != NULL) {
      weft_text_add(text, " ");
      weft_cli_add_shell_word(text, flag->value);
    }
    weft_text_add(text, k + 1 < needs->flag_count ? " \\\n" : "\n");
  }
}

/* Which layers make a stage, by torchtitan's names for them. */
static void add_modules(struct weft_text *text, const struct weft_search_answer *answer) {
  uint32_t parts = 0, part = 0;
  for (uint32_t s = 0; s < answer->table->stage_count; s++) {
    parts += answer->stage_parts[s];
  }
  weft_text_add(
      text,
      "In its configuration (parallelism), if the first part is the embedding, the last one "
      "norm and\nlm_head, and those between are layers:\n\n  module_fqns_per_model_part = [");
  for (uint32_t s = 0; s < answer->table->stage_count; s++) {
    weft_text_add(text, s > 0 ? ",\n    [" : "\n    [");
    for (uint32_t k = 0; k < answer->stage_parts[s]; k++, part++) {
      weft_text_add(text, k > 0 ? ", " : "");
      if (part == 0) {
        weft_text_add(text, "\"tok_embeddings\"");
      } else if (part + 1 == parts) {
        weft_text_add(text, "\"norm\", \"lm_head\"");
      } else {
        weft_text_addf(text, "\"layers.%" PRIu32 "\"", part - 1);
      }
    }
    weft_text_add(text, "]");
  }
  weft_text_add(text, "]\n\n");
}

static void add_code(struct weft_text *text, const struct weft_cli_target *target,
                     const struct weft_search_answer *answer) {
  weft_text_addf(text,
                 "  from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime\n"
                 "  runtime = _PipelineScheduleRuntime(stages, n_microbatches=%" PRIu32
                 ", loss_fn=loss_fn)\n  runtime._load_csv(",
                 answer->table->microbatch_count);
  weft_cli_add_python_string(text, target->file);
  weft_text_add(text, ", format=\"compute_only\")\n");
}

void weft_cli_target_add(struct weft_text *text, const struct weft_cli_target *target,
                         const struct weft_search_answer *answer) {
  struct needs needs;
  find_needs(&needs, target, answer);
  if (target->kind == WEFT_CLI_TARGET_TORCHTITAN) {
    weft_text_add(text, "For torchtitan:\n\n");
    add_flags(text, &needs);
  } else {
    weft_text_add(text, "For PyTorch, on each rank, with its own stages:\n\n");
    add_code(text, target, answer);
  }
  weft_text_add(text, "\n");
  if (target->kind == WEFT_CLI_TARGET_TORCHTITAN && answer->stage_parts != NULL) {
    add_modules(text, answer);
  }
  for (unsigned k = 0; k < needs.note_count; k++) {
    weft_text_addf(text, "- %s\n", needs.notes[k]);
  }
}

/* ---- JSON ---- */

void weft_cli_target_add_member(struct weft_json *json, const struct weft_cli_target *target,
                                const struct weft_search_answer *answer) {
  struct needs needs;
  find_needs(&needs, target, answer);
  weft_json_open(json, "run_with", '{');
  weft_json_string(json, "target",
                   target->kind == WEFT_CLI_TARGET_TORCHTITAN ? "torchtitan" : "pytorch");
  weft_json_open(json, "flags", '[');
  for (unsigned k = 0; k < needs.flag_count; k++) {
    weft_json_string(json, NULL, needs.flags[k].name);
    if (needs.flags[k].value != NULL) {
      weft_json_string(json, NULL, needs.flags[k].value);
    }
  }
  weft_json_close(json, ']');
  weft_json_open(json, "notes", '[');
  for (unsigned k = 0; k < needs.note_count; k++) {
    weft_json_string(json, NULL, needs.notes[k]);
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}
