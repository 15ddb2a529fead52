/* The files that a training leaves beside its checkpoints: --profile, -o and --curve. */
#ifndef GPT_TRAIN_FILES_H
#define GPT_TRAIN_FILES_H

#include "gpt/command/train_progress.h"

/* Makes the folder of checkpoints, if it is not there, and looks whether the folders of
 * all other files are: before hours of training, not after. WEFT_CLI_OK, or another exit
 * status after having said what is wrong. */
int weft_cli_train_check_files(const struct weft_cli_training *training);

/* Writes what was asked for. WEFT_CLI_OK, or another exit status after having said why. */
int weft_cli_train_write_files(const struct weft_cli_training *training,
                               const struct weft_cli_train_progress *progress,
                               const struct weft_gpt_trainer *trainer);

#endif
