/* Which blocks of the model are on which stage (--split): by estimated work, by given numbers, by
 * times that another training has measured, or planned from those of a trial. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/text_columns.h"
#include "cli/scoped.h"
#include "trainer/command/train_setup.h"

#define HINT_PROFILE \
  "'weft train --profile FILE' writes a file for it, and one of another split works too"

/* ---- By given numbers ---- */

/* Reads "3,4,4,1" into blocks[room], and how many there are; false when it is anything
 * else. */
static bool read_counts(const char *text, uint32_t *blocks, uint32_t room, uint32_t *count) {
  for (*count = 0;; (*count)++, text++) {
    char digits[16];
    uint64_t number;
    const size_t size = strcspn(text, ",");
    if (size >= sizeof digits) {
      return false;
    }
    memcpy(digits, text, size);
    digits[size] = '\0';
    if (weft_cli_read_number(digits, &number) != NULL || number > UINT32_MAX) {
      return false;
    }
    if (*count < room) {
      blocks[*count] = (uint32_t)number;
    }
    text += size;
    if (*text == '\0') {
      (*count)++;
      return true;
    }
  }
}

static int split_by_counts(struct weft_train_setup *setup, const char *text) {
  const struct weft_gpt_config *config = &setup->options.training.config;
  uint32_t *blocks = weft_arena_allocate(&setup->arena, setup->stage_count, sizeof *blocks);
  uint32_t count;
  struct weft_error error;
  if (blocks == NULL) {
    return weft_cli_fail_memory(setup->cli);
  }
  setup->split_by = WEFT_TRAIN_SPLIT_GIVEN;
  const struct weft_cli_words quoted = weft_cli_quoted(text);
  if (!read_counts(text, blocks, setup->stage_count, &count)) {
    return weft_cli_usage(setup->cli, "for example: --split 2,4, or --split costs.json",
                          "--split '%s' is not a list of numbers: expected the blocks of each of "
                          "%" PRIu32
                          " stages, with commas between them, or 'even', or a file of "
                          "measured costs",
                          quoted.text, setup->stage_count);
  }
  if (count != setup->stage_count) {
    return weft_cli_usage(setup->cli, "the schedule and -p determine the number of stages",
                          "--split '%s' has %" PRIu32 " number%s, and there %s %" PRIu32 " stage%s",
                          quoted.text, count, weft_cli_plural(count),
                          setup->stage_count == 1 ? "is" : "are", setup->stage_count,
                          weft_cli_plural(setup->stage_count));
  }
  WEFT_CLI_TRY(weft_cli_result(
      setup->cli, NULL, weft_gpt_split_counts(config, blocks, count, setup->first_layers, &error),
      &error));
  return weft_cli_result(setup->cli, NULL,
                         weft_gpt_split_check(config, count, setup->first_layers, &error), &error);
}

/* ---- By measured costs ---- */

static int check_parts(const struct weft_train_setup *setup, const char *path,
                       const struct weft_costs *costs) {
  const uint32_t layers = setup->options.training.config.blocks;
  const uint32_t expected = weft_gpt_layer_count(&setup->options.training.config);
  const struct weft_cli_words quoted = weft_cli_quoted(weft_cli_input_name(path));
  if (costs->part_count == 0) {
    weft_cli_print(
        setup->cli, HINT_PROFILE,
        "'%s' has no times of the model's parts: expected a list 'parts' beside 'stages'",
        quoted.text);
    return WEFT_CLI_MALFORMED;
  }
  return costs->part_count == expected
             ? WEFT_CLI_OK
             : weft_cli_usage(setup->cli, HINT_PROFILE,
                              "'%s' was not measured with such a model: it has times of %" PRIu32
                              " part%s, and the embedding, %" PRIu32
                              " block%s and the head%s are "
                              "%" PRIu32,
                              quoted.text, costs->part_count, weft_cli_plural(costs->part_count),
                              layers, weft_cli_plural(layers),
                              weft_cli_plural(expected - layers - 1), expected);
}

static int split_by_costs(struct weft_train_setup *setup, const char *path) {
  const char *schedule = setup->arguments->texts[WEFT_CLI_OPTION_SCHEDULE];
  WEFT_SCOPED(weft_costs) costs = NULL;
  struct weft_error error;
  if (strcmp(path, "-") == 0 && schedule != NULL && strcmp(schedule, "-") == 0) {
    return weft_cli_usage(setup->cli, "give one of them as a file",
                          "standard input can be read only once: as the schedule or as the costs");
  }
  WEFT_CLI_TRY(weft_cli_read_costs(setup->cli, path, &costs));
  WEFT_CLI_TRY(check_parts(setup, path, costs));
  double *times = weft_arena_allocate(&setup->arena, costs->part_count, sizeof *times);
  if (times == NULL) {
    return weft_cli_fail_memory(setup->cli);
  }
  for (uint32_t p = 0; p < costs->part_count; p++) { /* a microbatch's forward and backward */
    times[p] = costs->parts[p].f + costs->parts[p].i + costs->parts[p].w;
  }
  setup->split_by = WEFT_TRAIN_SPLIT_MEASURED;
  return weft_cli_result(setup->cli, NULL,
                         weft_gpt_split(setup->cli->allocator, &setup->options.training.config,
                                        times, setup->stage_count, setup->first_layers, &error),
                         &error);
}

/* ---- By the planner ---- */

/* A trial of so many steps is for trainings of at least so many times as many. The first step is
 * a warm-up. */
enum { TRIAL_STEPS = 4, TRIALS_MIN = 5 };

/* On mpi the ranks have one world, which has one pipeline. The planner splits chains only. */
static bool is_worth_a_trial(const struct weft_train_setup *setup) {
  const struct weft_gpt_training *training = &setup->options.training;
  const bool chain = !training->config.skips && weft_gpt_head_count(&training->config) == 1;
  return setup->options.tunes && chain &&
         !setup->arguments->given[WEFT_CLI_OPTION_KEEP_PARTITION] && setup->stage_count > 1 &&
         setup->job == NULL && training->total_steps >= training->step + TRIAL_STEPS * TRIALS_MIN;
}

static struct weft_gpt_trainer_options trial_options(const struct weft_train_setup *setup) {
  struct weft_gpt_trainer_options options = setup->options;
  options.training.total_steps = options.training.step + TRIAL_STEPS;
  options.checkpoint_dir = NULL;
  options.eval_every = 0;
  options.gather_events = options.gather_model = false;
  options.on_step = NULL;
  options.on_tuning = NULL;
  return options;
}

static enum weft_status run_trial(const struct weft_train_setup *setup, uint32_t *first_layers,
                                  double *gain, struct weft_error *error) {
  const struct weft_gpt_trainer_options options = trial_options(setup);
  struct weft_gpt_trainer *trainer;
  WEFT_TRY(weft_gpt_trainer_create(&options, &trainer, error));
  enum weft_status status = weft_gpt_trainer_run(trainer, error);
  *gain = 0;
  if (status == WEFT_OK && weft_gpt_trainer_steps_done(trainer) == options.training.total_steps) {
    status = weft_gpt_trainer_plan_split(trainer, first_layers, gain, error);
  }
  weft_gpt_trainer_destroy(trainer);
  return status;
}

int weft_train_setup_plan_split(struct weft_train_setup *setup) {
  assert(setup != NULL && setup->options.interrupted != NULL);
  struct weft_error error;
  double gain = 0;
  if (!is_worth_a_trial(setup)) {
    return WEFT_CLI_OK;
  }
  uint32_t *planned =
      weft_arena_allocate(&setup->arena, (size_t)setup->stage_count + 1, sizeof *planned);
  if (planned == NULL) {
    return weft_cli_fail_memory(setup->cli);
  }
  WEFT_CLI_TRY(weft_cli_result(setup->cli, NULL, run_trial(setup, planned, &gain, &error), &error));
  if (gain > 0) {
    setup->options.first_layers = setup->first_layers = planned;
    setup->split_by = WEFT_TRAIN_SPLIT_PLANNED;
    setup->split_gain = gain;
  }
  return WEFT_CLI_OK;
}

/* ---- By whichever ---- */

/* A list of numbers is never a file; ./2,4 is. */
static bool is_path(const char *text) {
  const size_t size = strlen(text);
  return strspn(text, "0123456789,") < size &&
         (strchr(text, '/') != NULL || strcmp(text, "-") == 0 ||
          (size > 5 && strcmp(text + size - 5, ".json") == 0) || access(text, F_OK) == 0);
}

int weft_train_setup_read_split(struct weft_train_setup *setup) {
  assert(setup != NULL);
  const char *text = setup->arguments->texts[WEFT_CLI_OPTION_SPLIT];
  if (text == NULL || strcmp(text, "even") == 0) {
    return WEFT_CLI_OK; /* the default of the trainer */
  }
  setup->first_layers = weft_arena_allocate(&setup->arena, (size_t)setup->stage_count + 1,
                                            sizeof *setup->first_layers);
  if (setup->first_layers == NULL) {
    return weft_cli_fail_memory(setup->cli);
  }
  setup->options.first_layers = setup->first_layers;
  return is_path(text) ? split_by_costs(setup, text) : split_by_counts(setup, text);
}
