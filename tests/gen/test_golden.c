/* PyTorch's own output, byte for byte: tables, merged tables, programs and dry
 * runs of 99 configurations (tests/golden, made with PyTorch 2.11). */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#define GOLDEN_DIR WEFT_SOURCE_DIR "/tests/golden"

struct golden {
  char name[64];
  struct weft_shape shape;
  char kind[16]; /* compute, merged, comms, sim */
};

static bool read_file_name(const char *file, struct golden *golden) {
  return sscanf(file, "%63[A-Za-z0-9]_p%u_v%u_m%u.%15[a-z].csv", golden->name, &golden->shape.ranks,
                &golden->shape.stages_per_rank, &golden->shape.microbatches, golden->kind) == 5;
}

static char *read_text(const char *file) {
  char path[512];
  (void)snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, file);
  FILE *stream = fopen(path, "rb");
  assert_non_null(stream);
  assert_int_equal(fseek(stream, 0, SEEK_END), 0);
  const size_t size = (size_t)ftell(stream);
  rewind(stream);
  char *text = calloc(size + 1, 1);
  assert_non_null(text);
  assert_int_equal(fread(text, 1, size, stream), size);
  assert_int_equal(fclose(stream), 0);
  return text;
}

static struct weft_program *lower(const struct weft_program *table, bool merge, bool all) {
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_program *program;
  struct weft_error error;
  options.merge_bw = merge;
  options.unshard = options.reduce_grad = all;
  options.communicate = !merge;
  if (weft_lower(NULL, table, &options, &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

static struct weft_program *dry_run(const struct weft_program *table) {
  struct weft_program *program = lower(table, false, false), *steps;
  struct weft_error error;
  if (weft_dry_run(NULL, program, &steps, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  weft_program_destroy(program);
  return steps;
}

static struct weft_program *make(const struct golden *golden) {
  struct weft_program *table, *made;
  struct weft_error error;
  if (weft_generate(NULL, golden->name, &golden->shape, &table, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  if (strcmp(golden->kind, "compute") == 0) {
    return table;
  }
  if (strcmp(golden->kind, "merged") == 0) {
    made = lower(table, true, false);
  } else if (strcmp(golden->kind, "comms") == 0) {
    made = lower(table, false, true);
  } else {
    assert_string_equal(golden->kind, "sim");
    made = dry_run(table);
  }
  weft_program_destroy(table);
  return made;
}

static void every_file_is_reproduced(void **state) {
  (void)state;
  DIR *directory = opendir(GOLDEN_DIR);
  assert_non_null(directory);
  unsigned files = 0;
  for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    struct golden golden = {0};
    if (!read_file_name(entry->d_name, &golden)) {
      continue;
    }
    char *expected = read_text(entry->d_name);
    struct weft_program *made = make(&golden);
    struct weft_text text = {0};
    weft_program_print(made, &text);
    if (strcmp(text.data, expected) != 0) {
      print_error("differs: %s\n", entry->d_name);
    }
    assert_string_equal(text.data, expected);
    weft_text_finish(&text);
    weft_program_destroy(made);
    free(expected);
    files++;
  }
  assert_int_equal(closedir(directory), 0);
  assert_int_equal(files, 327);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_file_is_reproduced)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
