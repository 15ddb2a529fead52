/* What an MPI driver exports: one table, under one name. The library links no MPI; it loads
 * weft-mpi-openmpi.so or weft-mpi-mpich.so (src/comm/mpi/driver, compiled once against each), whose
 * worlds are of the driver's kind. Both sides are of one version, which is checked. */
#ifndef COMM_MPI_DRIVER_H
#define COMM_MPI_DRIVER_H

#include "comm/comm_registry.h"

struct weft_mpi_driver {
  const char *version; /* WEFT_VERSION; first, so that it can always be read */
  const struct weft_comm_kind *kind;
};

#define WEFT_MPI_INFO \
  { .name = "mpi", .process_per_rank = true, .progress_thread = true, .gpus = true }

#define WEFT_MPI_DRIVER_SYMBOL "weft_mpi_driver_table"

/* The MPI whose launcher started this process, by its environment: "openmpi", "mpich"; NULL: no
 * launcher did. */
const char *weft_mpi_launcher(void);

#endif
