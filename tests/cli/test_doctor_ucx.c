/* What `weft doctor` says of UCX: whether it is in use, and who has switched it off. */
#define _DEFAULT_SOURCE /* setenv */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cli/mca_setting.h"

static void check(const char *name, const char *library, const char *expected) {
  struct weft_cli_mpi mpi = {.name = name};
  snprintf(mpi.library, sizeof mpi.library, "%s", library);
  weft_cli_mca_describe(&mpi);
  assert_string_equal(mpi.ucx, expected);
}

/* An MPICH is built on it, or is not. */
static void test_mpich(void **state) {
  (void)state;
  unsetenv("UCX_TLS");
  check("mpich", "MPICH Version: 4.0.2, device ch4:ucx",
        "in use, for good: this MPICH is built on it (ch4:ucx); UCX_TLS can choose its "
        "transports, and is not set");
  setenv("UCX_TLS", "tcp,self", 1);
  check("mpich", "MPICH Version: 4.0.2, device ch4:ucx",
        "in use, for good: this MPICH is built on it (ch4:ucx); UCX_TLS = tcp,self");
  check("mpich", "MPICH Version: 4.1, device ch4:ofi",
        "not in use: this MPICH is built on libfabric (ch4:ofi)");
  check("mpich", "MPICH Version: 3.4, device ch3:sock",
        "not in use: this MPICH is built on code of its own (ch3:sock)");
  check("mpich", "Intel(R) MPI Library 2021.8",
        "not known: the library does not say what it is built on");
  check("mpich", "", ""); /* it did not start */
}

/* Open MPI has a switch. */
static void test_open_mpi(void **state) {
  (void)state;
  setenv("OMPI_MCA_pml", "^ucx,cm", 1);
  check("openmpi", "Open MPI v4.1.4", "switched off: pml = ^ucx,cm, in OMPI_MCA_pml");
  setenv("OMPI_MCA_pml", "ob1", 1);
  check("openmpi", "Open MPI v4.1.4", "switched off: pml = ob1, in OMPI_MCA_pml");
  setenv("OMPI_MCA_pml", "ucx", 1);
  check("openmpi", "Open MPI v4.1.4", "may be used: pml = ucx, in OMPI_MCA_pml");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_mpich), cmocka_unit_test(test_open_mpi)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
