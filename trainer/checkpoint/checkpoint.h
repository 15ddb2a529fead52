/* Checkpoints: a folder per step under DIR, with a safetensors file per layer and a
 * manifest, written so that a load gives exactly the old or the new state.
 *
 *   DIR/step-00000200/part-0003.safetensors   weights and AdamW's moments
 *   DIR/step-00000200/manifest.json           written last
 *
 * A checkpoint is there when its manifest is. Where a step is written again, its layers
 * are part-0003.CHECKSUM.safetensors, so that the old ones stay until then; the manifest
 * has their names. */
#ifndef GPT_CHECKPOINT_H
#define GPT_CHECKPOINT_H

#include "trainer/train/stage.h"

/* What the manifest says besides the list of files and their checksums. */
struct weft_gpt_training {
  struct weft_gpt_config config;
  uint64_t step;      /* steps done */
  uint64_t data_hash; /* of the dataset */
  uint64_t data_seed;
  uint64_t batch; /* rows of a step */
  uint32_t microbatches;
  double rate, rate_min, beta1, beta2, epsilon, decay, clip;
  uint64_t warmup_steps, total_steps;
};

/* How files are written; tests make any call fail, or stop there. NULL fields: the
 * real ones. */
struct weft_gpt_files {
  void *context;
  /* Asked before each operation ("open", "write", "fsync", "close", "rename", "mkdir",
   * "unlink", "fsync-directory") on a path; nonzero makes it fail with that errno. */
  int (*before)(void *context, const char *operation, const char *path);
};

/* One layer's file: temporary name, fsync, rename. Any thread; layers may be written at
 * once by different ranks. Writes the file's size and checksum (of all its bytes). */
struct weft_gpt_layer_file {
  uint64_t size;
  uint64_t checksum;
};
enum weft_status weft_gpt_checkpoint_write_layer(
    const struct weft_gpt_files *files, const char *dir, const struct weft_gpt_config *config,
    uint64_t step, const struct weft_gpt_layer_state *layer, struct weft_gpt_layer_file *written,
    struct weft_error *error);
/* The manifest, after all layers [layer_count]; then the folders are synced. After that
 * the checkpoint is there. Then older ones beyond `keep` (0: keep all, else this one
 * counts) are removed, and incomplete ones of earlier steps; what is of later steps is
 * left alone. An error in that is returned too: the checkpoint is there nevertheless.
 * WEFT_ERR_IO; WEFT_ERR_MISSING for a layer that is not there; WEFT_ERR_USAGE for a number
 * that the manifest cannot hold. */
enum weft_status weft_gpt_checkpoint_commit(const struct weft_gpt_files *files, const char *dir,
                                            const struct weft_gpt_training *training,
                                            const struct weft_gpt_layer_file *layers, uint32_t keep,
                                            struct weft_error *error);

/* Removes what was written of a step without a manifest. After a failure
 * only: it does not wait for other ranks. */
void weft_gpt_checkpoint_discard(const struct weft_gpt_files *files, const char *dir,
                                 uint64_t step);

/* A checkpoint to read: `dir` is DIR (its complete one of the highest step) or one step's
 * folder. WEFT_ERR_MISSING if there is none; WEFT_ERR_FORMAT if its manifest is damaged:
 * an older one is not taken instead. */
struct weft_gpt_checkpoint;
enum weft_status weft_gpt_checkpoint_open(const struct weft_allocator *allocator, const char *dir,
                                          struct weft_gpt_checkpoint **out,
                                          struct weft_error *error);
const struct weft_gpt_training *weft_gpt_checkpoint_training(
    const struct weft_gpt_checkpoint *checkpoint);
/* Checks size, checksum, header, names, dtypes and shapes before a float is used; the
 * moments may be NULL in `layer` where only weights are wanted. WEFT_ERR_FORMAT names
 * the file and what is wrong in it. */
enum weft_status weft_gpt_checkpoint_read_layer(const struct weft_gpt_checkpoint *checkpoint,
                                                struct weft_gpt_layer_state *layer,
                                                struct weft_error *error);
void weft_gpt_checkpoint_close(struct weft_gpt_checkpoint *checkpoint);

#endif
