/* Settings of Open MPI ("MCA parameters"), where it looks for them, first found first; and
 * what an MPICH says of itself. */
#include "cli/mca_setting.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

enum { VALUE_SIZE = 80 };

struct setting {
  char value[VALUE_SIZE];
  char place[PATH_MAX]; /* variable or file */
};

/* "key = value" on a line of its own. */
static bool find_in_file(const char *path, const char *key, char value[VALUE_SIZE]) {
  const size_t key_size = strlen(key);
  char line[512];
  bool found = false;
  FILE *file = fopen(path, "re");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    const char *at = line + strspn(line, " \t");
    if (strncmp(at, key, key_size) != 0) {
      continue;
    }
    at += key_size;
    at += strspn(at, " \t");
    if (*at == '=') {
      at += 1 + strspn(at + 1, " \t");
      (void)snprintf(value, VALUE_SIZE, "%.*s", (int)strcspn(at, " \t\r\n"), at);
      found = true; /* the last one counts */
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return found;
}

static bool find_setting(const char *key, struct setting *setting) {
  const char *home = getenv("HOME"), *prefix = getenv("OPAL_PREFIX");
  const struct {
    const char *root, *rest;
  } files[] = {{home != NULL ? home : "", ".openmpi/mca-params.conf"},
               {prefix != NULL ? prefix : "/usr", "etc/openmpi-mca-params.conf"},
               {"/etc", "openmpi/openmpi-mca-params.conf"}};
  (void)snprintf(setting->place, sizeof setting->place, "OMPI_MCA_%s", key);
  const char *variable = getenv(setting->place);
  if (variable != NULL) {
    (void)snprintf(setting->value, sizeof setting->value, "%s", variable);
    return true;
  }
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(files); k++) {
    (void)snprintf(setting->place, sizeof setting->place, "%s/%s", files[k].root, files[k].rest);
    if (find_in_file(setting->place, key, setting->value)) {
      return true;
    }
  }
  return false;
}

/* A list of components: those to take, or after ^ those to leave. */
static bool leaves_out(const char *list, const char *name) {
  const bool excludes = list[0] == '^';
  const size_t name_size = strlen(name);
  bool listed = false;
  for (const char *at = list + (excludes ? 1 : 0); *at != '\0';) {
    const size_t size = strcspn(at, ",");
    listed = listed || (size == name_size && memcmp(at, name, size) == 0);
    at += size + (at[size] == ',' ? 1 : 0);
  }
  return excludes == listed;
}

static void describe_ucx(struct weft_cli_mpi *mpi) {
  struct setting setting;
  if (!find_setting("pml", &setting)) {
    (void)snprintf(mpi->ucx, sizeof mpi->ucx,
                   "not switched off; OMPI_MCA_pml=^ucx does that, if messages hang or fail");
    return;
  }
  (void)snprintf(mpi->ucx, sizeof mpi->ucx, "%s: pml = %.40s, in %.80s",
                 leaves_out(setting.value, "ucx") ? "switched off" : "may be used", setting.value,
                 setting.place);
}

static void describe_copying(struct weft_cli_mpi *mpi) {
  static const char *const keys[] = {"btl_vader_single_copy_mechanism",
                                     "btl_sm_single_copy_mechanism"};
  struct setting setting;
  for (size_t k = 0; k < 2; k++) {
    if (find_setting(keys[k], &setting)) {
      (void)snprintf(mpi->copying, sizeof mpi->copying, "%s = %.20s, in %.80s", keys[k],
                     setting.value, setting.place);
      return;
    }
  }
}

/* What an MPICH uses was decided when it was built; it has no switch. */
static void describe_device(struct weft_cli_mpi *mpi) {
  static const char label[] = ", device ";
  const char *device = strstr(mpi->library, label);
  const char *transports = getenv("UCX_TLS");
  if (device == NULL) {
    (void)snprintf(mpi->ucx, sizeof mpi->ucx,
                   "not known: the library does not say what it is built on");
    return;
  }
  device += sizeof label - 1;
  if (strstr(device, "ucx") == NULL) {
    const char *what = strstr(device, "ofi") != NULL ? "libfabric" : "code of its own";
    (void)snprintf(mpi->ucx, sizeof mpi->ucx, "not in use: this MPICH is built on %s (%.40s)", what,
                   device);
    return;
  }
  (void)snprintf(mpi->ucx, sizeof mpi->ucx,
                 "in use, for good: this MPICH is built on it (%.40s); UCX_TLS %s%.60s", device,
                 transports != NULL ? "= " : "can choose its transports, and is not set",
                 transports != NULL ? transports : "");
}

void weft_cli_mca_describe(struct weft_cli_mpi *mpi) {
  if (strcmp(mpi->name, "openmpi") == 0) {
    describe_ucx(mpi);
    describe_copying(mpi);
  } else if (mpi->library[0] != '\0') {
    describe_device(mpi);
  }
}
