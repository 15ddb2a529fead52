/* Reading checkpoints. A file is checked completely before any of it is used or the caller's
 * memory changes. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/checkpoint/layer_tensors.h"
#include "gpt/checkpoint/manifest.h"
#include "gpt/model/aligned_memory.h"

struct weft_gpt_checkpoint {
  const struct weft_allocator *allocator;
  struct weft_gpt_path folder;
  struct weft_gpt_training training;
  struct weft_gpt_manifest_layer *layers; /* [layer_count] */
};

/* ---- Opening ---- */

/* The newest complete step in dir. */
static enum weft_status find_newest(const char *dir, uint64_t *step, struct weft_error *error) {
  struct weft_gpt_step *steps;
  size_t count;
  WEFT_TRY(weft_gpt_steps_list(dir, &steps, &count, error));
  const size_t all = count;
  while (count > 0 && !steps[count - 1].complete) {
    count--;
  }
  if (count > 0) {
    *step = steps[count - 1].step;
  }
  weft_gpt_free(NULL, steps);
  if (count == 0) {
    return weft_fail(error, WEFT_ERR_MISSING, "see that it is the folder of the checkpoints",
                     "no complete checkpoint in '%s', and %zu that are not complete", dir, all);
  }
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

/* ---- A layer ---- */

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
