/* The library's side of the mpi transport: which MPI started this process, where the
 * driver for it is, and the calls into it (mpi_driver.h). A driver that has been loaded
 * stays loaded: an MPI cannot be unloaded and started again. */
#define _GNU_SOURCE /* dladdr */
#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/support.h>

#include "comm/mpi/mpi_driver.h"

#ifndef WEFT_LIBDIR
#define WEFT_LIBDIR "lib"
#endif

enum { PATH_SIZE = 4096, REASON_SIZE = 320 };

struct implementation {
  const char *name;
  const char *title;
  const char *file;
  const char *packages; /* what to install */
};

static const struct implementation implementations[] = {
    {"openmpi", "Open MPI", "weft-mpi-openmpi.so",
     "install libopenmpi-dev and openmpi-bin, and build Weft again"},
    {"mpich", "MPICH", "weft-mpi-mpich.so", "install libmpich-dev and mpich, and build Weft again"},
};
enum { IMPLEMENTATIONS = sizeof implementations / sizeof implementations[0] };

/* ---- which ---- */

/* Slurm's srun sets PMIX_RANK (--mpi=pmix) or PMI_RANK (--mpi=pmi2); Open MPI speaks
 * the first, MPICH the second. */
const char *weft_mpi_launcher(void) {
  if (getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMIX_RANK") != NULL) {
    return "openmpi";
  }
  return getenv("PMI_RANK") != NULL ? "mpich" : NULL;
}

static const struct implementation *find_implementation(const char *name) {
  for (size_t k = 0; k < IMPLEMENTATIONS; k++) {
    if (strcmp(implementations[k].name, name) == 0) {
      return &implementations[k];
    }
  }
  return NULL;
}

/* ---- where ---- */

/* The folder of a path, without the last slash; false when it has none or is too long. */
static bool folder_of(const char *path, char *out) {
  const char *slash = path != NULL ? strrchr(path, '/') : NULL;
  if (slash == NULL || slash - path >= PATH_SIZE) {
    return false;
  }
  memcpy(out, path, (size_t)(slash - path));
  out[slash - path] = '\0';
  return true;
}

/* The folder of the file that this code is in: the shared library, or the program. */
static bool library_folder(char *out) {
  Dl_info info;
  return dladdr((const void *)implementations, &info) != 0 && folder_of(info.dli_fname, out);
}

static bool program_folder(char *out) {
  char path[PATH_SIZE];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) {
    return false;
  }
  path[length] = '\0';
  return folder_of(path, out);
}

/* Installed beside the library or the program, or in a build folder. */
static bool find_in(const char *folder, const char *file, char *out) {
  static const char installed[] = "/../" WEFT_LIBDIR "/weft/";
  static const char *const places[] = {"/weft/", "/", "/lib/", "/../lib/", installed};
  for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
    const int length = snprintf(out, PATH_SIZE, "%s%s%s", folder, places[k], file);
    if (length > 0 && length < PATH_SIZE && access(out, R_OK) == 0) {
      return true;
    }
  }
  return false;
}

static bool find_driver(const char *file, char *out) {
  char folder[PATH_SIZE];
  return (library_folder(folder) && find_in(folder, file, out)) ||
         (program_folder(folder) && find_in(folder, file, out));
}

/* ---- loading ---- */

/* Global, because Open MPI's components look for its symbols among all. */
static enum weft_status load(const char *path, const char *hint, const struct weft_mpi_driver **out,
                             struct weft_error *error) {
  char reason[REASON_SIZE];
  void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (handle == NULL) {
    const char *text = dlerror();
    text = text != NULL ? text : "unknown";
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, hint, "the MPI driver cannot be loaded: %s",
                     weft_escape(reason, sizeof reason, text, strlen(text)));
  }
  const struct weft_mpi_driver *driver = dlsym(handle, WEFT_MPI_DRIVER_SYMBOL);
  if (driver == NULL || strcmp(driver->version, WEFT_VERSION) != 0) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "both must come from one build",
                     "%s is %s%s, not the driver of Weft %s",
                     weft_escape(reason, sizeof reason, path, strlen(path)),
                     driver == NULL ? "no driver" : "the driver of Weft ",
                     driver == NULL ? "" : driver->version, WEFT_VERSION);
  }
  *out = driver;
  return WEFT_OK;
}

static enum weft_status load_one(const struct implementation *which,
                                 const struct weft_mpi_driver **out, struct weft_error *error) {
  char path[PATH_SIZE];
  if (!find_driver(which->file, path)) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, which->packages,
                     "this Weft has no driver for %s: %s is not beside it", which->title,
                     which->file);
  }
  return load(path, which->packages, out, error);
}

/* The first that is there. */
static enum weft_status load_any(const struct weft_mpi_driver **out, struct weft_error *error) {
  struct weft_error other;
  const enum weft_status status = load_one(&implementations[0], out, error);
  for (size_t k = 1; k < IMPLEMENTATIONS && status != WEFT_OK; k++) {
    if (load_one(&implementations[k], out, &other) == WEFT_OK) {
      return WEFT_OK;
    }
  }
  return status;
}

static enum weft_status check_launcher(const char *wanted, struct weft_error *error) {
  const char *launcher = weft_mpi_launcher();
  if (launcher != NULL && strcmp(launcher, wanted) != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "start it with that MPI's own mpirun",
                     "this process was started by %s and is to use %s; each process would be "
                     "alone",
                     launcher, wanted);
  }
  return WEFT_OK;
}

static enum weft_status choose_driver(const char *wanted, const struct weft_mpi_driver **out,
                                      struct weft_error *error) {
  const char *path = getenv("WEFT_MPI_DRIVER");
  if (wanted != NULL && find_implementation(wanted) == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "there are openmpi and mpich",
                     "no MPI implementation is called `%.40s`", wanted);
  }
  if (wanted != NULL) {
    WEFT_TRY(check_launcher(wanted, error));
  }
  if (path != NULL && path[0] != '\0') {
    return load(path, "WEFT_MPI_DRIVER names the file", out, error);
  }
  wanted = wanted != NULL ? wanted : weft_mpi_launcher();
  return wanted != NULL ? load_one(find_implementation(wanted), out, error) : load_any(out, error);
}

/* ---- the calls ---- */

enum weft_status weft_mpi_create(const struct weft_allocator *allocator,
                                 const struct weft_mpi_options *options, struct weft_mpi **out,
                                 struct weft_error *error) {
  static const struct weft_mpi_options defaults = {.progress = WEFT_MPI_CALLS};
  const struct weft_mpi_driver *driver = NULL;
  options = options != NULL ? options : &defaults;
  WEFT_TRY(choose_driver(options->implementation, &driver, error));
  assert(driver != NULL);
  return driver->create(allocator != NULL ? allocator : weft_allocator_default(), options, out,
                        error);
}

void weft_mpi_destroy(struct weft_mpi *world) {
  if (world != NULL) {
    world->driver->destroy(world);
  }
}

struct weft_transport *weft_mpi_endpoint(struct weft_mpi *world) {
  return world->driver->endpoint(world);
}

void weft_mpi_abandon(struct weft_mpi *world, int exit_status) {
  world->driver->abandon(world, exit_status);
}

void weft_mpi_facts(const struct weft_mpi *world, struct weft_mpi_facts *facts) {
  world->driver->facts(world, facts);
}

enum weft_status weft_mpi_bare(struct weft_mpi *world, const struct weft_mpi_bare *game,
                               struct weft_error *error) {
  return world->driver->bare(world, game, error);
}
