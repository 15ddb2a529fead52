/* A folder of checkpoints: names, listing, and removal of old steps.
 *
 * A layer's file is part-0003.safetensors. Where its step has a manifest already, and a
 * checkpoint is about to be replaced, it is part-0003.CHECKSUM.safetensors: the
 * files that the manifest names stay until there is another manifest. */
#ifndef GPT_CHECKPOINT_FOLDER_H
#define GPT_CHECKPOINT_FOLDER_H

#include <weft/support.h>

#include "trainer/checkpoint/durable_file.h"

#define WEFT_GPT_MANIFEST "manifest.json"
/* The manifest of a checkpoint that is being removed; also where one is written. */
#define WEFT_GPT_MANIFEST_GONE WEFT_GPT_TEMPORARY WEFT_GPT_MANIFEST

struct weft_gpt_name {
  char text[56];
};

struct weft_gpt_name weft_gpt_step_name(uint64_t step);
/* Whether it is what weft_gpt_step_name() writes. */
bool weft_gpt_step_of_name(const char *name, uint64_t *step);
struct weft_gpt_name weft_gpt_layer_name(uint32_t layer);
struct weft_gpt_name weft_gpt_layer_name_again(uint32_t layer, uint64_t checksum);
/* Whether it is what one of these two writes. */
bool weft_gpt_layer_of_name(const char *name, uint32_t *layer);

/* A step's folder. */
struct weft_gpt_step {
  uint64_t step;
  bool complete; /* has a manifest */
};

/* In ascending order, in the arena. WEFT_ERR_MISSING when dir is not there. */
enum weft_status weft_gpt_steps_list(struct weft_arena *arena, const char *dir,
                                     struct weft_gpt_step **steps, size_t *count,
                                     struct weft_error *error);

/* Removes incomplete steps before `step`, complete ones before it beyond the newest
 * `keep` (0: all stay), and in its own folder all files that are not in `names`. Files
 * that no checkpoint has are left alone, and so are the folders they are in. */
enum weft_status weft_gpt_steps_clean(const struct weft_gpt_files *files, const char *dir,
                                      uint64_t step, const struct weft_gpt_name *names,
                                      uint32_t layer_count, uint32_t keep,
                                      struct weft_error *error);

#endif
