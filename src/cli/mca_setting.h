/* How Open MPI is set: by variables of the environment, or in its files. */
#ifndef CLI_MCA_SETTING_H
#define CLI_MCA_SETTING_H

#include "cli/doctor_mpi.h"

/* Fills ucx and copying from the settings, or from what the library says of itself. */
void weft_cli_mca_describe(struct weft_cli_mpi *mpi);

#endif
