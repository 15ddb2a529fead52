/* The GPUs of --device cuda. */
#ifndef CLI_GPUS_H
#define CLI_GPUS_H

#include <weft/cuda.h>

#include "cli/args/option_parser.h"

/* Opens those of --gpus and --partitions for that many ranks; NULL without --device cuda.
 * WEFT_CLI_OK, or another exit status after printing what is wrong. */
int weft_cli_open_gpus(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       uint32_t rank_count, struct weft_cuda **out);

#endif
