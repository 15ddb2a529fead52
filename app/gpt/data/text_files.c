/* Walks through folders for files to train on. Links are not followed, so there is no cycle;
 * folders wait in a list, so depth needs no stack. */
#define _POSIX_C_SOURCE 200809L
#include "gpt/data/text_files.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <weft/support.h>

#include "gpt/model/aligned_memory.h"

/* ---- Lists of paths ---- */

void weft_gpt_paths_finish(struct weft_gpt_paths *paths) {
  for (uint64_t k = 0; k < paths->count; k++) {
    weft_gpt_free(paths->allocator, paths->items[k]);
  }
  weft_array_free(paths->allocator, (void *)paths->items, (size_t)paths->capacity,
                  sizeof *paths->items);
  *paths = (struct weft_gpt_paths){.allocator = paths->allocator};
}

static bool reserve(struct weft_gpt_paths *paths) {
  if (paths->count < paths->capacity) {
    return true;
  }
  const uint64_t capacity = paths->capacity == 0 ? 64 : 2 * paths->capacity;
  char **items = weft_array_resize(paths->allocator, (void *)paths->items, (size_t)paths->capacity,
                                   (size_t)capacity, sizeof *items);
  if (items == NULL) {
    return false;
  }
  paths->items = items;
  paths->capacity = capacity;
  return true;
}

/* Adds folder/name, or the folder itself when there is no name. */
static enum weft_status add(struct weft_gpt_paths *paths, const char *folder, const char *name,
                            struct weft_error *error) {
  const size_t folder_size = strlen(folder);
  const size_t name_size = strlen(name);
  const bool slash = name_size > 0 && folder_size > 0 && folder[folder_size - 1] != '/';
  const size_t size = folder_size + slash + name_size;
  char *path = reserve(paths) ? weft_gpt_allocate(paths->allocator, size + 1, 1) : NULL;
  if (path == NULL) {
    return weft_fail_memory(error, size + 1);
  }
  memcpy(path, folder, folder_size);
  if (slash) {
    path[folder_size] = '/';
  }
  memcpy(path + folder_size + slash, name, name_size); /* the rest is 0 */
  paths->items[paths->count++] = path;
  return WEFT_OK;
}

static void drop_last(struct weft_gpt_paths *paths) {
  weft_gpt_free(paths->allocator, paths->items[--paths->count]);
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

/* ---- The walk ---- */

struct walk {
  struct weft_gpt_paths *files;
  struct weft_gpt_paths folders; /* not visited yet */
};

static enum weft_status fail_on(const char *path, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_IO, "", "%s cannot be looked at: %s", path, strerror(errno));
}

/* Classifies the path that was just added to the folders: it stays there, moves to the files, or
 * is dropped. */
static enum weft_status sort_out(struct walk *walk, const char *name, struct weft_error *error) {
  const char *path = walk->folders.items[walk->folders.count - 1];
  struct stat status;
  enum weft_status result = WEFT_OK;
  if (lstat(path, &status) != 0) {
    return fail_on(path, error);
  }
  if (S_ISDIR(status.st_mode) && is_wanted_folder(name)) {
    return WEFT_OK;
  }
  if (S_ISREG(status.st_mode) && is_text_name(name) &&
      (uint64_t)status.st_size <= WEFT_GPT_FILE_SIZE_MAX) {
    result = add(walk->files, path, "", error);
  }
  drop_last(&walk->folders);
  return result;
}

static enum weft_status read_folder(struct walk *walk, const char *folder, DIR *stream,
                                    struct weft_error *error) {
  for (;;) {
    errno = 0;
    const struct dirent *entry = readdir(stream); // NOLINT(concurrency-mt-unsafe): our stream
    if (entry == NULL) {
      return errno == 0 ? WEFT_OK : fail_on(folder, error);
    }
    if (entry->d_name[0] != '.') {
      WEFT_TRY(add(&walk->folders, folder, entry->d_name, error));
      WEFT_TRY(sort_out(walk, entry->d_name, error));
    }
  }
}

/* Visits the last folder of the list; those found in it take its place. */
static enum weft_status visit(struct walk *walk, struct weft_error *error) {
  char *folder = walk->folders.items[--walk->folders.count];
  DIR *stream = opendir(folder);
  enum weft_status status = stream == NULL ? fail_on(folder, error) : WEFT_OK;
  if (stream != NULL) {
    status = read_folder(walk, folder, stream, error);
    (void)closedir(stream);
  }
  weft_gpt_free(walk->folders.allocator, folder);
  return status;
}

static int compare_paths(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

enum weft_status weft_gpt_paths_find(struct weft_gpt_paths *paths, const char *folder,
                                     struct weft_error *error) {
  assert(paths != NULL && folder != NULL);
  struct walk walk = {.files = paths, .folders = {.allocator = paths->allocator}};
  const uint64_t before = paths->count;
  enum weft_status status = add(&walk.folders, folder, "", error);
  while (status == WEFT_OK && walk.folders.count > 0) {
    status = visit(&walk, error);
  }
  weft_gpt_paths_finish(&walk.folders);
  if (paths->count > before) {
    qsort((void *)(paths->items + before), paths->count - before, sizeof *paths->items,
          compare_paths);
  }
  return status;
}
