/* Pictures for tests. */
#include "support_picture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <weft/gen.h>
#include <weft/lower.h>

#include "support_csv.h"

static void must(enum weft_status status, const struct weft_error *error) {
  if (status != WEFT_OK) {
    fail_msg("%s", error->message);
  }
}

static void start(struct drawing *drawing, struct weft_program *program) {
  struct weft_error error;
  *drawing = (struct drawing){.program = program};
  must(weft_costs_create(NULL, 1, &drawing->costs, &error), &error);
  drawing->costs->of = WEFT_COSTS_OF_STAGE;
}

void drawing_init(struct drawing *drawing, const char *csv) { start(drawing, csv_program(csv)); }

void drawing_init_schedule(struct drawing *drawing, const char *name, uint32_t ranks,
                           uint32_t stages_per_rank, uint32_t microbatches) {
  const struct weft_shape shape = {
      .ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = microbatches};
  const struct weft_lower_options options = {.communicate = true, .unshard_window = 1};
  struct weft_program *table, *program;
  struct weft_error error;
  must(weft_generate(NULL, name, &shape, &table, &error), &error);
  must(weft_lower(NULL, table, &options, &program, &error), &error);
  weft_program_destroy(table);
  start(drawing, program);
}

void drawing_simulate(struct drawing *drawing, const char *name) {
  struct weft_error error;
  must(weft_simulate(NULL, drawing->program, drawing->costs, NULL, &drawing->simulation, &error),
       &error);
  drawing->picture = (struct weft_picture){
      .name = name, .simulation = drawing->simulation, .costs = drawing->costs};
}

void drawing_finish(struct drawing *drawing) {
  weft_simulation_destroy(drawing->simulation);
  weft_costs_destroy(drawing->costs);
  weft_program_destroy(drawing->program);
}

char *drawing_render(const struct drawing *drawing, drawing_renderer *render,
                     const struct weft_render_options *options) {
  struct weft_text text = {.allocator = NULL};
  struct weft_error error;
  must(render(&drawing->picture, options, &text, &error), &error);
  assert_int_equal(strlen(text.data), text.size);
  char *copy = strdup(text.data);
  assert_non_null(copy);
  weft_text_finish(&text);
  return copy;
}

void drawing_expect(const char *file, const char *text) {
  char path[512];
  const char *update = getenv("WEFT_UPDATE");
  (void)snprintf(path, sizeof path, "tests/expected/%s", file);
  if (update != NULL && strcmp(update, "1") == 0) {
    char full[1024];
    (void)snprintf(full, sizeof full, "%s/%s", WEFT_SOURCE_DIR, path);
    FILE *out = fopen(full, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, strlen(text), out), strlen(text));
    assert_int_equal(fclose(out), 0);
  }
  char *expected = csv_read_file(path);
  assert_string_equal(text, expected);
  free(expected);
}

static void check_failure(const struct test_memory *memory, const struct weft_text *text,
                          enum weft_status status, const struct weft_error *error) {
  assert_int_equal(status, WEFT_ERR_MEMORY);
  assert_int_equal(error->status, WEFT_ERR_MEMORY);
  assert_true(text->size == 0 || strcmp(text->data, "before") == 0);
  assert_true(memory->calls > 0);
}

void drawing_check_memory(const struct drawing *drawing, drawing_renderer *render,
                          const struct weft_render_options *options) {
  for (uint64_t n = 1;; n++) {
    struct test_memory memory;
    struct weft_error error;
    test_memory_init(&memory);
    memory.fail_at = n;
    struct weft_text text = {.allocator = &memory.allocator};
    weft_text_add(&text, "before");
    const enum weft_status status = render(&drawing->picture, options, &text, &error);
    const bool failed = memory.calls >= n;
    if (failed) {
      check_failure(&memory, &text, status, &error);
    } else {
      assert_int_equal(status, WEFT_OK);
      assert_true(n > 3); /* several allocations did fail */
    }
    weft_text_finish(&text);
    assert_int_equal(memory.blocks, 0);
    assert_int_equal(memory.bytes, 0);
    if (!failed) {
      return;
    }
  }
}
