/* Finds the text files under a folder. */
#ifndef GPT_TEXT_FILES_H
#define GPT_TEXT_FILES_H

#include <weft/support.h>

/* Larger files under a folder are left out. */
#define WEFT_GPT_FILE_SIZE_MAX (UINT64_C(16) << 20)

/* Zero-initialise and set the arena's `allocator`. */
struct weft_gpt_paths {
  struct weft_arena arena; /* of the paths */
  char **items;
  uint64_t count;
  uint64_t capacity;
};

/* Adds the text files under a folder, sorted by the bytes of their paths: names that end as
 * sources, headers, scripts and documents do. Symbolic links, hidden files, folders that begin
 * with "build" and files above WEFT_GPT_FILE_SIZE_MAX are left out. WEFT_ERR_IO for an entry that
 * cannot be read. */
enum weft_status weft_gpt_paths_find(struct weft_gpt_paths *paths, const char *folder,
                                     struct weft_error *error);
void weft_gpt_paths_finish(struct weft_gpt_paths *paths);

#endif
