/* A loss of power at every operation of a save, in a model of the worst file system that
 * POSIX allows: a file's bytes are there only after its fsync, and of what was done to a
 * folder since its own fsync any layer may be lost, the rest not. In every such world a
 * load must find the state before or the one after, whole.
 *
 * The save itself is real; the hook tells the model what is done. */
#define _XOPEN_SOURCE 700 /* nftw */
#include <ftw.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folder.h"

enum { PARTS = 3, FILES_MAX = 64, ENTRIES_MAX = 24, CHANGES_MAX = 16, FOLDERS_MAX = 6 };
#define NONE UINT32_MAX

/* ---- The model of a disk ---- */

/* What a file holds, which is known from who wrote it and where it was going. */
struct content {
  uint32_t generation; /* of the save that wrote it */
  uint32_t layer;      /* PARTS: a manifest */
  bool synced;
};

struct entry {
  char name[64];
  uint32_t file; /* a folder's: NONE */
};

/* An entry `from` goes, an entry `to` comes; either may be "". */
struct change {
  char from[64], to[64];
  uint32_t file;
};

struct folder {
  char path[WEFT_GPT_PATH_MAX];
  struct entry entries[ENTRIES_MAX]; /* those that are on the disk for good */
  uint32_t entry_count;
  struct change changes[CHANGES_MAX]; /* since the last fsync */
  uint32_t change_count;
};

struct disk {
  struct folder folders[FOLDERS_MAX];
  uint32_t folder_count;
  struct content files[FILES_MAX];
  uint32_t file_count;
  const char *dir;     /* of the checkpoints */
  uint32_t generation; /* that is being saved */
  uint32_t committed;  /* the last whose save returned; 0: none */
  uint64_t worlds;     /* looked at */
};

static void split(const char *path, char *folder, const char **name) {
  const char *slash = strrchr(path, '/');
  assert_non_null(slash);
  (void)snprintf(folder, WEFT_GPT_PATH_MAX, "%.*s", (int)(slash - path), path);
  *name = slash + 1;
}

/* The folder of that path; a new one if there is none yet. */
static struct folder *folder_at(struct disk *disk, const char *path) {
  size_t length = strlen(path);
  length -= length > 0 && path[length - 1] == '/';
  for (uint32_t k = 0; k < disk->folder_count; k++) {
    if (strncmp(disk->folders[k].path, path, length) == 0 &&
        disk->folders[k].path[length] == '\0') {
      return &disk->folders[k];
    }
  }
  assert_true(disk->folder_count < FOLDERS_MAX);
  struct folder *folder = &disk->folders[disk->folder_count++];
  *folder = (struct folder){.entry_count = 0};
  (void)snprintf(folder->path, sizeof folder->path, "%.*s", (int)length, path);
  return folder;
}

static struct entry *find(struct entry *entries, uint32_t count, const char *name) {
  for (uint32_t k = 0; k < count; k++) {
    if (strcmp(entries[k].name, name) == 0) {
      return &entries[k];
    }
  }
  return NULL;
}

static void apply(struct entry *entries, uint32_t *count, const struct change *change) {
  struct entry *gone = find(entries, *count, change->from);
  if (gone != NULL) {
    *gone = entries[--*count];
  }
  if (change->to[0] == '\0') {
    return;
  }
  struct entry *place = find(entries, *count, change->to);
  if (place == NULL) {
    assert_true(*count < ENTRIES_MAX);
    place = &entries[(*count)++];
  }
  memcpy(place->name, change->to, sizeof place->name);
  place->file = change->file;
}

/* The entries in the world where just the changes of `mask` were not lost. */
static uint32_t survivors(const struct folder *folder, uint32_t mask,
                          struct entry entries[ENTRIES_MAX]) {
  uint32_t count = folder->entry_count;
  memcpy(entries, folder->entries, sizeof folder->entries);
  for (uint32_t k = 0; k < folder->change_count; k++) {
    if ((mask >> k & 1) != 0) {
      apply(entries, &count, &folder->changes[k]);
    }
  }
  return count;
}

static uint32_t all_changes(const struct folder *folder) {
  return (UINT32_C(1) << folder->change_count) - 1;
}

/* As a running process sees it: nothing is lost. */
static uint32_t file_at(const struct folder *folder, const char *name) {
  struct entry entries[ENTRIES_MAX];
  const uint32_t count = survivors(folder, all_changes(folder), entries);
  const struct entry *entry = find(entries, count, name);
  assert_non_null(entry);
  return entry->file;
}

static void change(struct folder *folder, const char *from, const char *to, uint32_t file) {
  assert_true(folder->change_count < CHANGES_MAX);
  struct change *made = &folder->changes[folder->change_count++];
  *made = (struct change){.file = file};
  (void)snprintf(made->from, sizeof made->from, "%s", from);
  (void)snprintf(made->to, sizeof made->to, "%s", to);
}

/* ---- What a load finds ---- */

enum { NOTHING = 0, BROKEN = -1 };

/* The generation that is whole in these entries of a step's folder. */
static int found_in(const struct disk *disk, struct entry *entries, uint32_t count) {
  const struct entry *manifest = find(entries, count, WEFT_GPT_MANIFEST);
  bool found[PARTS] = {false};
  if (manifest == NULL) {
    return NOTHING;
  }
  const struct content *committed = &disk->files[manifest->file];
  for (uint32_t k = 0; k < count; k++) {
    const struct content *file = &disk->files[entries[k].file];
    uint32_t layer;
    if (weft_gpt_layer_of_name(entries[k].name, &layer) && file->synced &&
        file->generation == committed->generation && file->layer == layer) {
      found[layer] = true;
    }
  }
  return committed->synced && found[0] && found[1] && found[2] ? (int)committed->generation
                                                               : BROKEN;
}

/* Over all worlds: the least generation a step's folder may hold. */
static int least_found(struct disk *disk, const struct folder *folder) {
  int least = INT32_MAX;
  for (uint32_t mask = 0; mask <= all_changes(folder); mask++) {
    struct entry entries[ENTRIES_MAX];
    const uint32_t count = survivors(folder, mask, entries);
    const int found = found_in(disk, entries, count);
    disk->worlds++;
    if (found == BROKEN) {
      fail_msg("a manifest without its parts in %s", folder->path);
    }
    least = found < least ? found : least;
  }
  return least;
}

/* Whether an entry is there in every world. */
static bool is_certain(const struct disk *disk, const char *path) {
  char parent[WEFT_GPT_PATH_MAX];
  const char *name;
  split(path, parent, &name);
  const struct folder *folder = folder_at((struct disk *)disk, parent);
  for (uint32_t mask = 0; mask <= all_changes(folder); mask++) {
    struct entry entries[ENTRIES_MAX];
    const uint32_t count = survivors(folder, mask, entries);
    if (find(entries, count, name) == NULL) {
      return false;
    }
  }
  return true;
}

/* What was committed, or something newer, is whole in every world. */
static void lose_power(struct disk *disk) {
  uint32_t best = 0;
  for (uint32_t k = 0; k < disk->folder_count; k++) {
    const struct folder *folder = &disk->folders[k];
    if (strstr(folder->path, "/step-") == NULL) {
      continue;
    }
    const int least = least_found(disk, folder);
    if (least > (int)best && is_certain(disk, folder->path) && is_certain(disk, disk->dir)) {
      best = (uint32_t)least;
    }
  }
  if (best < disk->committed) {
    fail_msg("save %" PRIu32 " had returned, and a loss of power in save %" PRIu32 " may undo it",
             disk->committed, disk->generation);
  }
}

/* ---- Operations ---- */

/* The name that is renamed to `name`. */
static void source_of(const char *name, char *source, size_t size) {
  uint32_t layer;
  if (weft_gpt_layer_of_name(name, &layer)) {
    (void)snprintf(source, size, WEFT_GPT_TEMPORARY "%s", weft_gpt_layer_name(layer).text);
  } else if (strcmp(name, WEFT_GPT_MANIFEST) == 0) {
    (void)snprintf(source, size, "%s", WEFT_GPT_MANIFEST_GONE);
  } else {
    assert_string_equal(name, WEFT_GPT_MANIFEST_GONE);
    (void)snprintf(source, size, "%s", WEFT_GPT_MANIFEST);
  }
}

static void create(struct disk *disk, struct folder *folder, const char *name) {
  uint32_t layer = PARTS;
  assert_true(disk->file_count < FILES_MAX);
  if (strcmp(name, WEFT_GPT_MANIFEST_GONE) != 0) {
    assert_true(weft_gpt_layer_of_name(name + strlen(WEFT_GPT_TEMPORARY), &layer));
  }
  disk->files[disk->file_count] = (struct content){.generation = disk->generation, .layer = layer};
  change(folder, "", name, disk->file_count++);
}

static void sync_folder(struct folder *folder) {
  for (uint32_t k = 0; k < folder->change_count; k++) {
    apply(folder->entries, &folder->entry_count, &folder->changes[k]);
  }
  folder->change_count = 0;
}

static void move(struct folder *folder, const char *name) {
  char source[64];
  source_of(name, source, sizeof source);
  change(folder, source, name, file_at(folder, source));
}

/* Power may be lost before each operation; then it is done. */
static int note(void *context, const char *operation, const char *path) {
  struct disk *disk = context;
  char parent[WEFT_GPT_PATH_MAX];
  const char *name;
  lose_power(disk);
  if (strcmp(operation, "fsync-directory") == 0) {
    sync_folder(folder_at(disk, path));
    return 0;
  }
  split(path, parent, &name);
  struct folder *folder = folder_at(disk, parent);
  if (strcmp(operation, "mkdir") == 0) {
    struct stat status;
    if (stat(path, &status) != 0) {
      change(folder, "", name, NONE);
    }
  } else if (strcmp(operation, "open") == 0) {
    create(disk, folder, name);
  } else if (strcmp(operation, "write") == 0) {
    disk->files[file_at(folder, name)].synced = false;
  } else if (strcmp(operation, "fsync") == 0) {
    disk->files[file_at(folder, name)].synced = true;
  } else if (strcmp(operation, "rename") == 0) {
    move(folder, name);
  } else if (strcmp(operation, "unlink") == 0) {
    change(folder, name, "", NONE);
  } else {
    assert_string_equal(operation, "close");
  }
  return 0;
}

/* ---- Saves ---- */

static const struct weft_gpt_config config = {
    .blocks = PARTS - 2, .dim = 2, .heads = 1, .context = 2, .vocabulary = 256};

/* All floats are the generation's number, so that no two files are the same. */
static void save(struct disk *disk, uint64_t step, uint32_t keep) {
  const struct weft_gpt_files files = {.context = disk, .before = note};
  const struct weft_gpt_training training = {.config = config, .step = step};
  struct weft_gpt_layer_file written[PARTS];
  struct weft_error error;
  disk->generation++;
  for (uint32_t k = 0; k < PARTS; k++) {
    const uint64_t count = weft_gpt_layer_floats(&config, k);
    float *floats = calloc(count, sizeof *floats);
    assert_non_null(floats);
    for (uint64_t i = 0; i < count; i++) {
      floats[i] = (float)disk->generation;
    }
    const struct weft_gpt_layer_state layer = {.layer = k,
                                               .floats = count,
                                               .parameters = floats,
                                               .first_moment = floats,
                                               .second_moment = floats};
    assert_int_equal(weft_gpt_checkpoint_write_layer(&files, disk->dir, &config, step, &layer,
                                                     &written[k], &error),
                     WEFT_OK);
    free(floats);
  }
  assert_int_equal(weft_gpt_checkpoint_commit(&files, disk->dir, &training, written, keep, &error),
                   WEFT_OK);
  disk->committed = disk->generation;
  lose_power(disk);
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place) {
  (void)status;
  (void)type;
  (void)place;
  return remove(path);
}

/* Saves of these steps, one after the other. */
static void run_saves(const uint64_t *steps, uint32_t count, uint32_t keep) {
  char base[] = "/tmp/weft-test-XXXXXX", dir[64];
  assert_non_null(mkdtemp(base));
  (void)snprintf(dir, sizeof dir, "%s/c", base);
  struct disk *disk = calloc(1, sizeof *disk);
  assert_non_null(disk);
  disk->dir = dir;
  for (uint32_t k = 0; k < count; k++) {
    save(disk, steps[k], keep);
  }
  print_message("%" PRIu64 " worlds\n", disk->worlds);
  assert_true(disk->worlds > 1000);
  free(disk);
  assert_int_equal(nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void test_one_after_the_other(void **state) {
  (void)state;
  run_saves((const uint64_t[]){10, 20, 30}, 3, 0);
}

static void test_old_ones_are_removed(void **state) {
  (void)state;
  run_saves((const uint64_t[]){10, 20, 30}, 3, 1);
  run_saves((const uint64_t[]){10, 20, 30}, 3, 2);
}

static void test_the_same_step_again(void **state) {
  (void)state;
  run_saves((const uint64_t[]){10, 10, 10}, 3, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_after_the_other),
      cmocka_unit_test(test_old_ones_are_removed),
      cmocka_unit_test(test_the_same_step_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
