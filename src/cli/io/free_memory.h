/* Memory that this process can still allocate. */
#ifndef CLI_FREE_MEMORY_H
#define CLI_FREE_MEMORY_H

#include <stdint.h>

/* Bytes that are free on the machine, or that its control groups leave to this process if that is
 * less; 0: unknown. */
uint64_t weft_cli_free_memory(void);

#endif
