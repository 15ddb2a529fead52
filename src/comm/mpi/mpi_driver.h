/* What an MPI driver exports: one table, under one name. The library links no MPI; it loads
 * weft-mpi-openmpi.so or weft-mpi-mpich.so (src/comm/mpi/driver, compiled once against each) and
 * calls it through this table. Both sides are of one version, which is checked. */
#ifndef COMM_MPI_DRIVER_H
#define COMM_MPI_DRIVER_H

#include "comm/comm_registry.h"

/* A world as the library knows it; the driver's begins with it. */
struct weft_mpi {
  struct weft_comm comm; /* first */
  const struct weft_mpi_driver *driver;
};

struct weft_mpi_driver {
  const char *version;        /* WEFT_VERSION; first, so that it can always be read */
  const char *implementation; /* "openmpi" */
  /* As the functions of weft/comm.h; `options` is never NULL. */
  enum weft_status (*open)(const struct weft_allocator *allocator,
                           const struct weft_comm_options *options, struct weft_mpi **out,
                           struct weft_error *error);
  void (*close)(struct weft_mpi *world);
  struct weft_transport *(*endpoint)(struct weft_mpi *world);
  void (*abandon)(struct weft_mpi *world, int exit_status);
  void (*facts)(const struct weft_mpi *world, struct weft_comm_facts *facts);
  enum weft_status (*pingpong)(struct weft_mpi *world, const struct weft_comm_pingpong *pingpong,
                               struct weft_error *error);
};

#define WEFT_MPI_DRIVER_SYMBOL "weft_mpi_driver_table"

/* The MPI whose launcher started this process, by its environment: "openmpi", "mpich"; NULL: no
 * launcher did. */
const char *weft_mpi_launcher(void);

#endif
