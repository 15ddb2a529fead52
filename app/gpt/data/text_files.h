/* Which files under a folder are text to train on. */
#ifndef GPT_CORPUS_FILES_H
#define GPT_CORPUS_FILES_H

#include <weft/base.h>

/* Larger ones under a folder are data, not text. */
#define WEFT_GPT_FILE_SIZE_MAX (UINT64_C(16) << 20)

/* Zero-initialise and set `allocator`. */
struct weft_gpt_paths {
  const struct weft_allocator *allocator;
  char **items; /* owned */
  uint64_t count;
  uint64_t capacity;
};

/* Adds the text files under a folder, in the order of their paths' bytes: those that
 * end as sources, headers, scripts and documents do. Left out: symbolic links, what is
 * hidden, folders that begin with "build", files above WEFT_GPT_FILE_SIZE_MAX. What
 * cannot be looked at is WEFT_ERR_IO. */
enum weft_status weft_gpt_paths_find(struct weft_gpt_paths *paths, const char *folder,
                                     struct weft_error *error);
void weft_gpt_paths_finish(struct weft_gpt_paths *paths);

#endif
