/* The report about a target: flags for a shell, lines of code, settings, and notes. */
#include "cli/report/target_report.h"

#include <assert.h>
#include <string.h>

#include "cli/io/error_message.h"

/* ---- Text ---- */

static void add_flags(struct weft_text *text, const struct weft_target *target) {
  for (uint32_t k = 0; k < target->flag_count; k++) {
    const struct weft_target_flag *flag = &target->flags[k];
    weft_text_addf(text, "  %s", flag->name);
    if (flag->value != NULL) {
      weft_text_add(text, " ");
      weft_cli_add_shell_word(text, flag->value);
    }
    weft_text_add(text, k + 1 < target->flag_count ? " \\\n" : "\n");
  }
}

static void add_code(struct weft_text *text, const char *code) {
  for (size_t size; *code != '\0'; code += size) {
    size = strcspn(code, "\n") + 1;
    weft_text_add(text, "  ");
    weft_text_append(text, code, size);
  }
}

/* Which layers make a stage, by torchtitan's names for them. */
static void add_modules(struct weft_text *text, const struct weft_target *target) {
  weft_text_add(
      text,
      "In its configuration (parallelism), if the first part is the embedding, the last one "
      "norm and\nlm_head, and those between are layers:\n\n  module_fqns_per_model_part = [");
  const char **module = target->modules;
  for (uint32_t s = 0; s < target->stage_count; s++) {
    weft_text_add(text, s > 0 ? ",\n    [" : "\n    [");
    for (uint32_t k = 0; k < target->stage_modules[s]; k++, module++) {
      struct weft_json string = {.text = text}; /* which Python and TOML read, too */
      weft_text_add(text, k > 0 ? ", " : "");
      weft_json_string(&string, NULL, *module);
    }
    weft_text_add(text, "]");
  }
  weft_text_add(text, "]\n\n");
}

void weft_cli_target_text(struct weft_text *text, enum weft_target_kind kind,
                          const struct weft_target *target) {
  static const char *const heads[WEFT_TARGETS] = {
      [WEFT_TARGET_TORCHTITAN] = "For torchtitan:\n\n",
      [WEFT_TARGET_PYTORCH] = "For PyTorch, on each rank, with its own stages:\n\n",
      [WEFT_TARGET_MEGATRON] = "For Megatron-LM:\n\n"};
  assert(text != NULL && target != NULL);
  weft_text_add(text, heads[kind]);
  add_flags(text, target);
  add_code(text, target->code != NULL ? target->code : "");
  weft_text_add(text, "\n");
  if (target->modules != NULL) {
    add_modules(text, target);
  }
  for (uint32_t k = 0; k < target->note_count; k++) {
    weft_text_addf(text, "- %s\n", target->notes[k]);
  }
}

/* ---- JSON ---- */

static void add_module_lists(struct weft_json *json, const struct weft_target *target) {
  const char **module = target->modules;
  weft_json_open(json, "module_fqns_per_model_part", '[');
  for (uint32_t s = 0; s < target->stage_count; s++) {
    weft_json_open(json, NULL, '[');
    for (uint32_t k = 0; k < target->stage_modules[s]; k++) {
      weft_json_string(json, NULL, *module++);
    }
    weft_json_close(json, ']');
  }
  weft_json_close(json, ']');
}

void weft_cli_target_json(struct weft_json *json, enum weft_target_kind kind,
                          const struct weft_target *target) {
  assert(json != NULL && target != NULL);
  weft_json_open(json, "run_with", '{');
  weft_json_string(json, "target", weft_target_name(kind));
  weft_json_open(json, "flags", '[');
  for (uint32_t k = 0; k < target->flag_count; k++) {
    weft_json_string(json, NULL, target->flags[k].name);
    if (target->flags[k].value != NULL) {
      weft_json_string(json, NULL, target->flags[k].value);
    }
  }
  weft_json_close(json, ']');
  weft_json_open(json, "notes", '[');
  for (uint32_t k = 0; k < target->note_count; k++) {
    weft_json_string(json, NULL, target->notes[k]);
  }
  weft_json_close(json, ']');
  if (target->modules != NULL) {
    add_module_lists(json, target);
  }
  if (target->code != NULL) {
    weft_json_string(json, "code", target->code);
  }
  if (target->layout != NULL) {
    weft_json_string(json, "layout", target->layout);
  }
  weft_json_close(json, '}');
}
