/* The library's side of the mpi transport: which MPI started this process, where the
 * driver for it is, and the calls into it (mpi_driver.h). A driver that has been loaded
 * stays loaded: an MPI cannot be unloaded and started again. */
#define _GNU_SOURCE /* dladdr1 */
#include <assert.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/support.h>

#include "comm/mpi/mpi_driver.h"

#ifndef WEFT_LIBDIR
#define WEFT_LIBDIR "lib"
#endif

enum { PATH_SIZE = PATH_MAX, REASON_SIZE = 320 };

struct implementation {
  const char *name;
  const char *title;
  const char *file;
  const char *packages; /* a hint: what to install */
};

#define HINT(packages)                                                                \
  "WEFT_MPI_DRIVER may name the file; for a Weft built without it: install " packages \
  ", and build Weft again"
static const struct implementation implementations[] = {
    {"openmpi", "Open MPI", "weft-mpi-openmpi.so", HINT("libopenmpi-dev and openmpi-bin")},
    {"mpich", "MPICH", "weft-mpi-mpich.so", HINT("libmpich-dev and mpich")},
};
enum { IMPLEMENTATIONS = sizeof implementations / sizeof implementations[0] };

/* ---- which ---- */

/* Slurm's srun sets PMIX_RANK (--mpi=pmix) or PMI_RANK (--mpi=pmi2); Open MPI uses
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

/* The shared library that this code is in, with an absolute path. False for the program, into which
 * the static library was linked, and for one that was loaded by a relative path: after a chdir() that
 * would be another file. */
static bool library_file(char *out) {
  Dl_info info;
  void *map = NULL;
  return dladdr1((const void *)implementations, &info, &map, RTLD_DL_LINKMAP) != 0 && map != NULL &&
         ((const struct link_map *)map)->l_name[0] != '\0' && info.dli_fname[0] == '/' &&
         snprintf(out, PATH_SIZE, "%s", info.dli_fname) < PATH_SIZE;
}

/* Not argv[0], which is relative to the folder in which the program was started. */
static bool program_file(char *out) {
  const ssize_t length = readlink("/proc/self/exe", out, PATH_SIZE - 1);
  if (length <= 0) {
    return false;
  }
  out[length] = '\0';
  return out[0] == '/';
}

/* A driver is code: its file and its folder belong to root, to this user, or to whom the program or
 * library belongs to, and not everybody may write to them. */
static bool is_trusted(const char *path, uid_t owner) {
  char folder[PATH_SIZE];
  struct stat facts[2];
  if (!folder_of(path, folder) || stat(folder, &facts[0]) != 0 || stat(path, &facts[1]) != 0 ||
      !S_ISREG(facts[1].st_mode)) {
    return false;
  }
  for (int k = 0; k < 2; k++) {
    const uid_t uid = facts[k].st_uid;
    if ((uid != 0 && uid != geteuid() && uid != owner) || (facts[k].st_mode & S_IWOTH) != 0) {
      return false;
    }
  }
  return true;
}

/* Where drivers are: beside the library that is installed, or in a build folder; and likewise from
 * a program, but never in its own folder, where programs of others are as well. */
#define INSTALLED "../" WEFT_LIBDIR "/weft"
static const char *const folders[] = {"weft", "lib", "../lib", (INSTALLED), "."};
enum { PROGRAM_FOLDERS = 4, LIBRARY_FOLDERS = sizeof folders / sizeof folders[0] };

struct search {
  char path[PATH_SIZE];       /* what was found, without links */
  char distrusted[PATH_SIZE]; /* one that others can change; "": none */
};

/* Without links on the way: what is examined is what is loaded, wherever a link leads then. */
static bool find_beside(const char *file, const char *name, size_t count, struct search *search) {
  char folder[PATH_SIZE];
  char path[PATH_SIZE];
  struct stat facts;
  if (!folder_of(file, folder) || stat(file, &facts) != 0) {
    return false;
  }
  for (size_t k = 0; k < count; k++) {
    const int length = snprintf(path, PATH_SIZE, "%s/%s/%s", folder, folders[k], name);
    if (length <= 0 || length >= PATH_SIZE || access(path, R_OK) != 0 ||
        realpath(path, search->path) == NULL) {
      continue;
    }
    if (is_trusted(search->path, facts.st_uid)) {
      return true;
    }
    memcpy(search->distrusted, search->path, PATH_SIZE);
  }
  return false;
}

static enum weft_status fail_not_found(const struct implementation *which,
                                       const struct search *search, struct weft_error *error) {
  assert(which != NULL && search != NULL);
  char file[PATH_SIZE], folder[PATH_SIZE], library[REASON_SIZE] = "", program[REASON_SIZE] = "";
  if (search->distrusted[0] != '\0') {
    return weft_fail(
        error, WEFT_ERR_UNAVAILABLE,
        "it and its folder must belong to you, to root or to the owner of the "
        "program, and not everybody may write to them; WEFT_MPI_DRIVER may name it",
        "the MPI driver %.200s is not loaded: others can change it",
        weft_escape(library, sizeof library, search->distrusted, strlen(search->distrusted)));
  }
  if (library_file(file) && folder_of(file, folder)) {
    weft_escape(library, sizeof library, folder, strlen(folder));
  }
  if (program_file(file) && folder_of(file, folder)) {
    weft_escape(program, sizeof program, folder, strlen(folder));
  }
  const bool two = library[0] != '\0' && strcmp(library, program) != 0;
  return weft_fail(error, WEFT_ERR_UNAVAILABLE, which->packages,
                   "there is no driver for %s: looked for %s in weft, lib, ../lib and " INSTALLED
                   " of %.130s%s%.130s, and on the library path (run path, LD_LIBRARY_PATH)",
                   which->title, which->file, program, two ? " and " : "", two ? library : "");
}

/* ---- loading ---- */

/* Global, because Open MPI's components need its symbols in the global scope. *missing, and no
 * message: there is no file of that bare name on the library path. */
static enum weft_status load_driver(const char *path, const char *hint, bool *missing,
                                    const struct weft_mpi_driver **out, struct weft_error *error) {
  char reason[REASON_SIZE];
  const char *text;
  void *handle = weft_library_open(path, true, &text);
  if (handle == NULL) {
    if (missing != NULL && strncmp(text, path, strlen(path)) == 0 &&
        strstr(text, "cannot open shared object file") != NULL) {
      *missing = true;
      return WEFT_ERR_UNAVAILABLE;
    }
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     hint != NULL ? hint : "WEFT_MPI_DRIVER names the file",
                     "the MPI driver cannot be loaded: %s",
                     weft_escape(reason, sizeof reason, text, strlen(text)));
  }
  const struct weft_mpi_driver *driver = NULL;
  const struct weft_library_symbol symbol = {WEFT_MPI_DRIVER_SYMBOL, (void *)&driver, true};
  (void)weft_library_find(handle, &symbol, 1);
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

/* Beside the library; on the library path, where a program that is linked with the static library
 * has the folder of the drivers as its run path; from the program's folder. */
static enum weft_status load_one(const struct implementation *which,
                                 const struct weft_mpi_driver **out, struct weft_error *error) {
  assert(which != NULL && out != NULL);
  struct search search = {.distrusted = ""};
  char file[PATH_SIZE];
  if (library_file(file) && find_beside(file, which->file, LIBRARY_FOLDERS, &search)) {
    return load_driver(search.path, which->packages, NULL, out, error);
  }
  bool missing = false;
  const enum weft_status status = load_driver(which->file, which->packages, &missing, out, error);
  if (!missing) {
    return status;
  }
  return program_file(file) && find_beside(file, which->file, PROGRAM_FOLDERS, &search)
             ? load_driver(search.path, which->packages, NULL, out, error)
             : fail_not_found(which, &search, error);
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

static enum weft_status choose_driver(const char *wanted, const struct weft_mpi_driver **out,
                                      struct weft_error *error) {
  const char *path = getenv("WEFT_MPI_DRIVER"), *launcher = weft_mpi_launcher();
  if (wanted != NULL && find_implementation(wanted) == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "there are openmpi and mpich",
                     "no MPI implementation is called `%.40s`", wanted);
  }
  if (wanted != NULL && launcher != NULL && strcmp(launcher, wanted) != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "start it with that MPI's own mpirun",
                     "this process was started by %s and is to use %s; each process would be "
                     "alone",
                     launcher, wanted);
  }
  if (path != NULL && path[0] != '\0') {
    return load_driver(path, NULL, NULL, out, error);
  }
  wanted = wanted != NULL ? wanted : launcher;
  return wanted != NULL ? load_one(find_implementation(wanted), out, error) : load_any(out, error);
}

/* ---- the transport's entry in the registry ---- */

static enum weft_status check_rank_count(struct weft_comm *comm,
                                         const struct weft_comm_options *options,
                                         struct weft_error *error) {
  const uint32_t count = weft_comm_local(comm)->rank_count;
  if (options->rank_count != 0 && options->rank_count != count) {
    return weft_fail(error, WEFT_ERR_USAGE, "mpirun -n starts that many processes",
                     "a world of %" PRIu32 " ranks in a job of %" PRIu32 " process%s",
                     options->rank_count, count, count == 1 ? "" : "es");
  }
  return WEFT_OK;
}

static enum weft_status open_comm(const struct weft_comm_kind *kind,
                                  const struct weft_allocator *allocator,
                                  const struct weft_comm_options *options, struct weft_comm **out,
                                  struct weft_error *error) {
  const struct weft_mpi_driver *driver = NULL;
  struct weft_comm *comm = NULL;
  (void)kind; /* its worlds are of the driver's */
  WEFT_TRY(choose_driver(options->implementation, &driver, error));
  assert(driver != NULL);
  WEFT_TRY(driver->kind->open(driver->kind, allocator, options, &comm, error));
  const enum weft_status status = check_rank_count(comm, options, error);
  if (status < 0) {
    weft_comm_close(comm);
    return status;
  }
  *out = comm;
  return WEFT_OK;
}

const struct weft_comm_kind weft_mpi_kind = {.info = WEFT_MPI_INFO, .open = open_comm};
