/* The files that a training writes besides its checkpoints: --profile and -o. */
#ifndef GPT_TRAIN_FILES_H
#define GPT_TRAIN_FILES_H

#include "trainer/command/train_progress.h"

/* Creates the folder of checkpoints, if it is missing, and checks the folders of all other files:
 * before hours of training, not after. WEFT_CLI_OK, or another exit status after printing what is
 * wrong. */
int weft_train_check_files(const struct weft_train_setup *setup);

/* Writes the requested files. WEFT_CLI_OK, or another exit status after printing why. */
int weft_train_write_files(const struct weft_train_setup *setup,
                           const struct weft_train_progress *progress,
                           const struct weft_gpt_trainer *trainer);

#endif
