/* The GPUs of --device cuda. */
#ifndef CLI_GPUS_H
#define CLI_GPUS_H

#include <weft/cuda.h>

#include "cli/args/option_parser.h"
#include "cli/job.h"

/* Opens those of --gpus and --partitions for that many ranks; NULL without --device cuda. As a rank
 * of a job (not NULL), only for that one, which is rank k of its host: it has the k-th of them,
 * counted around. WEFT_CLI_OK, or another exit status after printing what is wrong. */
int weft_cli_open_gpus(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       const struct weft_cli_job *job, uint32_t rank_count, struct weft_cuda **out);

#endif
