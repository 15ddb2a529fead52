/* One training at a time writes checkpoints into a folder. The lock is flock()'s on a file in the
 * folder: the system drops it when the process ends, however it ends, so a file that was left
 * behind does not matter. Over NFS it holds between hosts where the server has locks; where a file
 * system has none, folders are not protected. */
#ifndef GPT_CHECKPOINT_LOCK_H
#define GPT_CHECKPOINT_LOCK_H

#include <weft/base.h>

/* -1: not held. */
struct weft_gpt_checkpoint_lock {
  int descriptor;
};

/* Creates the folder if it is missing. WEFT_ERR_USAGE when another process has the lock: the message
 * names it. A folder that cannot be written to is not locked and is no error here. */
enum weft_status weft_gpt_checkpoint_lock(const char *dir, struct weft_gpt_checkpoint_lock *lock,
                                          struct weft_error *error);
/* Removes the file, and drops the lock if it is held. */
void weft_gpt_checkpoint_unlock(const char *dir, struct weft_gpt_checkpoint_lock *lock);

#endif
