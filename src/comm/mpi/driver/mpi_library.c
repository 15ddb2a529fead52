/* Which MPI this is: the first line of its version string, and the device, which MPICH and its
 * kin name further down ("MPICH Device: ch4:ucx"). */
#include <stdio.h>
#include <string.h>

#include "comm/mpi/driver/mpi_world.h"

/* The word after "Device:"; "" when none is named. */
static void find_device(const char *text, char *out, size_t size) {
  static const char label[] = "Device:";
  const char *at = strstr(text, label);
  at = at != NULL ? at + sizeof label - 1 : "";
  at += strspn(at, " \t");
  (void)snprintf(out, size, "%.*s", (int)strcspn(at, " \t\n"), at);
}

void weft_mpi_library_describe(char *out, size_t size) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "", device[40];
  int length = 0;
  (void)MPI_Get_library_version(text, &length);
  find_device(text, device, sizeof device);
  text[strcspn(text, "\n")] = '\0';
  for (char *at = text; *at != '\0'; at++) {
    if (*at == '\t') {
      *at = ' ';
    }
  }
  (void)snprintf(out, size, "%.200s%s%s", text, device[0] != '\0' ? ", device " : "", device);
}
