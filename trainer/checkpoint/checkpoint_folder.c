/* Lists a folder of checkpoints, and removes what is old or was left by an interrupted run. */
#include "trainer/checkpoint/checkpoint_folder.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <weft/support.h>

/* ---- Names ---- */

struct weft_gpt_name weft_gpt_step_name(uint64_t step) {
  struct weft_gpt_name name;
  (void)snprintf(name.text, sizeof name.text, "step-%08" PRIu64, step);
  return name;
}

struct weft_gpt_name weft_gpt_layer_name(uint32_t layer) {
  struct weft_gpt_name name;
  (void)snprintf(name.text, sizeof name.text, "part-%04" PRIu32 ".safetensors", layer);
  return name;
}

struct weft_gpt_name weft_gpt_layer_name_again(uint32_t layer, uint64_t checksum) {
  struct weft_gpt_name name;
  (void)snprintf(name.text, sizeof name.text, "part-%04" PRIu32 ".%016" PRIx64 ".safetensors",
                 layer, checksum);
  return name;
}

/* The number after `prefix`, in `base`; *rest is what follows. */
static bool read_number(const char *name, const char *prefix, int base, uint64_t *number,
                        const char **rest) {
  const size_t length = strlen(prefix);
  if (strncmp(name, prefix, length) != 0) {
    return false;
  }
  char *end;
  errno = 0;
  const unsigned long long value = strtoull(name + length, &end, base);
  *number = value;
  *rest = end;
  return errno == 0 && end != name + length;
}

/* strtoull() accepts more than is ever written: the name is formatted again and compared. */
bool weft_gpt_step_of_name(const char *name, uint64_t *step) {
  const char *rest;
  uint64_t number;
  if (!read_number(name, "step-", 10, &number, &rest) ||
      strcmp(weft_gpt_step_name(number).text, name) != 0) {
    return false;
  }
  *step = number;
  return true;
}

bool weft_gpt_layer_of_name(const char *name, uint32_t *layer) {
  const char *rest;
  uint64_t number, checksum;
  if (!read_number(name, "part-", 10, &number, &rest) || number > UINT32_MAX) {
    return false;
  }
  const bool plain = strcmp(weft_gpt_layer_name((uint32_t)number).text, name) == 0;
  if (!plain && (!read_number(rest, ".", 16, &checksum, &rest) ||
                 strcmp(weft_gpt_layer_name_again((uint32_t)number, checksum).text, name) != 0)) {
    return false;
  }
  *layer = (uint32_t)number;
  return true;
}

/* ---- Lists ---- */

/* Calls `entry` for each name in a folder until it fails. A folder that is not there
 * is WEFT_ERR_MISSING. */
static enum weft_status each_entry(const char *folder,
                                   enum weft_status (*entry)(void *context, const char *name,
                                                             struct weft_error *error),
                                   void *context, struct weft_error *error) {
  DIR *stream = opendir(folder);
  if (stream == NULL) {
    return weft_gpt_fail_system(error, errno, "read the folder", folder);
  }
  enum weft_status status = WEFT_OK;
  while (status == WEFT_OK) {
    errno = 0;
    const struct dirent *found = readdir(stream);
    if (found == NULL) {
      if (errno != 0) {
        status = weft_gpt_fail_system(error, errno, "read the folder", folder);
      }
      break;
    }
    status = entry(context, found->d_name, error);
  }
  (void)closedir(stream);
  return status;
}

struct list {
  struct weft_arena *arena;
  const char *dir;
  struct weft_gpt_step *steps;
  size_t count, capacity;
};

/* Room for one more. The list that it outgrows stays in the arena. */
static enum weft_status list_reserve(struct list *list, struct weft_error *error) {
  if (list->count == list->capacity) {
    struct weft_gpt_step *old = list->steps;
    list->capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
    list->steps = weft_arena_allocate(list->arena, list->capacity, sizeof *old);
    WEFT_TRY(weft_arena_status(list->arena, error));
    if (list->count > 0) {
      memcpy(list->steps, old, list->count * sizeof *old);
    }
  }
  return WEFT_OK;
}

static enum weft_status list_add(void *context, const char *name, struct weft_error *error) {
  struct list *list = context;
  struct weft_gpt_path folder;
  struct stat status;
  uint64_t step;
  if (!weft_gpt_step_of_name(name, &step)) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_gpt_path_join(&folder, list->dir, name, error));
  if (lstat(folder.text, &status) != 0 || !S_ISDIR(status.st_mode)) {
    return WEFT_OK;
  }
  WEFT_TRY(list_reserve(list, error));
  list->steps[list->count++] = (struct weft_gpt_step){
      .step = step, .complete = weft_gpt_file_is_there(folder.text, WEFT_GPT_MANIFEST)};
  return WEFT_OK;
}

static int by_step(const void *left, const void *right) {
  const uint64_t a = ((const struct weft_gpt_step *)left)->step;
  const uint64_t b = ((const struct weft_gpt_step *)right)->step;
  return (a > b) - (a < b);
}

enum weft_status weft_gpt_steps_list(struct weft_arena *arena, const char *dir,
                                     struct weft_gpt_step **steps, size_t *count,
                                     struct weft_error *error) {
  assert(dir != NULL && steps != NULL && count != NULL);
  struct list list = {.arena = arena, .dir = dir};
  WEFT_TRY(each_entry(dir, list_add, &list, error));
  if (list.count > 0) {
    qsort(list.steps, list.count, sizeof *list.steps, by_step);
  }
  *steps = list.steps;
  *count = list.count;
  return WEFT_OK;
}

/* ---- Removal ---- */

struct sweep {
  const struct weft_gpt_files *files;
  const char *folder;
  const struct weft_gpt_name *names; /* that stay */
  uint32_t layer_count;
};

static bool is_temporary(const char *name) {
  const size_t length = strlen(WEFT_GPT_TEMPORARY);
  uint32_t layer;
  return strncmp(name, WEFT_GPT_TEMPORARY, length) == 0 &&
         (strcmp(name + length, WEFT_GPT_MANIFEST) == 0 ||
          weft_gpt_layer_of_name(name + length, &layer));
}

static enum weft_status sweep_entry(void *context, const char *name, struct weft_error *error) {
  const struct sweep *sweep = context;
  uint32_t layer;
  const bool is_layer = weft_gpt_layer_of_name(name, &layer);
  const bool stays =
      is_layer && layer < sweep->layer_count && strcmp(name, sweep->names[layer].text) == 0;
  if (stays || (!is_layer && !is_temporary(name))) {
    return WEFT_OK;
  }
  return weft_gpt_file_remove(sweep->files, sweep->folder, name, error);
}

/* A folder without a manifest. */
static enum weft_status remove_incomplete(const struct weft_gpt_files *files, const char *folder,
                                          struct weft_error *error) {
  struct sweep sweep = {.files = files, .folder = folder};
  WEFT_TRY(each_entry(folder, sweep_entry, &sweep, error));
  return weft_gpt_folder_remove(files, folder, error);
}

void weft_gpt_checkpoint_discard(const struct weft_gpt_files *files, const char *dir,
                                 uint64_t step) {
  struct weft_gpt_path folder;
  if (weft_gpt_path_join(&folder, dir, weft_gpt_step_name(step).text, NULL) == WEFT_OK &&
      !weft_gpt_file_is_there(folder.text, WEFT_GPT_MANIFEST)) {
    (void)remove_incomplete(files, folder.text, NULL);
  }
}

/* First the manifest is renamed, so that the step is no longer complete; then the files go. */
static enum weft_status remove_complete(const struct weft_gpt_files *files, const char *folder,
                                        struct weft_error *error) {
  WEFT_TRY(weft_gpt_file_rename(files, folder, WEFT_GPT_MANIFEST, WEFT_GPT_MANIFEST_GONE, error));
  WEFT_TRY(weft_gpt_folder_sync(files, folder, error));
  return remove_incomplete(files, folder, error);
}

static enum weft_status clean_step(const struct weft_gpt_files *files, const char *dir,
                                   const struct weft_gpt_step *step, bool stays,
                                   struct weft_error *error) {
  struct weft_gpt_path folder;
  if (step->complete && stays) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_gpt_path_join(&folder, dir, weft_gpt_step_name(step->step).text, error));
  return step->complete ? remove_complete(files, folder.text, error)
                        : remove_incomplete(files, folder.text, error);
}

/* From new to old; `step` is the newest that stays. */
static enum weft_status clean_before(const struct weft_gpt_files *files, const char *dir,
                                     uint64_t step, uint32_t keep,
                                     const struct weft_gpt_step *steps, size_t count,
                                     struct weft_error *error) {
  uint64_t kept = 1;
  for (size_t k = count; k > 0; k--) {
    if (steps[k - 1].step < step) {
      WEFT_TRY(clean_step(files, dir, &steps[k - 1], keep == 0 || kept < keep, error));
      kept += steps[k - 1].complete;
    }
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_steps_clean(const struct weft_gpt_files *files, const char *dir,
                                      uint64_t step, const struct weft_gpt_name *names,
                                      uint32_t layer_count, uint32_t keep,
                                      struct weft_error *error) {
  assert(names != NULL && layer_count > 0);
  struct weft_gpt_path folder;
  WEFT_SCOPED_ARENA arena = {.allocator = NULL};
  struct weft_gpt_step *steps;
  size_t count;
  WEFT_TRY(weft_gpt_path_join(&folder, dir, weft_gpt_step_name(step).text, error));
  struct sweep sweep = {
      .files = files, .folder = folder.text, .names = names, .layer_count = layer_count};
  WEFT_TRY(each_entry(folder.text, sweep_entry, &sweep, error));
  WEFT_TRY(weft_gpt_steps_list(&arena, dir, &steps, &count, error));
  return clean_before(files, dir, step, keep, steps, count, error);
}
