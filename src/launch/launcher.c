/* Launchers and the environment variables that they set: mpirun of Open MPI, PMI (MPICH and
 * its kin), Slurm. */
#include <stdlib.h>
#include <string.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "comm/mpi/mpi_driver.h"
#include "launch/supervisor.h"

bool weft_launch_read_number(const char *text, uint64_t *number) {
  char *end = NULL;
  if (text == NULL || text[0] < '0' || text[0] > '9') {
    return false;
  }
  *number = strtoull(text, &end, 10);
  return *end == '\0';
}

/* The first of these variables that is a number. */
static uint32_t first_number(const char *const *names, size_t count, uint32_t otherwise) {
  for (size_t i = 0; i < count; i++) {
    uint64_t number;
    if (weft_launch_read_number(getenv(names[i]), &number) && number <= UINT32_MAX) {
      return (uint32_t)number;
    }
  }
  return otherwise;
}

static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                    "SLURM_PROCID"};

bool weft_launch_rank_in(const char *environment, size_t size, uint32_t *rank) {
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(ranks); k++) {
    const size_t length = strlen(ranks[k]);
    for (const char *at = environment; at < environment + size; at += strlen(at) + 1) {
      uint64_t number;
      if (strncmp(at, ranks[k], length) == 0 && at[length] == '=' &&
          weft_launch_read_number(at + length + 1, &number) && number <= UINT32_MAX) {
        *rank = (uint32_t)number;
        return true;
      }
    }
  }
  return false;
}

struct weft_launch_info weft_launch_info(void) {
  static const char *const counts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
  static const char *const local_counts[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
  const char *launcher = weft_mpi_launcher();
  if (launcher == NULL) {
    return (struct weft_launch_info){.rank_count = 1, .ranks_on_host = 1};
  }
  const uint32_t count = first_number(counts, WEFT_ARRAY_LENGTH(counts), 1);
  return (struct weft_launch_info){
      .launcher = launcher,
      .rank = first_number(ranks, WEFT_ARRAY_LENGTH(ranks), 0),
      .rank_count = count,
      .ranks_on_host = first_number(local_counts, WEFT_ARRAY_LENGTH(local_counts), count)};
}
