/* The golden files were made by PyTorch 2.11 itself: docs/language.md says how
 * the suffixes come about. */
#include "support_csv.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden"

struct weft_program *csv_program(const char *text) {
  struct weft_error error;
  struct weft_program *program = NULL;
  if (weft_program_parse(NULL, text, strlen(text), "test", &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

char *csv_text(const struct weft_program *program) {
  struct weft_text text = {.allocator = NULL};
  weft_text_add(&text, "");
  weft_program_print(program, &text);
  assert_false(text.failed);
  return text.data; /* the default allocator is realloc and free */
}

char *csv_read_file(const char *path) {
  char full[4096];
  assert_true((size_t)snprintf(full, sizeof full, "%s/%s", WEFT_SOURCE_DIR, path) < sizeof full);
  FILE *file = fopen(full, "rb");
  if (file == NULL) {
    fail_msg("cannot read %s", full);
    return NULL;
  }
  struct weft_text text = {.allocator = NULL};
  char buffer[4096];
  weft_text_add(&text, "");
  for (size_t size; (size = fread(buffer, 1, sizeof buffer, file)) > 0;) {
    weft_text_append(&text, buffer, size);
  }
  assert_false(ferror(file) || text.failed);
  (void)fclose(file);
  return text.data;
}

struct weft_program *csv_golden(const char *name) {
  char path[256];
  assert_true((size_t)snprintf(path, sizeof path, GOLDEN "/%s", name) < sizeof path);
  char *text = csv_read_file(path);
  struct weft_program *program = csv_program(text);
  free(text);
  return program;
}

size_t csv_each_golden(const char *suffix, void (*visit)(const char *stem)) {
  DIR *directory = opendir(WEFT_SOURCE_DIR "/" GOLDEN);
  assert_non_null(directory);
  size_t count = 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    const size_t length = strlen(entry->d_name);
    const size_t ending = strlen(suffix);
    if (length > ending && strcmp(entry->d_name + length - ending, suffix) == 0) {
      char stem[256];
      memcpy(stem, entry->d_name, length - ending);
      stem[length - ending] = '\0';
      visit(stem);
      count++;
    }
  }
  (void)closedir(directory);
  return count;
}
