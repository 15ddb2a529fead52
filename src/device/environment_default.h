/* Variables of the environment that other libraries read when they start, and for which they have no
 * function. Weft sets those below in its own process where its user has not, just before it starts
 * that library; all go through here. include/weft/base.h and docs/mpi.md list them for callers. */
#ifndef DEVICE_ENVIRONMENT_DEFAULT_H
#define DEVICE_ENVIRONMENT_DEFAULT_H

#define WEFT_ENVIRONMENT_VARIABLES(X) \
  X(CUDA_DEVICE_MAX_CONNECTIONS)      \
  X(NCCL_HOSTID)                      \
  X(NCCL_IGNORE_CPU_AFFINITY)         \
  X(NCCL_RUNTIME_CONNECT)             \
  X(OMPI_MCA_ess_singleton_isolated)  \
  X(OMPI_MCA_mpi_yield_when_idle)

enum weft_environment_variable {
#define WEFT_ENVIRONMENT_VARIABLE(name) WEFT_ENVIRONMENT_##name,
  WEFT_ENVIRONMENT_VARIABLES(WEFT_ENVIRONMENT_VARIABLE)
#undef WEFT_ENVIRONMENT_VARIABLE
};

/* Nothing happens to a variable that is set, whatever its value. Like setenv(), not while another
 * thread reads the environment. */
void weft_environment_default(enum weft_environment_variable variable, const char *value);

#endif
