/* The manifest of a checkpoint, "weft-checkpoint/1": how far training was and with what,
 * and the files of the layers with their sizes and checksums. Its last line has a
 * checksum of everything before it, so that every changed byte is detected. */
#ifndef GPT_MANIFEST_H
#define GPT_MANIFEST_H

#include "trainer/checkpoint/checkpoint_folder.h"

#define WEFT_GPT_MANIFEST_SCHEMA "weft-checkpoint/1"
#define WEFT_GPT_MANIFEST_BYTES_MAX ((uint64_t)2 << 20)

struct weft_gpt_manifest_layer {
  struct weft_gpt_name file;
  uint64_t size, checksum;
};

/* Adds the text. WEFT_ERR_USAGE names a field that is not a finite number, or too large
 * for JSON. layers[layer_count]. */
enum weft_status weft_gpt_manifest_write(struct weft_text *text,
                                         const struct weft_gpt_training *training,
                                         const struct weft_gpt_manifest_layer *layers,
                                         struct weft_error *error);

/* Reads a text that is called `name`; on success *layers [layer_count] is the caller's, to
 * give back with weft_gpt_free(). WEFT_ERR_FORMAT names the field. */
enum weft_status weft_gpt_manifest_read(const struct weft_allocator *allocator, const char *name,
                                        const char *text, uint64_t size,
                                        struct weft_gpt_training *training,
                                        struct weft_gpt_manifest_layer **layers,
                                        struct weft_error *error);

#endif
