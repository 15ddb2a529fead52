/* Writing and reading checkpoints. The order of operations makes them safe:
 *
 *   each layer    temporary name, write, fsync, close, rename
 *   commit        fsync of the step's folder: the layers' files have their names
 *                 manifest: temporary name, write, fsync, close
 *                 rename to manifest.json: from here on the checkpoint is there
 *                 fsync of the step's folder, of DIR, and of what holds DIR
 *                 only then: removal of what is old or was left over
 *
 * Stopped anywhere, by an error, a signal or a loss of power, a load finds the state
 * before or the one after. A file that is read is checked completely before any of it is used or
 * the caller's memory changes. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/checkpoint/layer_tensors.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/model/aligned_memory.h"

static enum weft_status step_folder(struct weft_gpt_path *folder, const char *dir, uint64_t step,
                                    struct weft_error *error) {
  return weft_gpt_path_join(folder, dir, weft_gpt_step_name(step).text, error);
}

/* The files of a complete checkpoint must not change before there is another manifest. */
static struct weft_gpt_name file_name(const char *folder, uint32_t layer, uint64_t checksum) {
  return weft_gpt_file_is_there(folder, WEFT_GPT_MANIFEST)
             ? weft_gpt_layer_name_again(layer, checksum)
             : weft_gpt_layer_name(layer);
}

/* ---- Writing a layer ---- */

/* A layer's file: its tensors, where their floats are, and the text in front of them. */
struct layer_file {
  struct weft_gpt_tensor tensors[WEFT_GPT_TENSORS_MAX];
  struct weft_gpt_layer_tensor places[WEFT_GPT_TENSORS_MAX];
  uint32_t count;
  struct weft_text header;
};

static void describe_file(struct layer_file *file, const struct weft_gpt_config *config,
                          uint64_t step, uint32_t layer) {
  char layer_text[24], step_text[24];
  (void)snprintf(layer_text, sizeof layer_text, "%" PRIu32, layer);
  (void)snprintf(step_text, sizeof step_text, "%" PRIu64, step);
  const char *const metadata[] = {"format", "pt", "part", layer_text, "step", step_text, NULL};
  file->header = (struct weft_text){.allocator = NULL};
  file->count = weft_gpt_layer_tensors(config, layer, file->tensors, file->places);
  weft_gpt_safetensors_header(&file->header, file->tensors, file->count, metadata);
}

static enum weft_status write_bytes(struct weft_gpt_output *output, const struct layer_file *file,
                                    const struct weft_gpt_layer_state *layer,
                                    struct weft_error *error) {
  WEFT_TRY(weft_gpt_output_write(output, file->header.data, file->header.size, error));
  for (uint32_t k = 0; k < file->count; k++) {
    const float *floats = weft_gpt_layer_array(layer, file->places[k].array);
    WEFT_TRY(weft_gpt_output_write(output, floats + file->places[k].offset, file->tensors[k].bytes,
                                   error));
  }
  return WEFT_OK;
}

static enum weft_status write_file(const struct weft_gpt_files *files, const char *folder,
                                   const struct layer_file *file,
                                   const struct weft_gpt_layer_state *layer,
                                   struct weft_gpt_layer_file *written, struct weft_error *error) {
  struct weft_gpt_output output;
  WEFT_TRY(weft_text_status(&file->header, error));
  WEFT_TRY(
      weft_gpt_output_begin(&output, files, folder, weft_gpt_layer_name(layer->layer).text, error));
  WEFT_TRY(write_bytes(&output, file, layer, error));
  const uint64_t checksum = weft_gpt_checksum_value(&output.checksum);
  const struct weft_gpt_name name = file_name(folder, layer->layer, checksum);
  WEFT_TRY(weft_gpt_output_end(&output, name.text, error));
  *written = (struct weft_gpt_layer_file){.size = output.size, .checksum = checksum};
  return WEFT_OK;
}

enum weft_status weft_gpt_checkpoint_write_layer(
    const struct weft_gpt_files *files, const char *dir, const struct weft_gpt_config *config,
    uint64_t step, const struct weft_gpt_layer_state *layer, struct weft_gpt_layer_file *written,
    struct weft_error *error) {
  struct weft_gpt_path folder;
  struct layer_file file;
  assert(layer->layer < weft_gpt_layer_count(config));
  assert(layer->floats == weft_gpt_layer_floats(config, layer->layer));
  assert(layer->first_moment != NULL && layer->second_moment != NULL);
  WEFT_TRY(step_folder(&folder, dir, step, error));
  WEFT_TRY(weft_gpt_folder_make(files, dir, error));
  WEFT_TRY(weft_gpt_folder_make(files, folder.text, error));
  describe_file(&file, config, step, layer->layer);
  const enum weft_status status = write_file(files, folder.text, &file, layer, written, error);
  weft_text_finish(&file.header);
  return status;
}

/* ---- Writing the manifest ---- */

/* Everything that a commit works with. */
struct commit {
  const struct weft_gpt_files *files;
  const char *dir;
  struct weft_gpt_path folder;
  const struct weft_gpt_training *training;
  uint32_t layer_count;
  struct weft_gpt_manifest_layer *layers;
  struct weft_gpt_name *names;
  struct weft_text text;
};

static enum weft_status check_layer(const struct commit *commit, uint32_t layer,
                                    const struct weft_gpt_layer_file *written,
                                    struct weft_error *error) {
  struct weft_gpt_path path;
  uint64_t size;
  WEFT_TRY(weft_gpt_path_join(&path, commit->folder.text, commit->names[layer].text, error));
  WEFT_TRY(weft_gpt_file_size(path.text, &size, error));
  if (size != written->size) {
    return weft_fail(error, WEFT_ERR_IO, "nothing else may write to this folder",
                     "'%s' has %" PRIu64 " bytes; %" PRIu64 " were written", path.text, size,
                     written->size);
  }
  return WEFT_OK;
}

/* The layers' files, which must be there. */
static enum weft_status gather_layers(struct commit *commit,
                                      const struct weft_gpt_layer_file *written,
                                      struct weft_error *error) {
  for (uint32_t k = 0; k < commit->layer_count; k++) {
    commit->names[k] = file_name(commit->folder.text, k, written[k].checksum);
    commit->layers[k] = (struct weft_gpt_manifest_layer){
        .file = commit->names[k], .size = written[k].size, .checksum = written[k].checksum};
    WEFT_TRY(check_layer(commit, k, &written[k], error));
  }
  return WEFT_OK;
}

static enum weft_status write_manifest(struct commit *commit, struct weft_error *error) {
  struct weft_gpt_output output;
  WEFT_TRY(weft_gpt_manifest_write(&commit->text, commit->training, commit->layers, error));
  WEFT_TRY(weft_gpt_folder_sync(commit->files, commit->folder.text, error));
  WEFT_TRY(
      weft_gpt_output_begin(&output, commit->files, commit->folder.text, WEFT_GPT_MANIFEST, error));
  WEFT_TRY(weft_gpt_output_write(&output, commit->text.data, commit->text.size, error));
  WEFT_TRY(weft_gpt_output_end(&output, WEFT_GPT_MANIFEST, error));
  WEFT_TRY(weft_gpt_folder_sync(commit->files, commit->folder.text, error));
  WEFT_TRY(weft_gpt_folder_sync(commit->files, commit->dir, error));
  return weft_gpt_folder_sync_entry(commit->files, commit->dir, error);
}

static enum weft_status commit_layers(struct commit *commit,
                                      const struct weft_gpt_layer_file *written, uint32_t keep,
                                      struct weft_error *error) {
  WEFT_TRY(gather_layers(commit, written, error));
  WEFT_TRY(write_manifest(commit, error));
  return weft_gpt_steps_clean(commit->files, commit->dir, commit->training->step, commit->names,
                              commit->layer_count, keep, error);
}

enum weft_status weft_gpt_checkpoint_commit(const struct weft_gpt_files *files, const char *dir,
                                            const struct weft_gpt_training *training,
                                            const struct weft_gpt_layer_file *layers, uint32_t keep,
                                            struct weft_error *error) {
  assert(dir != NULL && layers != NULL);
  const uint32_t count = weft_gpt_layer_count(&training->config);
  struct commit commit = {.files = files, .dir = dir, .training = training, .layer_count = count};
  WEFT_TRY(weft_gpt_config_check(&training->config, error));
  WEFT_TRY(step_folder(&commit.folder, dir, training->step, error));
  WEFT_SCOPED_ARENA arena = {.allocator = NULL};
  commit.layers = weft_arena_allocate(&arena, count, sizeof *commit.layers);
  commit.names = weft_arena_allocate(&arena, count, sizeof *commit.names);
  WEFT_TRY(weft_arena_status(&arena, error));
  const enum weft_status status = commit_layers(&commit, layers, keep, error);
  weft_text_finish(&commit.text);
  return status;
}

struct weft_gpt_checkpoint {
  const struct weft_allocator *allocator;
  struct weft_gpt_path folder;
  struct weft_gpt_training training;
  struct weft_gpt_manifest_layer *layers; /* [layer_count] */
};

/* ---- Opening ---- */

/* The newest complete step in dir. */
static enum weft_status find_newest(const char *dir, uint64_t *step, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = NULL};
  struct weft_gpt_step *steps;
  size_t count;
  WEFT_TRY(weft_gpt_steps_list(&arena, dir, &steps, &count, error));
  const size_t all = count;
  while (count > 0 && !steps[count - 1].complete) {
    count--;
  }
  if (count == 0) {
    return weft_fail(error, WEFT_ERR_MISSING, "see that it is the folder of the checkpoints",
                     "no complete checkpoint in '%s', and %zu that are not complete", dir, all);
  }
  *step = steps[count - 1].step;
  return WEFT_OK;
}

static enum weft_status read_manifest(struct weft_gpt_checkpoint *checkpoint,
                                      struct weft_error *error) {
  struct weft_gpt_path path;
  unsigned char *text;
  uint64_t size;
  WEFT_TRY(weft_gpt_path_join(&path, checkpoint->folder.text, WEFT_GPT_MANIFEST, error));
  WEFT_TRY(weft_gpt_file_size(path.text, &size, error));
  if (size > WEFT_GPT_MANIFEST_BYTES_MAX) {
    return weft_fail(error, WEFT_ERR_FORMAT, "name the folder of another step",
                     "'%s' has %" PRIu64 " bytes; the limit is %" PRIu64, path.text, size,
                     WEFT_GPT_MANIFEST_BYTES_MAX);
  }
  WEFT_TRY(weft_gpt_file_read(checkpoint->allocator, path.text, size, &text, error));
  const enum weft_status status =
      weft_gpt_manifest_read(checkpoint->allocator, path.text, (const char *)text, size,
                             &checkpoint->training, &checkpoint->layers, error);
  weft_gpt_free(checkpoint->allocator, text);
  return status;
}

static enum weft_status open_newest(struct weft_gpt_checkpoint *checkpoint, const char *dir,
                                    struct weft_error *error) {
  uint64_t step = 0;
  WEFT_TRY(find_newest(dir, &step, error));
  WEFT_TRY(weft_gpt_path_join(&checkpoint->folder, dir, weft_gpt_step_name(step).text, error));
  WEFT_TRY(read_manifest(checkpoint, error));
  if (checkpoint->training.step != step) {
    return weft_fail(error, WEFT_ERR_FORMAT, "give the folder the name of its step",
                     "'%s/" WEFT_GPT_MANIFEST "' is of step %" PRIu64 "; expected %" PRIu64,
                     checkpoint->folder.text, checkpoint->training.step, step);
  }
  return WEFT_OK;
}

static enum weft_status open_folder(struct weft_gpt_checkpoint *checkpoint, const char *dir,
                                    struct weft_error *error) {
  if (!weft_gpt_file_is_there(dir, WEFT_GPT_MANIFEST)) {
    return open_newest(checkpoint, dir, error);
  }
  const size_t length = strlen(dir); /* its path with the manifest's name was short enough */
  memcpy(checkpoint->folder.text, dir, length + 1);
  return read_manifest(checkpoint, error);
}

enum weft_status weft_gpt_checkpoint_open(const struct weft_allocator *allocator, const char *dir,
                                          struct weft_gpt_checkpoint **out,
                                          struct weft_error *error) {
  assert(dir != NULL && out != NULL);
  struct weft_gpt_checkpoint *checkpoint = weft_gpt_allocate(allocator, 1, sizeof *checkpoint);
  if (checkpoint == NULL) {
    return weft_fail_memory(error, sizeof *checkpoint);
  }
  checkpoint->allocator = allocator;
  const enum weft_status status = open_folder(checkpoint, dir, error);
  if (status < 0) {
    weft_gpt_checkpoint_close(checkpoint);
    return status;
  }
  *out = checkpoint;
  return WEFT_OK;
}

void weft_gpt_checkpoint_close(struct weft_gpt_checkpoint *checkpoint) {
  if (checkpoint != NULL) {
    weft_gpt_free(checkpoint->allocator, checkpoint->layers);
    weft_gpt_free(checkpoint->allocator, checkpoint);
  }
}

const struct weft_gpt_training *weft_gpt_checkpoint_training(
    const struct weft_gpt_checkpoint *checkpoint) {
  assert(checkpoint != NULL);
  return &checkpoint->training;
}

/* ---- Reading a layer ---- */

/* One layer's file on its way from disk to the layer's arrays. */
struct load {
  const struct weft_gpt_manifest_layer *entry;
  struct weft_gpt_path path;
  struct weft_gpt_tensor tensors[WEFT_GPT_TENSORS_MAX];
  struct weft_gpt_layer_tensor places[WEFT_GPT_TENSORS_MAX];
  uint32_t count;
  unsigned char *bytes;
};

static enum weft_status check_model(const struct weft_gpt_checkpoint *checkpoint,
                                    const struct weft_gpt_layer_state *layer,
                                    struct weft_error *error) {
  const struct weft_gpt_config *config = &checkpoint->training.config;
  const char *hint = "use the model that the checkpoint was written from";
  if (layer->layer >= weft_gpt_layer_count(config)) {
    return weft_fail(error, WEFT_ERR_USAGE, hint,
                     "'%s' has %" PRIu32 " parts; there is no part %" PRIu32,
                     checkpoint->folder.text, weft_gpt_layer_count(config), layer->layer);
  }
  const uint64_t floats = weft_gpt_layer_floats(config, layer->layer);
  if (layer->floats != floats) {
    return weft_fail(error, WEFT_ERR_USAGE, hint,
                     "part %" PRIu32 " of '%s' has %" PRIu64 " floats; expected %" PRIu64,
                     layer->layer, checkpoint->folder.text, floats, layer->floats);
  }
  return WEFT_OK;
}

/* Before memory is allocated: the size in the manifest is possible, and the file has it. */
static enum weft_status check_size(const struct load *load, struct weft_error *error) {
  uint64_t data = 0, size;
  for (uint32_t k = 0; k < load->count; k++) {
    data += load->tensors[k].bytes;
  }
  if (load->entry->size < data || load->entry->size - data > 8 + WEFT_GPT_HEADER_BYTES_MAX) {
    return weft_fail(error, WEFT_ERR_FORMAT, "name the folder of another step",
                     "'%s': the manifest says %" PRIu64 " bytes; expected %" PRIu64
                     " of data, and a header",
                     load->path.text, load->entry->size, data);
  }
  WEFT_TRY(weft_gpt_file_size(load->path.text, &size, error));
  if (size != load->entry->size) {
    return weft_fail(error, WEFT_ERR_FORMAT, "name the folder of another step",
                     "'%s' has %" PRIu64 " bytes; expected %" PRIu64 ", as the manifest says",
                     load->path.text, size, load->entry->size);
  }
  return WEFT_OK;
}

static enum weft_status check_bytes(struct load *load, struct weft_error *error) {
  const uint64_t checksum = weft_gpt_checksum_of(load->bytes, (size_t)load->entry->size);
  if (checksum != load->entry->checksum) {
    return weft_fail(error, WEFT_ERR_FORMAT, "the file is damaged: name the folder of another step",
                     "'%s' has the checksum %016" PRIx64 "; expected %016" PRIx64
                     ", as the manifest says",
                     load->path.text, checksum, load->entry->checksum);
  }
  return weft_gpt_safetensors_find(load->path.text, load->bytes, load->entry->size, load->tensors,
                                   load->count, error);
}

/* Between tensors there are zeros. */
static void copy_floats(const struct load *load, struct weft_gpt_layer_state *layer) {
  for (uint32_t array = 0; array < WEFT_GPT_ARRAYS; array++) {
    float *floats = weft_gpt_layer_array(layer, (enum weft_gpt_array)array);
    if (floats != NULL) {
      memset(floats, 0, (size_t)layer->floats * sizeof *floats);
    }
  }
  for (uint32_t k = 0; k < load->count; k++) {
    float *floats = weft_gpt_layer_array(layer, load->places[k].array);
    if (floats != NULL) {
      memcpy(floats + load->places[k].offset, load->bytes + load->tensors[k].begin,
             (size_t)load->tensors[k].bytes);
    }
  }
}

enum weft_status weft_gpt_checkpoint_read_layer(const struct weft_gpt_checkpoint *checkpoint,
                                                struct weft_gpt_layer_state *layer,
                                                struct weft_error *error) {
  assert(layer->parameters != NULL);
  struct load load;
  WEFT_TRY(check_model(checkpoint, layer, error));
  load.entry = &checkpoint->layers[layer->layer];
  load.count =
      weft_gpt_layer_tensors(&checkpoint->training.config, layer->layer, load.tensors, load.places);
  WEFT_TRY(weft_gpt_path_join(&load.path, checkpoint->folder.text, load.entry->file.text, error));
  WEFT_TRY(check_size(&load, error));
  WEFT_TRY(weft_gpt_file_read(checkpoint->allocator, load.path.text, load.entry->size, &load.bytes,
                              error));
  const enum weft_status status = check_bytes(&load, error);
  if (status == WEFT_OK) {
    copy_floats(&load, layer);
  }
  weft_gpt_free(checkpoint->allocator, load.bytes);
  return status;
}
