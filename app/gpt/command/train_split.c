/* Which blocks of the model are on which stage (--split): by estimated work, by given numbers, or
 * by times that another training has measured. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/text_columns.h"
#include "gpt/command/train_setup.h"

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
    if (weft_cli_read_number(digits, &number) != WEFT_CLI_DIGITS_OK || number > UINT32_MAX) {
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

static int fill_by_counts(struct weft_train_setup *setup, const char *text, uint32_t *blocks) {
  const struct weft_gpt_config *config = &setup->options.training.config;
  uint32_t count;
  char quoted[80];
  struct weft_error error;
  weft_cli_quote(quoted, sizeof quoted, text);
  if (!read_counts(text, blocks, setup->stage_count, &count)) {
    return weft_cli_usage(setup->cli, "for example: --split 2,4, or --split costs.json",
                          "--split '%s' is not a list of numbers: expected the blocks of each of "
                          "%" PRIu32
                          " stages, with commas between them, or 'even', or a file of "
                          "measured costs",
                          quoted, setup->stage_count);
  }
  if (count != setup->stage_count) {
    return weft_cli_usage(setup->cli, "the schedule and -p determine the number of stages",
                          "--split '%s' has %" PRIu32 " number%s, and there %s %" PRIu32 " stage%s",
                          quoted, count, weft_cli_plural(count),
                          setup->stage_count == 1 ? "is" : "are", setup->stage_count,
                          weft_cli_plural(setup->stage_count));
  }
  return weft_gpt_split_counts(config, blocks, count, setup->first_layers, &error) < 0
             ? weft_cli_fail(setup->cli, NULL, &error)
             : WEFT_CLI_OK;
}

static int split_by_counts(struct weft_train_setup *setup, const char *text) {
  const struct weft_allocator *allocator = setup->cli->allocator;
  uint32_t *blocks = weft_array_allocate(allocator, setup->stage_count, sizeof *blocks);
  const int status =
      blocks == NULL ? weft_cli_fail_memory(setup->cli) : fill_by_counts(setup, text, blocks);
  weft_array_free(allocator, blocks, setup->stage_count, sizeof *blocks);
  setup->split_by = WEFT_TRAIN_SPLIT_GIVEN;
  return status;
}

/* ---- By measured costs ---- */

/* One microbatch's forward and backward. */
static int fill_by_times(struct weft_train_setup *setup, const struct weft_costs *costs,
                         double *times) {
  const struct weft_gpt_config *config = &setup->options.training.config;
  struct weft_error error;
  for (uint32_t p = 0; p < costs->part_count; p++) {
    times[p] = costs->parts[p].f + costs->parts[p].i + costs->parts[p].w;
  }
  return weft_gpt_split(setup->cli->allocator, config, times, setup->stage_count,
                        setup->first_layers, &error) < 0
             ? weft_cli_fail(setup->cli, NULL, &error)
             : WEFT_CLI_OK;
}

static int check_parts(const struct weft_train_setup *setup, const char *path,
                       const struct weft_costs *costs) {
  const uint32_t layers = setup->options.training.config.blocks;
  const uint32_t expected = layers + 2;
  char quoted[256];
  weft_cli_quote(quoted, sizeof quoted, weft_cli_input_name(path));
  if (costs->part_count == 0) {
    weft_cli_print(
        setup->cli, HINT_PROFILE,
        "'%s' has no times of the model's parts: expected a list 'parts' beside 'stages'", quoted);
    return WEFT_CLI_MALFORMED;
  }
  return costs->part_count == expected
             ? WEFT_CLI_OK
             : weft_cli_usage(setup->cli, HINT_PROFILE,
                              "'%s' was not measured with such a model: it has times of %" PRIu32
                              " part%s, and the embedding, %" PRIu32
                              " block%s and the head are "
                              "%" PRIu32,
                              quoted, costs->part_count, weft_cli_plural(costs->part_count), layers,
                              weft_cli_plural(layers), expected);
}

static int split_by_costs(struct weft_train_setup *setup, const char *path) {
  const char *schedule = setup->arguments->texts[WEFT_CLI_OPTION_SCHEDULE];
  struct weft_costs *costs;
  if (strcmp(path, "-") == 0 && schedule != NULL && strcmp(schedule, "-") == 0) {
    return weft_cli_usage(setup->cli, "give one of them as a file",
                          "standard input can be read only once: as the schedule or as the costs");
  }
  int status = weft_cli_read_costs(setup->cli, path, &costs);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  status = check_parts(setup, path, costs);
  if (status == WEFT_CLI_OK) {
    const struct weft_allocator *allocator = setup->cli->allocator;
    double *times = weft_array_allocate(allocator, costs->part_count, sizeof *times);
    status = times == NULL ? weft_cli_fail_memory(setup->cli) : fill_by_times(setup, costs, times);
    weft_array_free(allocator, times, costs->part_count, sizeof *times);
  }
  weft_costs_destroy(costs);
  setup->split_by = WEFT_TRAIN_SPLIT_MEASURED;
  return status;
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
  setup->first_layers = weft_array_allocate(setup->cli->allocator, (size_t)setup->stage_count + 1,
                                            sizeof *setup->first_layers);
  if (setup->first_layers == NULL) {
    return weft_cli_fail_memory(setup->cli);
  }
  setup->options.first_layers = setup->first_layers;
  return is_path(text) ? split_by_costs(setup, text) : split_by_counts(setup, text);
}
