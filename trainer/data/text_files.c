/* Visits folders for files to train on. Links are not followed, so there is no cycle;
 * folders wait in a list, so depth needs no stack. */
#define _POSIX_C_SOURCE 200809L
#include "trainer/data/text_files.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <weft/support.h>

/* ---- Lists of paths ---- */

void weft_gpt_paths_finish(struct weft_gpt_paths *paths) {
  weft_array_free(paths->arena.allocator, (void *)paths->items, (size_t)paths->capacity,
                  sizeof *paths->items);
  weft_arena_finish(&paths->arena);
  *paths = (struct weft_gpt_paths){.arena = paths->arena};
}

/* Adds a path that is in the arena, or NULL when there was no memory for it. */
static enum weft_status add_path(struct weft_gpt_paths *paths, char *path,
                                 struct weft_error *error) {
  if (paths->count == paths->capacity) {
    const uint64_t capacity = paths->capacity == 0 ? 64 : 2 * paths->capacity;
    char **items = weft_array_resize(paths->arena.allocator, (void *)paths->items,
                                     (size_t)paths->capacity, (size_t)capacity, sizeof *items);
    if (items == NULL) {
      return weft_fail_memory(error, capacity * sizeof *items);
    }
    paths->items = items;
    paths->capacity = capacity;
  }
  paths->items[paths->count++] = path;
  return weft_arena_status(&paths->arena, error);
}

/* folder/name */
static char *join(struct weft_arena *arena, const char *folder, const char *name) {
  const size_t folder_size = strlen(folder);
  const size_t name_size = strlen(name);
  const bool slash = folder_size > 0 && folder[folder_size - 1] != '/';
  char *path = weft_arena_allocate(arena, folder_size + slash + name_size + 1, 1);
  if (path != NULL) {
    memcpy(path, folder, folder_size);
    memcpy(path + folder_size, "/", slash);
    memcpy(path + folder_size + slash, name, name_size); /* the rest is 0 */
  }
  return path;
}

/* ---- Names of text files ---- */

static bool is_text_name(const char *name) {
  static const char *const suffixes[] = {".c",  ".h",  ".def",   ".md",   ".txt", ".py",
                                         ".sh", ".js", ".cmake", ".bats", ".cc"};
  const char *suffix = strrchr(name, '.');
  if (strcmp(name, "Makefile") == 0) {
    return true;
  }
  for (size_t k = 0; suffix != NULL && k < sizeof suffixes / sizeof *suffixes; k++) {
    if (strcmp(suffix, suffixes[k]) == 0) {
      return true;
    }
  }
  return false;
}

static bool is_wanted_folder(const char *name) { return strncmp(name, "build", 5) != 0; }

/* ---- The scan ---- */

struct scan {
  struct weft_gpt_paths *files;
  struct weft_gpt_paths folders; /* not visited yet */
};

static enum weft_status fail_on(const char *path, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_IO, "", "%s cannot be looked at: %s", path, strerror(errno));
}

/* Adds an entry of a folder to the folders or the files, if it is wanted. */
static enum weft_status sort_out(struct scan *scan, const char *folder, const char *name,
                                 struct weft_error *error) {
  char *path = join(&scan->files->arena, folder, name);
  struct stat status;
  WEFT_TRY(weft_arena_status(&scan->files->arena, error));
  if (lstat(path, &status) != 0) {
    return fail_on(path, error);
  }
  if (S_ISDIR(status.st_mode) && is_wanted_folder(name)) {
    return add_path(&scan->folders, path, error);
  }
  return S_ISREG(status.st_mode) && is_text_name(name) &&
                 (uint64_t)status.st_size <= WEFT_GPT_FILE_SIZE_MAX
             ? add_path(scan->files, path, error)
             : WEFT_OK;
}

static enum weft_status read_folder(struct scan *scan, const char *folder, DIR *stream,
                                    struct weft_error *error) {
  for (;;) {
    errno = 0;
    const struct dirent *entry = readdir(stream); // NOLINT(concurrency-mt-unsafe): our stream
    if (entry == NULL) {
      return errno == 0 ? WEFT_OK : fail_on(folder, error);
    }
    if (entry->d_name[0] != '.') {
      WEFT_TRY(sort_out(scan, folder, entry->d_name, error));
    }
  }
}

/* Visits the last folder of the list; those found in it take its place. */
static enum weft_status visit_folder(struct scan *scan, struct weft_error *error) {
  const char *folder = scan->folders.items[--scan->folders.count];
  DIR *stream = opendir(folder);
  if (stream == NULL) {
    return fail_on(folder, error);
  }
  const enum weft_status status = read_folder(scan, folder, stream, error);
  (void)closedir(stream);
  return status;
}

static int compare_paths(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

enum weft_status weft_gpt_paths_find(struct weft_gpt_paths *paths, const char *folder,
                                     struct weft_error *error) {
  assert(paths != NULL && folder != NULL);
  struct scan scan = {.files = paths, .folders = {.arena = {.allocator = paths->arena.allocator}}};
  const uint64_t before = paths->count;
  enum weft_status status = add_path(
      &scan.folders, weft_arena_copy_text(&scan.folders.arena, folder, strlen(folder)), error);
  while (status == WEFT_OK && scan.folders.count > 0) {
    status = visit_folder(&scan, error);
  }
  weft_gpt_paths_finish(&scan.folders);
  if (paths->count > before) {
    qsort((void *)(paths->items + before), paths->count - before, sizeof *paths->items,
          compare_paths);
  }
  return status;
}
