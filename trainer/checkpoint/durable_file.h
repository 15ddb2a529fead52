/* Files and folders of checkpoints, one operation at a time, each behind the hook of
 * struct weft_gpt_files. Interrupted calls are repeated; a failed fsync is not, since
 * the pages it could not write count as clean afterwards. */
#ifndef GPT_DURABLE_FILE_H
#define GPT_DURABLE_FILE_H

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/crc64.h"

#define WEFT_GPT_PATH_MAX 4096
/* What temporary names begin with; the final name follows. */
#define WEFT_GPT_TEMPORARY ".weft-"

struct weft_gpt_path {
  char text[WEFT_GPT_PATH_MAX];
};

/* folder/name. WEFT_ERR_USAGE when it is too long. path may not hold folder or name. */
enum weft_status weft_gpt_path_join(struct weft_gpt_path *path, const char *folder,
                                    const char *name, struct weft_error *error);

/* ---- Folders ---- */

/* There may be one already. */
enum weft_status weft_gpt_folder_make(const struct weft_gpt_files *files, const char *folder,
                                      struct weft_error *error);
/* Entries created, renamed and removed in it survive a loss of power after this. */
enum weft_status weft_gpt_folder_sync(const struct weft_gpt_files *files, const char *folder,
                                      struct weft_error *error);
/* The same for the folder's own entry in its parent, because an interrupted run may have created
 * it. A parent that may not be read is skipped: we did not create the folder. */
enum weft_status weft_gpt_folder_sync_entry(const struct weft_gpt_files *files, const char *folder,
                                            struct weft_error *error);
/* Stays if something is in it. */
enum weft_status weft_gpt_folder_remove(const struct weft_gpt_files *files, const char *folder,
                                        struct weft_error *error);
/* Inside of a folder; replaces what is there. */
enum weft_status weft_gpt_file_rename(const struct weft_gpt_files *files, const char *folder,
                                      const char *from, const char *to, struct weft_error *error);
enum weft_status weft_gpt_file_remove(const struct weft_gpt_files *files, const char *folder,
                                      const char *name, struct weft_error *error);

/* ---- A file that is written ---- */

/* Under a temporary name until weft_gpt_output_end(). After a failure of any of these
 * nothing of it is left, and end() must not be called. */
struct weft_gpt_output {
  const struct weft_gpt_files *files;
  const char *folder;        /* borrowed */
  char temporary[64];        /* name */
  struct weft_gpt_path path; /* of the temporary */
  int descriptor;
  uint64_t size;
  struct weft_gpt_checksum checksum;
};

enum weft_status weft_gpt_output_begin(struct weft_gpt_output *output,
                                       const struct weft_gpt_files *files, const char *folder,
                                       const char *name, struct weft_error *error);
enum weft_status weft_gpt_output_write(struct weft_gpt_output *output, const void *data,
                                       uint64_t size, struct weft_error *error);
/* Syncs the file and gives it its name; the folder is not synced. */
enum weft_status weft_gpt_output_end(struct weft_gpt_output *output, const char *name,
                                     struct weft_error *error);

/* ---- A file that is read ---- */

/* Whether a plain file exists; false also when that cannot be determined. */
bool weft_gpt_file_is_there(const char *folder, const char *name);
/* WEFT_ERR_MISSING, WEFT_ERR_IO; WEFT_ERR_FORMAT if it is not a plain file. */
enum weft_status weft_gpt_file_size(const char *path, uint64_t *size, struct weft_error *error);
/* All bytes of a file that has `size` of them; to be freed with weft_gpt_free(). */
enum weft_status weft_gpt_file_read(const struct weft_allocator *allocator, const char *path,
                                    uint64_t size, unsigned char **bytes, struct weft_error *error);

/* "cannot ACTION 'PATH': reason"; WEFT_ERR_IO, or WEFT_ERR_MISSING for a file that is
 * not there. */
enum weft_status weft_gpt_fail_system(struct weft_error *error, int code, const char *action,
                                      const char *path);

#endif
